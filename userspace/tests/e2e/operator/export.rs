//! Exports work in the programs that they are for: real HAProxy and nginx route by them as signalbox does.

use std::collections::BTreeSet;

use crate::lab;
use crate::sources::applications;

use lab::{Lab, Proc, Router, SOON, Signalbox, config, eventually, http, lab_test};
use serde_json::{Value, json};

/// Addresses at which HAProxy and nginx serve the exported table.
const FRONTS: [&str; 2] = ["10.1.0.1:8081", "10.1.0.1:8082"];

/// A name that is longer than nginx's own buckets of names.
fn long_name() -> String {
    format!("long-{}.test", "x".repeat(55))
}

/// East with one host and west with another, and names of all kinds.
fn clusters_and_routes(more: &str) -> String {
    format!(
        "clusters:\n{}{}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n  - {{ host: both.test, clusters: {{ east: 50, west: 50 }} }}\n  \
         - {{ host: \"*.wild.test\", clusters: {{ west: 1 }} }}\n  - {{ host: {}, clusters: {{ west: 1 }} }}\n{more}",
        config::cluster("east", &[], &["east-1"]),
        config::cluster("west", &["balance: maglev"], &["west-2"]),
        long_name()
    )
}

/// Paths of the exported files.
struct Exported {
    names: String,
    wildcards: String,
    backends: String,
    nginx_map: String,
}

impl Exported {
    fn of(lab: &Lab, sb: &Signalbox, protocol: &str) -> Self {
        let file = |format: &str| {
            let said = sb.cli(&["export", "--format", format, "--protocol", protocol]);
            assert!(said.status.success(), "{said:?}");
            write(
                lab,
                &format!("{protocol}-{format}.exported"),
                &String::from_utf8(said.stdout).unwrap(),
            )
        };
        Self {
            names: file("haproxy-map"),
            wildcards: file("haproxy-wildcards"),
            backends: file("haproxy-backends"),
            nginx_map: file("nginx-map"),
        }
    }

    /// HAProxy with this frontend at the first of [`FRONTS`], and the backends of `beside` too.
    fn haproxy(&self, lab: &Lab, mode: &str, frontend: &str, beside: Option<&Self>) -> Proc {
        let text = format!(
            "defaults\n  mode {mode}\n  timeout client 1h\n  timeout server 1h\n  timeout connect 5s\nfrontend front\n  \
             bind :8081\n{frontend}"
        );
        let front = write(lab, "front.cfg", &text);
        let mut words = vec!["haproxy", "-f", &front, "-f", &self.backends];
        words.extend(beside.iter().flat_map(|beside| ["-f", &beside.backends]));
        let checked = lab.lb.output(&[&words[..], &["-c"]].concat());
        assert!(checked.status.success(), "{checked:?}");
        words.push("-db");
        start(lab, &words)
    }
}

fn write(lab: &Lab, name: &str, text: &str) -> String {
    let path = lab.dir().join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// nginx with this beside its usual settings.
fn nginx(lab: &Lab, text: &str) -> Proc {
    let dir = lab.dir().display();
    let text =
        format!("daemon off;\nmaster_process off;\npid {dir}/front.pid;\nerror_log stderr;\nevents {{ }}\n{text}");
    let front = write(lab, "front.nginx", &text);
    // Nginx's stream module may be a file or built in.
    let module = "/usr/lib/nginx/modules/ngx_stream_module.so";
    let load = format!("load_module {module};");
    let load = if std::path::Path::new(module).exists() {
        load.as_str()
    } else {
        ""
    };
    let checked = lab.lb.output(&["nginx", "-t", "-c", &front, "-g", load]);
    assert!(checked.status.success(), "{checked:?}");
    start(lab, &["nginx", "-c", &front, "-g", load])
}

fn start(lab: &Lab, words: &[&str]) -> Proc {
    let mut command = lab.lb.command(words[0]);
    command.args(&words[1..]);
    Proc::spawn(words[0], command, lab.dir())
}

/// At each of [`FRONTS`], these names are answered by these hosts, and `both.test` by both. `host`: returns the host
/// that answers for a name at an address.
fn routed(lab: &Lab, names: &[(&str, &str)], host: impl Fn(&str, &str) -> String) {
    for at in FRONTS {
        let listens = || lab.client.run(|| std::net::TcpStream::connect(at).is_ok());
        assert!(eventually(SOON, listens), "{at}");
        for (name, expected) in names {
            assert_eq!(host(at, name), *expected, "{name} at {at}");
        }
        let both = || (0..20).map(|_| host(at, "both.test")).collect::<BTreeSet<_>>();
        assert!(
            eventually(SOON, || both() == BTreeSet::from(["east-1".into(), "west-2".into()])),
            "{at}"
        );
    }
}

#[lab_test]
fn haproxy_and_nginx_route_by_what_is_exported() {
    let lab = Lab::new();
    let _routers = Router::start_all(&lab, &["east-1", "east-2", "west-2"]);
    let rest = clusters_and_routes("  - { host: none.test, clusters: { demo/none: 1 } }\n");
    let sb = Signalbox::start(&lab, &applications::body("ha_prefix: ha-", &rest));
    sb.wait_healthy(&["east-1", "west-2"]);
    applications::post(&sb, &applications::endpoint("542b", "10.2.0.3:80"));
    let of_application = "ha-phpha-demo.cloud.test";
    assert!(eventually(SOON, || http::ask(&lab, "10.1.0.1:80", of_application)
        .status
        == 200));
    let exported = Exported::of(&lab, &sb, "http");
    let (names, wildcards) = (&exported.names, &exported.wildcards);
    let _haproxy = exported.haproxy(
        &lab,
        "http",
        &format!(
            "  http-request set-var(txn.to) req.hdr(host),field(1,:),lower,map_str({names})\n  \
             http-request set-var(txn.to) req.hdr(host),field(1,:),lower,map_end({wildcards}) unless {{ var(txn.to) -m found }}\n  \
             use_backend %[var(txn.to)] if {{ var(txn.to) -m found }}\n"
        ),
        None,
    );
    let _nginx = nginx(
        &lab,
        &format!(
            "http {{\n  access_log off;\n  \
             client_body_temp_path {0}/f.body; proxy_temp_path {0}/f.proxy; fastcgi_temp_path {0}/f.fastcgi;\n  \
             uwsgi_temp_path {0}/f.uwsgi; scgi_temp_path {0}/f.scgi;\n  include {1};\n  server {{\n    listen 8082;\n    \
             location / {{\n      if ($signalbox_cluster = \"\") {{ return 404; }}\n      proxy_set_header Host $host;\n      \
             proxy_pass http://$signalbox_cluster;\n    }}\n  }}\n}}\n",
            lab.dir().display(),
            exported.nginx_map
        ),
    );
    let expected = [
        ("a.test", "east-1"),
        ("x.wild.test", "west-2"),
        (&long_name(), "west-2"),
        (of_application, "east-2"),
    ];
    routed(&lab, &expected, |at, name| http::ask(&lab, at, name).field("host"));
    for at in FRONTS {
        assert!(
            http::ask(&lab, at, "none.test").status >= 502,
            "an application without hosts at {at}"
        );
        assert!(http::ask(&lab, at, "other.test").status != 200);
    }
    let all = sb.cli(&["export", "--format", "json"]).stdout;
    let all: Value = serde_json::from_slice(&all).unwrap();
    let both = lab::signalbox::find(&all["names"], "host", "both.test");
    assert_eq!(
        both["clusters"],
        json!([{ "cluster": "east", "weight": 50 }, { "cluster": "west", "weight": 50 }])
    );
    let app = lab::signalbox::find(&all["clusters"], "name", "demo/phpha");
    assert_eq!(
        (&app["hosts"][0]["http"], &app["hosts"][0]["address"]),
        (&json!(80), &json!("10.2.0.3"))
    );
    let wrong = sb.get("/api/v1/export?format=f5");
    assert!(wrong.0 == 400 && wrong.1.contains("nginx-map"), "{wrong:?}");
}

/// TLS is passed through: the router hosts answer with their own certificates, and see the client's server name.
#[lab_test]
fn haproxy_and_nginx_pass_tls_on_by_what_is_exported() {
    let lab = Lab::new();
    let _routers = Router::start_all(&lab, &["east-1", "west-2"]);
    let body = format!("{}{}", config::WEB_LISTENERS, clusters_and_routes(""));
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1", "west-2"]);
    let exported = Exported::of(&lab, &sb, "tls");
    let (names, wildcards) = (&exported.names, &exported.wildcards);
    let _haproxy = exported.haproxy(
        &lab,
        "tcp",
        &format!(
            "  tcp-request inspect-delay 5s\n  \
             tcp-request content set-var(txn.to) req.ssl_sni,lower,map_str({names}) if {{ req.ssl_sni -m found }}\n  \
             tcp-request content set-var(txn.to) req.ssl_sni,lower,map_end({wildcards}) if {{ req.ssl_sni -m found }} !{{ var(txn.to) -m found }}\n  \
             tcp-request content reject unless {{ var(txn.to) -m found }}\n  \
             use_backend %[var(txn.to)]\n"
        ),
        Some(&Exported::of(&lab, &sb, "http")),
    );
    let _nginx = nginx(
        &lab,
        &format!(
            "stream {{\n  include {};\n  server {{\n    listen 8082;\n    ssl_preread on;\n    proxy_pass $signalbox_cluster;\n  }}\n}}\n",
            exported.nginx_map
        ),
    );
    let curl = |at: &str, name: &str| {
        let to = format!("::{at}");
        http::curl(
            &lab,
            "10.1.0.1",
            &["-k", "--connect-to", &to, &format!("https://{name}/")],
        )
    };
    let host = |at: &str, name: &str| {
        let answer = curl(at, name);
        assert_eq!(answer.code, 0, "{name} at {at}: {}", answer.trace);
        assert_eq!(http::field(&answer.body, "sni"), name, "at {at}");
        let host = http::field(&answer.body, "host");
        assert!(answer.trace.contains(&format!("CN={host}")), "{}", answer.trace);
        host
    };
    let expected = [
        ("a.test", "east-1"),
        ("x.wild.test", "west-2"),
        (&long_name(), "west-2"),
    ];
    routed(&lab, &expected, host);
    for at in FRONTS {
        assert!(curl(at, "other.test").code != 0, "no cluster has the name, at {at}");
    }
    // A host that is out of rotation gets nothing by a new export.
    let out = sb.cli(&["rotate", "out", "west-2", "--force"]);
    assert!(out.status.success(), "{out:?}");
    let again = Exported::of(&lab, &sb, "tls");
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    assert!(
        read(&again.backends).contains("server west:west-2 10.3.0.3:443 weight 1 check disabled"),
        "{}",
        read(&again.backends)
    );
    assert!(
        read(&again.nginx_map).contains("server 10.3.0.3:443 weight=1 down;"),
        "{}",
        read(&again.nginx_map)
    );
}

//! The laboratory itself, without the balancer: when this fails, all other end-to-end tests are meaningless.

use crate::lab;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::process::{Child, Command};

use lab::signalbox::{self, peeks_in_userspace};
use lab::{Lab, Ns, Proc, Router, SOON, config, cut, eventually, exchange, hello, http, lab_test, servers, tiers};
use serde_json::Value;
use signalbox_lab::{Kind, namespaces, remove_stale};

#[lab_test]
fn router_hosts_answer_with_their_name_and_what_they_saw() {
    let lab = Lab::new();
    let _routers = [
        Router::start(&lab, "east-1"),
        Router::nginx(&lab, "west-1"),
        Router::accept_proxy(&lab, "east-2"),
    ];
    for (at, host) in [
        ("10.2.0.2:80", "east-1"),
        ("[fd00:2::2]:80", "east-1"),
        ("[fd00:2::4]:80", "west-1"),
    ] {
        let stream = lab.lb.connect(at);
        for _ in 0..3 {
            let answer = http::get(&stream, "app1.example.com", "/x").unwrap();
            assert_eq!((answer.status, answer.field("host")), (200, host.into()));
            assert_eq!(answer.field("name"), "app1.example.com");
        }
    }
    let health = http::get(lab.lb.connect("10.2.0.2:1936"), "x", "/healthz").unwrap();
    assert_eq!(health.status, 200);
    let mut proxied = lab.lb.connect("10.2.0.3:80");
    proxied.write_all(b"PROXY TCP4 10.1.0.77 10.1.0.1 5555 80\r\n").unwrap();
    assert_eq!(http::get(&proxied, "a.test", "/").unwrap().field("client"), "10.1.0.77");
}

#[lab_test]
fn curl_sees_the_certificate_of_the_router_host_and_http2() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    // Without a balancer the client reaches no cluster: the host itself plays client here.
    let ca = lab.dir().join("ca.pem");
    let resolve = "*:443:10.2.0.2";
    let curl = |words: &[&str]| {
        let mut command = lab.host("east-1").command("curl");
        command
            .args(["-sv", "--resolve", resolve, "--cacert"])
            .arg(&ca)
            .args(words)
            .output()
            .unwrap()
    };
    let tls = curl(&["https://app1.example.com/"]);
    let trace = String::from_utf8_lossy(&tls.stderr).into_owned();
    assert!(tls.status.success(), "{trace}");
    assert!(trace.contains("CN=east-1"), "{trace}");
    assert_eq!(
        http::field(&String::from_utf8_lossy(&tls.stdout), "sni"),
        "app1.example.com"
    );
    let h2c = curl(&["--http2-prior-knowledge", "-w", "v=%{http_version}", "http://10.2.0.2/"]);
    assert_eq!(http::field(&String::from_utf8_lossy(&h2c.stdout), "v"), "2");
}

#[lab_test]
fn an_exchange_is_exact_both_ways_and_notices_a_wrong_byte() {
    let lab = Lab::new();
    let _server = exchange::server(lab.host("east-1"), "[::]:3306");
    for (seed, size) in [0, 1, 1024, 64 << 10, 5 << 20].into_iter().enumerate() {
        exchange::client(&lab.lb.connect("10.2.0.2:3306"), seed as u64, size, size).unwrap();
    }
    // A relay that spoils one byte of the way down, and one that spoils the way up.
    for spoil_up in [false, true] {
        let backend = lab.lb.clone();
        let _relay = lab::Server::start(&lab.lb, "10.1.0.1:9", move |client| {
            let host = backend.connect("10.2.0.2:3306");
            std::thread::scope(|scope| {
                scope.spawn(|| relay(&client, &host, spoil_up));
                relay(&host, &client, !spoil_up);
            });
        });
        let error = exchange::client(&lab.client.connect("10.1.0.1:9"), 9, 100_000, 100_000).unwrap_err();
        let side = if spoil_up { "up" } else { "down" };
        assert!(error.to_string().starts_with(side), "{error}");
    }
}

fn relay(mut from: &std::net::TcpStream, mut to: &std::net::TcpStream, spoil: bool) {
    let (mut buffer, mut seen) = ([0; 4096], 0);
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        if spoil && (seen..seen + n).contains(&50_000) {
            buffer[50_000 - seen] ^= 1;
        }
        seen += n;
        to.write_all(&buffer[..n]).unwrap();
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[lab_test]
fn a_recorder_keeps_every_byte_and_an_echo_gives_it_back() {
    let lab = Lab::new();
    let recorder = servers::Recorder::default();
    let _servers = (
        recorder.serve(lab.host("west-2"), "[::]:443", "west-2"),
        servers::echo(lab.host("west-2"), "[::]:7"),
    );
    let bytes = hello::records(&hello::client_hello(Some("a.test")), 3);
    assert!(bytes.len() > 1460, "longer than a segment");
    let reply = |at: &str| {
        let mut stream = lab.lb.connect(at);
        stream.write_all(&bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        reply
    };
    assert_eq!(reply("10.3.0.3:443"), b"west-2");
    assert_eq!(recorder.take(), std::slice::from_ref(&bytes));
    assert_eq!(reply("[fd00:2::5]:7"), bytes);
}

#[lab_test]
fn openssl_understands_our_client_hello() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    for records in [1, 3] {
        let mut stream = lab.lb.connect("10.2.0.2:443");
        stream
            .write_all(&hello::records(&hello::client_hello(Some("a.test")), records))
            .unwrap();
        let mut head = [0; 6];
        stream.read_exact(&mut head).unwrap();
        assert_eq!((head[0], head[5]), (22, 2), "a ServerHello, not an alert: {head:x?}");
    }
}

/// A setting that a helper of the lab adds silently would be in every test but in no user's configuration.
#[test]
fn no_helper_overrides_a_default_of_the_product() {
    if peeks_in_userspace() {
        return;
    }
    let route = "{ host: a.test, clusters: { east: 1 } }";
    let bodies = [
        config::web(&[route]),
        config::tcp("", &["east-1"]),
        cut::body(""),
        tiers::body(""),
        format!(
            "{}clusters:\n{}",
            config::WEB_LISTENERS,
            config::cluster("east", &[], &["east-1"])
        ),
    ];
    for body in bodies {
        let written = signalbox::document(Path::new("/lab/admin.sock"), &body);
        assert!(
            written.contains(&body),
            "the lab has changed what a test wrote:\n{written}"
        );
        let document: Value = serde_saphyr::from_str(&written).unwrap();
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        for key in keys(&document) {
            let known = [
                "version",
                "admin",
                "store",
                "listeners",
                "clusters",
                "routes",
                "unmatched",
            ];
            assert!(known.contains(&key.as_str()), "`{key}` is set by a helper:\n{written}");
        }
        for cluster in document["clusters"].as_array().unwrap() {
            for key in keys(cluster) {
                // Checks are faster than by default, as the helpers say, so that tests need not wait for them.
                let known = ["name", "hosts", "balance", "health", "ejection"];
                assert!(
                    known.contains(&key.as_str()),
                    "`{key}` of a cluster is set by a helper:\n{written}"
                );
            }
        }
    }
}

#[lab_test]
fn names_are_peeked_at_where_the_product_does_by_default() {
    if peeks_in_userspace() {
        return;
    }
    let lab = cut::lab();
    let (_health, sb) = cut::start(&lab, "");
    // Two names at two listeners.
    let routed = || sb.metric("signalbox_kernel_peek_routes");
    assert!(eventually(SOON, || routed() == 4.0), "{}", sb.get("/metrics").1);
}

#[lab_test]
fn nothing_is_left_of_a_lab() {
    let lab = Lab::new();
    let (dir, lb) = (lab.dir().to_owned(), lab.lb.name().to_owned());
    let mut command = lab.lb.command("sleep");
    command.arg("1000");
    let stray = Proc::spawn("stray", command, lab.dir());
    let pid = stray.pid();
    // Only then is it in the namespace, whose processes are killed.
    let has_entered = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() == "sleep\n";
    assert!(eventually(SOON, has_entered));
    // A process that its handle no longer watches over, as after a panic in the middle.
    std::mem::forget(stray);
    drop(lab);
    let list = Command::new("ip").args(["netns", "list"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&list.stdout).contains(&lb));
    assert!(!dir.exists());
    // The signal takes its time on a busy machine.
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let killed = eventually(SOON, || state().contains(") Z "));
    assert!(killed, "killed, only not waited for: {}", state());
}

#[lab_test]
fn leftovers_of_killed_runs_are_removed_and_of_live_ones_kept() {
    let sleep = || Command::new("sleep").arg("1000").spawn().unwrap();
    let (mut running, mut killed) = (sleep(), sleep());
    // A kind of this test's own: the prefix with which other labs begin is theirs.
    let kind = Kind {
        prefix: "sbtest",
        program: "sleep",
        detach: |_| {},
    };
    let name = |run: &Child| format!("{}{}-0", kind.prefix, run.id());
    let temp = std::env::temp_dir();
    let mut strays = Vec::new();
    for run in [&running, &killed] {
        std::fs::create_dir(temp.join(name(run))).unwrap();
        let ns = Ns::create(&format!("{}-lb", name(run)));
        strays.push(ns.command("sleep").arg("1000").spawn().unwrap());
    }
    let there = |run: &Child| (namespaces(&name(run)).len(), temp.join(name(run)).exists());
    killed.kill().unwrap();
    // Nobody has waited for it yet.
    let gone = eventually(SOON, || {
        remove_stale(&kind);
        there(&killed) == (0, false)
    });
    assert!(gone, "{:?}", there(&killed));
    assert_eq!(there(&running), (1, true));
    assert!(strays[0].try_wait().unwrap().is_none());
    assert!(eventually(SOON, || strays[1].try_wait().unwrap().is_some()));
    for child in strays.iter_mut().chain([&mut running, &mut killed]) {
        let _ = child.kill();
        child.wait().unwrap();
    }
    remove_stale(&kind);
    assert_eq!(there(&running), (0, false));
}

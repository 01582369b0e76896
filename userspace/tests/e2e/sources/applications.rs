//! Applications of routing events: checked as their endpoints say, named by the file.

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use crate::lab;

use lab::servers::Server;
use lab::{Lab, Router, SOON, Signalbox, config, eventually, http, lab_test};
use serde_json::{Value, json};

const HTTP: &str = "10.1.0.1:80";

/// Makes an event of demo/phpha, or of another application of the namespace.
pub(crate) fn event(action: &str, more: &str) -> String {
    format!("---\n:action: :{action}\n:app_name: phpha\n:namespace: demo\n{more}")
}

/// A gear's balancer, which is asked for /configuration/health.
pub(crate) fn endpoint(gear: &str, at: &str) -> String {
    let (address, port) = at.split_once(':').unwrap();
    event(
        "add_public_endpoint",
        &format!(
            ":gear_id: {gear}\n:public_port_name: haproxy-1.4\n:public_address: {address}\n:public_port: {port}\n\
             :protocols: [http, ws]\n:types: [load_balancer]\n:mappings:\n- frontend: ''\n  backend: ''\n\
             - frontend: /health\n  backend: /configuration/health\n"
        ),
    )
}

pub(crate) fn post(sb: &Signalbox, text: &str) -> Value {
    let response = sb.unix("POST", "/api/v1/routing-events", text);
    assert_eq!(response.status, 200, "{}", response.body);
    serde_json::from_str(&response.body).unwrap()
}

pub(crate) fn body(settings: &str, rest: &str) -> String {
    format!(
        "routing_events: {{ brokers: [\"127.0.0.1:9\"], destination: /queue/routing, domain: cloud.test, {settings} }}\n{}{rest}",
        config::WEB_LISTENERS
    )
}

/// A gear that reports the status that the test wants, and remembers the requests for its health.
struct Gear {
    _server: Server,
    status: Arc<AtomicU16>,
    asked: Arc<Mutex<String>>,
}

impl Gear {
    fn start(lab: &Lab, host: &'static str, at: &str) -> Self {
        let (status, asked) = (Arc::new(AtomicU16::new(200)), Arc::<Mutex<String>>::default());
        let (says, asks) = (Arc::clone(&status), Arc::clone(&asked));
        let server = Server::start(lab.host(host), at, move |stream| {
            let mut request = Vec::new();
            let mut piece = [0; 1024];
            while !request.ends_with(b"\r\n\r\n") {
                match (&*stream).read(&mut piece) {
                    Ok(n) if n > 0 => request.extend_from_slice(&piece[..n]),
                    _ => return,
                }
            }
            let request = String::from_utf8_lossy(&request).into_owned();
            let is_check = request.contains("User-Agent: signalbox/");
            let status = if is_check { says.load(Ordering::SeqCst) } else { 200 };
            if is_check {
                *asks.lock().unwrap() = request.lines().take(2).collect::<Vec<_>>().join(" ");
            }
            let text = format!("host={host} ");
            let head = format!(
                "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                text.len()
            );
            let _ = (&*stream).write_all(format!("{head}{text}").as_bytes());
        });
        Self {
            _server: server,
            status,
            asked,
        }
    }

    fn asked(&self) -> String {
        self.asked.lock().unwrap().clone()
    }
}

#[lab_test]
fn a_gear_that_answers_5xx_goes_out_by_what_its_mappings_say() {
    let lab = Lab::new();
    let gears = ["east-1", "east-2"].map(|host| Gear::start(&lab, host, "[::]:8080"));
    let fast = "health: { interval: 2s, rise: 1 }";
    let by_pattern = |one: &str| {
        body(
            &format!("applications: [ {{ match: \"demo/*\", {one} }} ]"),
            "clusters: []\n",
        )
    };
    let sb = Signalbox::start(&lab, &by_pattern(fast));
    post(
        &sb,
        &(endpoint("542b", "10.2.0.2:8080") + &endpoint("542c", "10.2.0.3:8080")),
    );
    let name = "ha-phpha-demo.cloud.test";
    let served_by = |host: &str| {
        eventually(SOON, || {
            let answers: Vec<_> = (0..6).map(|_| http::ask(&lab, HTTP, name)).collect();
            answers.iter().all(|answer| answer.status == 200)
                && answers.iter().any(|answer| answer.field("host") == host)
        })
    };
    assert!(
        served_by("east-1") && served_by("east-2"),
        "{}",
        sb.json("/api/v1/hosts")
    );
    let wanted = "GET /configuration/health HTTP/1.1 Host: phpha-demo.cloud.test";
    assert!(eventually(SOON, || gears[0].asked() == wanted), "{}", gears[0].asked());
    let shown = "HTTP on port 8080 for /configuration/health of phpha-demo.cloud.test";
    assert_eq!(sb.host("542b.haproxy-1.4")["checked_by"], shown);

    // A gear without such a page may be well; a gear that cannot answer is not.
    gears[0].status.store(404, Ordering::SeqCst);
    gears[1].status.store(503, Ordering::SeqCst);
    let is = |host: &str, health: &str| eventually(SOON, || sb.host(host)["health"] == health);
    assert!(is("542c.haproxy-1.4", "unhealthy"), "{}", sb.host("542c.haproxy-1.4"));
    for _ in 0..6 {
        assert_eq!(http::ask(&lab, HTTP, name).field("host"), "east-1");
    }
    gears[1].status.store(200, Ordering::SeqCst);
    assert!(is("542c.haproxy-1.4", "healthy") && served_by("east-2"));

    // At the nodes' front end, which knows the first gear by the application's name and the other by its id.
    let fronts = ["east-1", "east-2"].map(|host| Gear::start(&lab, host, "[::]:8888"));
    let at_front = "health: { http: { port: 8888, path: /health, host: \"{gear}-{namespace}.cloud.test\" }, interval: 2s, rise: 1 }";
    sb.reload(&by_pattern(at_front));
    for (front, gear) in fronts.iter().zip(["phpha", "542c"]) {
        let wanted = format!("GET /health HTTP/1.1 Host: {gear}-demo.cloud.test");
        assert!(eventually(SOON, || front.asked() == wanted), "{}", front.asked());
    }
    fronts[0].status.store(404, Ordering::SeqCst);
    assert!(
        is("542b.haproxy-1.4", "unhealthy"),
        "what is asked for by name must be there"
    );
    assert_eq!(http::ask(&lab, HTTP, name).field("host"), "east-2");
}

#[lab_test]
fn a_route_may_name_an_application_before_any_event_reports_it() {
    let lab = Lab::new();
    let _routers = Router::start_all(&lab, &["east-1", "east-2"]);
    let rest = format!(
        "clusters:\n{}routes:\n  - {{ host: shop.test, clusters: {{ demo/phpha: 1 }} }}\n  \
         - {{ host: both.test, clusters: {{ east: 100, demo/phpha: 0 }} }}\n",
        config::cluster("east", &[], &["east-1"])
    );
    let fast = "applications: [ { match: \"*\", health: { interval: 2s, rise: 1 } } ]";
    let mut sb = Signalbox::start(&lab, &body(fast, &rest));
    sb.wait_healthy(&["east-1"]);
    assert_eq!(http::ask(&lab, HTTP, "shop.test").status, 503);
    let why = "no routing event has reported this application yet";
    let cluster = |sb: &Signalbox| lab::signalbox::find(&sb.json("/api/v1/clusters")["clusters"], "name", "demo/phpha");
    assert_eq!(cluster(&sb)["waits_for"], why);
    let said = sb.cli(&["explain", "shop.test"]);
    assert!(String::from_utf8_lossy(&said.stdout).contains(why), "{said:?}");
    assert!(sb.proc.log().contains(why));

    post(&sb, &endpoint("542b", "10.2.0.3:80"));
    let told = |sb: &Signalbox| {
        eventually(SOON, || {
            http::ask(&lab, HTTP, "shop.test").status == 200 && cluster(sb)["waits_for"].is_null()
        })
    };
    assert!(told(&sb), "{}", sb.json("/api/v1/clusters"));
    assert_eq!(http::ask(&lab, HTTP, "shop.test").field("host"), "east-2");
    assert_eq!(http::ask(&lab, HTTP, "both.test").field("host"), "east-1");
    let set = sb.cli(&["weight", "both.test", "demo/phpha=100"]);
    assert!(set.status.success(), "{set:?}");
    assert_eq!(http::ask(&lab, HTTP, "both.test").field("host"), "east-2");
    let set = sb.cli(&["weight", "both.test", "demo/other=100"]);
    assert!(
        String::from_utf8_lossy(&set.stderr).contains("no routing event has reported such an application"),
        "{set:?}"
    );

    // Known applications are there from the start of the next process on; those that are gone wait again.
    sb.kill9();
    sb = Signalbox::start(&lab, &body(fast, &rest));
    assert!(told(&sb));
    assert_eq!(http::ask(&lab, HTTP, "both.test").field("host"), "east-2");
    post(&sb, &event("delete_application", ""));
    assert!(eventually(SOON, || http::ask(&lab, HTTP, "shop.test").status == 503));
    assert_eq!(cluster(&sb)["waits_for"], json!(why));
}

fn names(answer: &Value, list: &str, key: &str) -> Vec<String> {
    let all = answer[list].as_array().unwrap().iter();
    all.map(|one| one[key].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[lab_test]
fn status_and_rotate_events_are_obeyed_and_leave_no_trace() {
    let lab = Lab::new();
    let _routers = Router::start_all(&lab, &["east-1", "east-2"]);
    let fast = body(
        "applications: [ { match: \"*\", health: { interval: 2s, rise: 1 } } ]",
        "clusters: []\n",
    );
    let mut sb = Signalbox::start(&lab, &fast);
    let name = "ha-phpha-demo.cloud.test";
    post(
        &sb,
        &(endpoint("542b", "10.2.0.2:80") + &endpoint("542c", "10.2.0.3:80")),
    );
    let hosts = || {
        (0..6)
            .map(|_| http::ask(&lab, HTTP, name).field("host"))
            .collect::<Vec<_>>()
    };
    let both = || {
        eventually(SOON, || {
            ["east-1", "east-2"]
                .iter()
                .all(|host| hosts().contains(&(*host).to_owned()))
        })
    };
    let only = |host: &str| eventually(SOON, || hosts().iter().all(|answer| answer == host));
    assert!(both(), "{}", sb.json("/api/v1/hosts"));

    let of_gear = |action: &str, gear: &str, more: &str| event(action, &format!(":gear_id: {gear}\n{more}"));
    post(&sb, &of_gear("stop_gear", "542b", ""));
    assert!(only("east-2"));
    let stopped = |sb: &Signalbox| {
        let table = sb.json("/api/v1/applications/demo/phpha");
        json!([
            table["stopped"],
            table["endpoints"][0]["stopped"],
            table["endpoints"][1]["stopped"]
        ])
    };
    assert_eq!(stopped(&sb), json!([false, true, false]));
    post(&sb, &event("stop_application", ""));
    assert!(eventually(SOON, || http::ask(&lab, HTTP, name).status == 503));
    sb.kill9();
    sb = Signalbox::start(&lab, &fast);
    assert_eq!(stopped(&sb), json!([true, true, true]), "stopped is what it stays");
    post(&sb, &event("start_application", ""));
    assert!(both());

    // Rotation by event: with its reason, kept over a kill, and applied once even if the event is repeated.
    let out = of_gear("rotate_out_gear", "542b", ":timeout: 60\n:reason: a new disk\n");
    post(&sb, &out);
    post(&sb, &out);
    assert!(
        hosts().iter().all(|host| host == "east-2"),
        "in force when it is answered"
    );
    let rotations = sb.json("/api/v1/rotations");
    let of = |key: &str| names(&rotations, "rotations", key);
    assert_eq!(
        (of("subject"), of("reason"), of("by")),
        (
            vec!["gear:542b".into()],
            vec!["a new disk".into()],
            vec!["routing events".into()]
        )
    );
    assert_eq!(rotations["jobs"].as_array().unwrap().len(), 1);
    let said = |sb: &Signalbox| sb.json("/api/v1/applications/demo/phpha")["rotated_out_by_events"].clone();
    assert_eq!(said(&sb), json!({ "542b": "a new disk" }));
    sb.kill9();
    sb = Signalbox::start(&lab, &fast);
    assert!(only("east-2"));
    assert_eq!(said(&sb), json!({ "542b": "a new disk" }), "on record");
    post(&sb, &of_gear("rotate_in_gear", "542b", ""));
    assert!(both());
    assert_eq!(said(&sb), json!({}));

    // A gear that an operator has taken out is not taken in by an event. An event may take out the last gear.
    assert!(sb.cli(&["rotate", "out", "542c", "--timeout", "1"]).status.success());
    post(&sb, &of_gear("rotate_in_gear", "542c", ""));
    post(&sb, &event("rotate_out_application", ""));
    assert!(eventually(SOON, || http::ask(&lab, HTTP, name).status == 503));
    post(&sb, &event("rotate_in_application", ""));
    assert!(only("east-1"), "542c is the operator's");
    post(&sb, &of_gear("rotate_out_gear", "542b", ""));

    post(
        &sb,
        &(event("add_geography", ":geography: eu-west\n") + &of_gear("add_geography", "542c", ":geography: us-east\n")),
    );
    let table = sb.json("/api/v1/applications/demo/phpha");
    assert_eq!(table["geographies"], json!(["eu-west", "us-east"]));
    assert_eq!(table["endpoints"][0]["geographies"], json!(["eu-west"]));
    assert_eq!(table["endpoints"][1]["geographies"], json!(["eu-west", "us-east"]));

    // Unknown actions are still refused; a gear that is gone is no longer out of rotation, unless an operator took it
    // out.
    let response = sb.unix(
        "POST",
        "/api/v1/routing-events",
        &event("restart_gear", ":gear_id: 542b\n"),
    );
    assert!(
        response.status == 400 && response.body.contains("rotate_out with _gear"),
        "{}",
        response.body
    );
    post(&sb, &event("delete_application", ""));
    assert_eq!(
        names(&sb.json("/api/v1/rotations"), "rotations", "subject"),
        ["gear:542c"]
    );
}

/// Without `brokers`: nothing is waited for or missing.
#[lab_test]
fn a_dump_is_replayed_where_events_are_only_posted() {
    let lab = Lab::new();
    let _routers = Router::start_all(&lab, &["east-1"]);
    let posted = format!(
        "routing_events: {{ domain: cloud.test }}\n{}clusters: []\n",
        config::WEB_LISTENERS
    );
    let sb = Signalbox::start(&lab, &posted);
    let state = sb.json("/api/v1/routing-events");
    assert_eq!(
        (&state["source"]["connected"], &state["blocked"]),
        (&json!(true), &Value::Null)
    );
    let response = sb.unix("POST", "/api/v1/routing-events/skip", "");
    assert!(
        response.status == 409 && response.body.contains("no message waits"),
        "{}",
        response.body
    );

    let dump = lab.dir().join("dump.yaml");
    let alias = r#"{"action": "add_alias", "app_name": "phpha", "namespace": "demo", "alias": "shop.test"}"#;
    let text = format!(
        "{}{}...\n{alias}\n",
        endpoint("542b", "10.2.0.2:80"),
        event("explode", "")
    );
    std::fs::write(&dump, &text).unwrap();
    let bad = 1 + text.lines().position(|line| line == ":action: :explode").unwrap();
    let replay = |words: &[&str]| {
        let mut all = vec!["events", "replay", dump.to_str().unwrap()];
        all.extend(words);
        let said = sb.cli(&all);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (said.status.code(), text(&said.stdout), text(&said.stderr))
    };
    let (code, stdout, stderr) = replay(&["--dry-run"]);
    assert_eq!(
        stdout, "2 events would be processed, 1 applications would be changed, 1 events would be refused\n",
        "{stderr}"
    );
    assert_eq!((code, &sb.json("/api/v1/applications")["total"]), (Some(1), &json!(0)));
    let (code, stdout, stderr) = replay(&[]);
    assert_eq!(
        (code, stdout.as_str()),
        (
            Some(1),
            "2 events processed, 1 applications changed, 1 events refused\n"
        )
    );
    assert!(
        stderr.starts_with(&format!(
            "{}:{bad}: refused: `action`: expected create_application",
            dump.display()
        )),
        "{stderr}"
    );
    assert!(eventually(SOON, || http::ask(&lab, HTTP, "shop.test").field("host") == "east-1"));
    let (_, stdout, _) = replay(&[]);
    assert_eq!(
        stdout, "2 events processed, 0 applications changed, 1 events refused\n",
        "again it changes nothing"
    );
}

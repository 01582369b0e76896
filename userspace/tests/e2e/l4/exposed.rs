//! Endpoints of applications that speak TCP, as layer-4 services: real clients, while endpoints come and go, over a
//! kill.

use crate::lab;
use crate::sources::applications::post;
use crate::sources::etcd;

use std::collections::BTreeSet;
use std::net::TcpStream;

use lab::services::{echo, greeter, greeting};
use lab::{Lab, SOON, Server, Signalbox, config, eventually, lab_test};
use serde_json::{Value, json};

/// An event of an application of the namespace demo.
fn event(app: &str, action: &str, more: &str) -> String {
    format!("---\n:action: :{action}\n:app_name: {app}\n:namespace: demo\n{more}")
}

fn at(address: &str) -> String {
    let (address, port) = address.rsplit_once(':').unwrap();
    format!(":public_address: '{address}'\n:public_port: {port}\n")
}

/// A gear's database.
fn database(app: &str, gear: &str, address: &str) -> String {
    let more = format!(
        ":gear_id: {gear}\n:public_port_name: mysql-5.1\n{}:protocols: [mysql]\n:types: [database]\n",
        at(address)
    );
    event(app, "add_public_endpoint", &more)
}

fn gone(app: &str, gear: &str, address: &str) -> String {
    event(
        app,
        "remove_public_endpoint",
        &format!(":gear_id: {gear}\n{}", at(address)),
    )
}

fn rules(expose: &str, rest: &str) -> String {
    format!("routing_events: {{ expose: [ {expose} ] }}\nservices: []\nclusters: []\ntimeouts: {{ drain: 3s }}\n{rest}")
}

const FAST: &str = "health: { interval: 500ms, timeout: 500ms, rise: 1 }";

fn application(sb: &Signalbox, app: &str) -> Value {
    sb.json(&format!("/api/v1/applications/demo/{app}"))
}

/// Returns the address of the application's service; empty where it has none.
fn listen(sb: &Signalbox, app: &str) -> String {
    let listen = &application(sb, app)["exposed"][0]["listen"][0];
    listen.as_str().unwrap_or_default().to_owned()
}

fn connect(lab: &Lab, to: &str) -> (TcpStream, String) {
    let stream = lab.client.connect(to);
    let name = greeting(&stream);
    (stream, name)
}

/// Returns whether exactly the wanted endpoints answer at an address in the end.
fn answer(lab: &Lab, to: &str, wanted: &[&str]) -> bool {
    let wanted: BTreeSet<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
    eventually(SOON, || {
        let names: BTreeSet<String> = (0..24).map(|_| connect(lab, to).1).collect();
        names == wanted
    })
}

/// Waits until exactly these hosts share the service's connections.
fn shared_by(sb: &Signalbox, app: &str, hosts: &[&str]) {
    let service = format!("demo/{app}:mysql-5.1");
    let wanted: BTreeSet<&str> = hosts.iter().copied().collect();
    let is_so = || {
        let answer = sb.json("/api/v1/services");
        let services = answer["services"].as_array().cloned().unwrap_or_default();
        let service = services.into_iter().find(|one| one["name"] == *service);
        let all = service
            .and_then(|one| one["hosts"].as_array().cloned())
            .unwrap_or_default();
        let shares: BTreeSet<&str> = all
            .iter()
            .filter(|host| host["share"].as_f64() > Some(0.0) && host["reachable"] == true)
            .filter_map(|host| host["name"].as_str())
            .collect();
        shares == wanted
    };
    assert!(
        eventually(SOON, is_so),
        "{}\n{}",
        sb.json("/api/v1/services"),
        sb.proc.log()
    );
}

fn greeters(lab: &Lab) -> Vec<Server> {
    // Two gears of one node: one address, two ports.
    [
        ("east-1", "[::]:35531", "first"),
        ("east-1", "[::]:35532", "second"),
        ("east-2", "[::]:35531", "third"),
    ]
    .map(|(host, at, name)| greeter(lab.host(host), at, name))
    .into()
}

/// A table that leads to an endpoint too early sends its packets to the service's own port, where nothing listens.
#[lab_test]
fn an_endpoint_gets_nothing_before_its_port_is_known() {
    let lab = Lab::new();
    let _greeters = greeters(&lab);
    let rule = format!("{{ match: \"*\", listen: [\"10.1.0.1:20000-20009\"], {FAST} }}");
    let sb = Signalbox::start(&lab, &rules(&rule, ""));
    post(
        &sb,
        &(database("db", "g1", "10.2.0.2:35531") + &database("db", "g3", "10.2.0.3:35531")),
    );
    shared_by(&sb, "db", &["g1.mysql-5.1", "g3.mysql-5.1"]);
    let here = listen(&sb, "db");
    assert!(answer(&lab, &here, &["first", "third"]));
    for _ in 0..10 {
        post(&sb, &event("db", "stop_gear", ":gear_id: g3\n"));
        assert!(answer(&lab, &here, &["first"]));
        post(&sb, &event("db", "start_gear", ":gear_id: g3\n"));
        // Panics at a connection that is refused.
        assert!(answer(&lab, &here, &["first", "third"]));
    }
}

#[lab_test]
fn an_applications_port_survives_endpoint_changes_and_a_kill() {
    let lab = Lab::new();
    let _greeters = greeters(&lab);
    let body = rules(
        &format!("{{ match: \"*\", listen: [\"10.1.0.1:20000-20009\"], {FAST} }}"),
        "",
    );
    let mut sb = Signalbox::start(&lab, &body);
    post(
        &sb,
        &(database("db", "g1", "10.2.0.2:35531") + &database("db", "g2", "10.2.0.2:35532")),
    );
    shared_by(&sb, "db", &["g1.mysql-5.1", "g2.mysql-5.1"]);
    let here = listen(&sb, "db");
    assert!(here.starts_with("10.1.0.1:2000"), "{here}");
    assert!(answer(&lab, &here, &["first", "second"]));
    let flow = |name: &str| {
        let mut found = (0..64).map(|_| connect(&lab, &here)).filter(|(_, host)| host == name);
        found.next().expect(name).0
    };
    let (first, second) = (flow("first"), flow("second"));

    // A second application comes, and another gear.
    post(
        &sb,
        &(database("other", "g9", "10.2.0.3:35531") + &database("db", "g3", "10.2.0.3:35531")),
    );
    shared_by(&sb, "db", &["g1.mysql-5.1", "g2.mysql-5.1", "g3.mysql-5.1"]);
    shared_by(&sb, "other", &["g9.mysql-5.1"]);
    assert_eq!(listen(&sb, "db"), here);
    let other = listen(&sb, "other");
    assert_ne!(other, here);
    assert!(answer(&lab, &here, &["first", "second", "third"]) && answer(&lab, &other, &["third"]));
    echo(&first, &[7; 5000]).unwrap();

    // Over a kill: flows continue, and clients reach the same hosts as before.
    sb.kill9();
    echo(&second, &[8; 5000]).unwrap();
    sb = Signalbox::start(&lab, &body);
    shared_by(&sb, "db", &["g1.mysql-5.1", "g2.mysql-5.1", "g3.mysql-5.1"]);
    assert_eq!((listen(&sb, "db"), listen(&sb, "other")), (here.clone(), other));
    echo(&first, &[9; 5000]).unwrap();
    let opened = |sb: &Signalbox| sb.metric("signalbox_service_flows_opened_total{service=\"demo/db:mysql-5.1\"}");
    assert!(answer(&lab, &here, &["first", "second", "third"]) && opened(&sb) > 24.0);

    // Status, rotation and a check that fails: each takes a gear out, while its flows continue.
    post(&sb, &event("db", "rotate_out_gear", ":gear_id: g2\n:timeout: 60\n"));
    shared_by(&sb, "db", &["g1.mysql-5.1", "g3.mysql-5.1"]);
    assert!(answer(&lab, &here, &["first", "third"]));
    echo(&second, &[1; 5000]).unwrap();
    post(&sb, &event("db", "stop_gear", ":gear_id: g3\n"));
    assert!(answer(&lab, &here, &["first"]));
    let said = sb.cli(&["explain", &here]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(
        said.contains("service demo/db:mysql-5.1") && said.contains("takes none: it is out of rotation"),
        "{said}"
    );
    post(&sb, &event("db", "rotate_out_application", ":timeout: 60\n"));
    shared_by(&sb, "db", &[]);
    post(
        &sb,
        &(event("db", "rotate_in_application", "") + &event("db", "start_gear", ":gear_id: g3\n")),
    );
    post(&sb, &event("db", "rotate_in_gear", ":gear_id: g2\n"));
    // Until a gear is eligible again, the service refuses connections.
    shared_by(&sb, "db", &["g1.mysql-5.1", "g2.mysql-5.1", "g3.mysql-5.1"]);
    assert!(answer(&lab, &here, &["first", "second", "third"]));
    echo(&first, &[2; 5000]).unwrap();
    echo(&second, &[3; 5000]).unwrap();

    // A gear that is gone drains: its flows end in time, those of the other gear at its address do not.
    post(&sb, &gone("db", "g1", "10.2.0.2:35531"));
    shared_by(&sb, "db", &["g2.mysql-5.1", "g3.mysql-5.1"]);
    assert!(
        eventually(SOON, || echo(&first, &[4; 10]).is_err()),
        "{}",
        sb.proc.log()
    );
    echo(&second, &[5; 5000]).unwrap();
    assert_eq!(listen(&sb, "db"), here);

    post(&sb, &event("db", "delete_application", ""));
    let services = || sb.json("/api/v1/services");
    assert!(eventually(SOON, || services()["ranges"][0]["used"] == 1));
    assert_eq!(services()["ranges"][0]["kept"], 0, "nothing is kept for who is gone");
    assert!(eventually(SOON, || echo(&second, &[6; 10]).is_err()));
}

/// Balancers give the same ports though each learns of applications separately, in another order.
#[lab_test]
fn balancers_that_share_a_table_give_the_same_ports() {
    if !etcd::available("balancers_that_share_a_table_give_the_same_ports") {
        return;
    }
    let lab = Lab::new();
    let server = etcd::spawn(&lab);
    etcd::wait_up(&lab, &server);
    let body = |path: &str, address: &str| {
        let rule = format!("{{ match: \"*\", listen: [\"{address}:3306\"], {FAST} }}");
        let path = lab.dir().join(path);
        let store = format!(
            "store: {{ path: {}, etcd: {{ endpoints: [\"{}\"] }} }}\n",
            path.display(),
            etcd::CLIENT
        );
        rules(&rule, &store)
    };
    let first = Signalbox::start(&lab, &body("first.redb", "10.1.0.1"));
    let second = lab.dir().join("second.yaml");
    let socket = lab.dir().join("second.sock");
    let rest = body("second.redb", "10.2.0.4");
    let text = format!("version: 1\nadmin: {{ socket: {} }}\n{rest}", socket.display());
    std::fs::write(&second, text).unwrap();
    let mut command = lab.host("east-3").command(lab::signalbox::binary());
    command.arg("run").arg("-f").arg(&second);
    let other = lab::Proc::spawn("second", command, lab.dir());
    let curl = |words: &[&str]| {
        let mut all = vec!["curl", "-s", "--unix-socket", socket.to_str().unwrap()];
        all.extend(words);
        let said = lab.host("east-3").output(&all);
        serde_json::from_slice::<Value>(&said.stdout).unwrap_or_default()
    };
    let api = "http://signalbox/api/v1";
    assert!(
        eventually(SOON, || curl(&[&format!("{api}/status")])["ready"] == true),
        "{}",
        other.log()
    );
    let tell = |text: &str| {
        let said = curl(&["--data-binary", text, &format!("{api}/routing-events")]);
        assert_eq!(said["outcome"]["changed"].as_array().map(Vec::len), Some(1), "{said}");
    };
    let there = |app: &str| curl(&[&format!("{api}/applications/demo/{app}")])["exposed"][0].clone();

    let (late, early) = (
        database("a", "g1", "10.2.0.2:35531"),
        database("z", "g2", "10.2.0.2:35532"),
    );
    post(&first, &early);
    assert!(eventually(SOON, || listen(&first, "z") == "10.1.0.1:3306"));
    // The second has not heard of the application yet, but knows that the port is taken.
    let kept = || curl(&[&format!("{api}/services")])["ranges"][0]["kept"] == 1;
    assert!(eventually(SOON, kept), "{}", other.log());
    tell(&late);
    assert!(eventually(SOON, || there("a")["reason"].is_string()));
    let reason = there("a")["reason"].clone();
    assert!(
        reason
            .as_str()
            .unwrap()
            .contains("kept for port names that applications had"),
        "{reason}"
    );
    tell(&early);
    assert!(eventually(SOON, || there("z")["listen"] == json!(["10.2.0.4:3306"])));
    post(&first, &late);
    assert!(eventually(SOON, || application(&first, "a")["exposed"][0]["reason"].is_string()));
    assert_eq!(listen(&first, "z"), "10.1.0.1:3306");

    // An application that is gone everywhere leaves its port to the other.
    let gone = event("z", "delete_application", "");
    post(&first, &gone);
    tell(&gone);
    let both = || listen(&first, "a") == "10.1.0.1:3306" && there("a")["listen"] == json!(["10.2.0.4:3306"]);
    assert!(
        eventually(SOON, both),
        "{}\n{}",
        there("a"),
        first.json("/api/v1/services")
    );
}

#[lab_test]
fn an_application_without_a_port_is_shown_and_harms_no_other() {
    let lab = Lab::new();
    let _greeters = greeters(&lab);
    let body = |expose: &str, services: &str| {
        format!(
            "routing_events: {{ expose: [ {expose} ] }}\n{}services: [ {services} ]\nclusters:\n{}",
            config::WEB_LISTENERS,
            config::cluster("east", &[], &["east-1"])
        )
    };
    let small = format!(
        "{{ match: \"demo/fixed\", listen: [\"10.1.0.1:3306\"], {FAST} }}, {{ match: \"*\", listen: [\"10.1.0.1:80-82\"], {FAST} }}"
    );
    let taken = "{ name: db, protocol: tcp, listen: [\"10.1.0.1:3306\"], cluster: east }";
    let sb = Signalbox::start(&lab, &body(&small, taken));
    let log = sb.proc.log();
    assert!(log.contains("service db has port 3306"), "{log}");
    let all: String = ["a", "b", "c", "fixed"]
        .map(|app| database(app, &format!("g-{app}"), "10.2.0.2:35531"))
        .concat();
    post(&sb, &all);
    let exposed = |sb: &Signalbox| {
        let apps = ["a", "b", "c"];
        let served = apps.iter().filter(|app| listen(sb, app).starts_with("10.1.0.1:8"));
        served.map(|app| (*app).to_owned()).collect::<Vec<_>>()
    };
    assert!(
        eventually(SOON, || exposed(&sb).len() == 2),
        "{}",
        sb.json("/api/v1/services")
    );
    let first = exposed(&sb);
    for app in &first {
        shared_by(&sb, app, &[&format!("g-{app}.mysql-5.1")]);
        assert!(answer(&lab, &listen(&sb, app), &["first"]));
    }
    let loser = ["a", "b", "c"]
        .into_iter()
        .find(|app| !first.contains(&(*app).to_owned()))
        .unwrap();
    let reason = application(&sb, loser)["exposed"][0]["reason"].clone();
    assert!(
        reason
            .as_str()
            .unwrap()
            .starts_with("all 2 ports of 10.1.0.1:80-82 are given: widen the range"),
        "{reason}"
    );
    let reason = application(&sb, "fixed")["exposed"][0]["reason"].clone();
    assert!(
        reason
            .as_str()
            .unwrap()
            .starts_with("service db of the configuration has 10.1.0.1:3306"),
        "{reason}"
    );
    let text = String::from_utf8(sb.cli(&["services"]).stdout).unwrap();
    assert!(
        text.contains(&format!("! demo/{loser}:mysql-5.1 is not exposed: all 2 ports"))
            && text.contains("! port 80 of 10.1.0.1:80-82 is not exposed: listener"),
        "{text}"
    );
    let text = String::from_utf8(sb.cli(&["applications"]).stdout).unwrap();
    assert!(
        text.contains(&listen(&sb, &first[0])) && text.contains("demo/fixed:mysql-5.1"),
        "{text}"
    );
    let metric = |sb: &Signalbox, what: &str| sb.metric(&format!("signalbox_expose_{what}"));
    assert_eq!(metric(&sb, "waiting{listen=\"10.1.0.1:80-82\"}") as u64, 1);
    assert_eq!(
        metric(&sb, "ports{listen=\"10.1.0.1:80-82\",state=\"taken\"}") as u64,
        1
    );
    let said = sb.cli(&["explain", "10.1.0.1:80"]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(
        said.contains("of the configuration has it, so that no application"),
        "{said}"
    );

    // The port of the file's service is free, and the range has room: no port changes, and all are served.
    let wide = small.replace("80-82", "80-89");
    let before: Vec<String> = first.iter().map(|app| listen(&sb, app)).collect();
    sb.reload(&body(&wide, ""));
    assert!(eventually(SOON, || exposed(&sb).len() == 3
        && listen(&sb, "fixed") == "10.1.0.1:3306"));
    assert_eq!(first.iter().map(|app| listen(&sb, app)).collect::<Vec<_>>(), before);
    shared_by(&sb, "fixed", &["g-fixed.mysql-5.1"]);
    assert!(answer(&lab, "10.1.0.1:3306", &["first"]));
    assert_eq!(sb.json("/api/v1/services")["not_exposed"], json!([]));
    let answer = sb.json("/api/v1/explain?host=10.1.0.1:3306");
    assert_eq!(answer["application"], "demo/fixed");
}

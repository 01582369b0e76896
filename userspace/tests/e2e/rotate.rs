//! Rotation: out and in under load, in parallel, against clients that stay, across a killed process.

use crate::lab;

use std::io::Read;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lab::cut::{self, Hosts};
use lab::{Lab, Router, SOON, Signalbox, config, eventually, http, privileged, servers};
use serde_json::{Value, json};

const HTTP: &str = "10.1.0.1:80";
const TCP: &str = "10.1.0.1:3306";
const EAST: [&str; 3] = ["east-1", "east-2", "east-3"];

fn web() -> String {
    config::web(&[
        "{ host: a.test, clusters: { east: 1 } }",
        "{ host: b.test, clusters: { west: 1 } }",
    ])
}

fn start(body: &str) -> (cut::CutLab, Vec<Router>, Signalbox) {
    let lab = cut::lab();
    let routers = Router::start_all(&lab, &["east-1", "east-2", "east-3", "west-1", "west-2"]);
    let sb = Signalbox::start(&lab, body);
    sb.wait_healthy(&["east-1", "east-2", "east-3", "west-1", "west-2"]);
    (lab, routers, sb)
}

/// Asks the API for a rotation: status and answer.
fn rotate(sb: &Signalbox, body: &Value) -> (u16, Value) {
    let response = sb.unix("POST", "/api/v1/rotations", &body.to_string());
    (response.status, serde_json::from_str(&response.body).unwrap())
}

fn out(sb: &Signalbox, name: &str, timeout: f64) -> u64 {
    let (status, answer) = rotate(sb, &json!({ "action": "out", "names": [name], "timeout": timeout }));
    assert!(matches!(status, 200 | 202), "{answer}");
    answer["job"]["id"].as_u64().unwrap()
}

fn job(sb: &Signalbox, id: u64) -> Value {
    sb.json(&format!("/api/v1/jobs/{id}"))["job"].clone()
}

fn done(sb: &Signalbox, id: u64) -> Value {
    assert!(eventually(SOON, || !job(sb, id)["ended"].is_null()), "{}", job(sb, id));
    job(sb, id)
}

/// The signalbox command, which must succeed.
fn cli(sb: &Signalbox, words: &[&str]) -> String {
    let output = sb.cli(words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn refusal(sb: &Signalbox, words: &[&str]) -> String {
    let output = sb.cli(words);
    assert!(!output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Returns the hosts that answer a few requests.
fn homes(lab: &Lab, name: &str) -> std::collections::BTreeSet<String> {
    (0..12).map(|_| http::ask(lab, HTTP, name).field("host")).collect()
}

#[test]
fn out_and_in_under_load_and_no_request_fails() {
    if !privileged("out_and_in_under_load_and_no_request_fails") {
        return;
    }
    let (lab, _routers, sb) = start(&web());
    let (stop, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let failures: Vec<String> = std::thread::scope(|scope| {
        let callers = [(), ()].map(|()| {
            scope.spawn(|| {
                lab.client.run(|| {
                    let mut failures = Vec::new();
                    while !stop.load(Ordering::SeqCst) {
                        failures.extend(http::ask_here(HTTP, "a.test").err());
                        calls.fetch_add(1, Ordering::SeqCst);
                    }
                    failures
                })
            })
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for host in EAST.iter().cycle().take(9) {
                let said = cli(&sb, &["rotate", "out", host]);
                assert_eq!(said.trim(), format!("out of rotation: host:east/{host}"));
                assert_eq!(
                    sb.host(host)["active_connections"],
                    0,
                    "it returns when nothing is left"
                );
                let total = sb.host(host)["total_connections"].clone();
                let before = calls.load(Ordering::SeqCst);
                assert!(eventually(SOON, || calls.load(Ordering::SeqCst) > before + 50));
                assert_eq!(sb.host(host)["total_connections"], total, "nothing new reaches {host}");
                cli(&sb, &["rotate", "in", host]);
                assert!(
                    eventually(SOON, || sb.host(host)["total_connections"] != total),
                    "{host} is in again"
                );
            }
        }));
        stop.store(true, Ordering::SeqCst);
        let failures = callers.into_iter().flat_map(|c| c.join().unwrap()).collect();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        failures
    });
    let calls = calls.load(Ordering::SeqCst);
    assert!(
        failures.is_empty(),
        "{} of {calls} failed, the first: {}",
        failures.len(),
        failures[0]
    );
    assert_eq!(sb.json("/api/v1/rotations")["rotations"], json!([]));
}

#[test]
fn hosts_clusters_applications_and_who_may_not_go() {
    if !privileged("hosts_clusters_applications_and_who_may_not_go") {
        return;
    }
    let (lab, _routers, sb) = start(&web());
    // Several at once are one job.
    cli(&sb, &["rotate", "out", "east-1", "east/east-2"]);
    assert_eq!(homes(&lab, "a.test"), ["east-3".to_owned()].into());
    assert_eq!(sb.host("east-1")["out_of_rotation"], "host:east/east-1");
    assert!(cli(&sb, &["hosts"]).contains("healthy, out of rotation"));
    let listed = cli(&sb, &["rotate", "list"]);
    assert!(
        listed.contains("host:east/east-1") && listed.contains("host:east/east-2"),
        "{listed}"
    );

    // The last of an application.
    for last in ["east-3", "east", "cluster:west"] {
        let why = refusal(&sb, &["rotate", "out", last]);
        assert!(
            why.contains(".test would be left without a host") && why.contains("--force"),
            "{why}"
        );
    }
    assert_eq!(
        homes(&lab, "a.test"),
        ["east-3".to_owned()].into(),
        "a refusal changes nothing"
    );
    cli(&sb, &["rotate", "out", "east", "--force"]);
    assert_eq!(http::ask(&lab, HTTP, "a.test").status, 503);
    let why = refusal(&sb, &["rotate", "in", "east-3"]);
    assert!(why.contains("is out because cluster:east is"), "{why}");
    cli(&sb, &["rotate", "in", "east"]);
    assert_eq!(
        homes(&lab, "a.test"),
        ["east-3".to_owned()].into(),
        "each is in when it is taken in itself"
    );
    cli(&sb, &["rotate", "in", "host:east/east-2", "east-1"]);
    assert!(eventually(SOON, || homes(&lab, "a.test").len() == 3));

    // An application, while another goes on.
    cli(&sb, &["rotate", "out", "B.test"]);
    assert_eq!(http::ask(&lab, HTTP, "b.test").status, 503);
    assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200);
    cli(&sb, &["rotate", "in", "application:b.test"]);
    assert_eq!(http::ask(&lab, HTTP, "b.test").status, 200);

    for (words, part) in [
        (
            &["rotate", "out", "nobody"][..],
            "there is no host, cluster, application or gear \"nobody\"",
        ),
        (&["rotate", "in", "east-1"], "is not out of rotation"),
        (&["rotate", "cancel", "7"], "there is no job 7"),
    ] {
        let why = refusal(&sb, words);
        assert!(why.contains(part), "{why}");
    }
    for (body, part) in [
        ("{", "expected for example"),
        (r#"{"action":"out","names":["x"],"timeout":-1}"#, "0 to 86400"),
    ] {
        let response = sb.unix("POST", "/api/v1/rotations", body);
        assert!(
            response.status == 400 && response.body.contains(part),
            "{}",
            response.body
        );
    }
    let over_tcp = sb.admin("POST", "/api/v1/rotations", r#"{"action":"out","names":["east-1"]}"#);
    assert_eq!(over_tcp.status, 403);
}

/// A connection that stays, and the host's end of it.
fn stubborn(lab: &Lab, hosts: &Hosts) -> (TcpStream, std::sync::Arc<TcpStream>) {
    let client = lab.client.connect(TCP);
    let host = hosts.accept("east-1", 3306);
    lab::tiers::ping(&client, &host);
    lab::tiers::ping(&host, &client);
    (client, host)
}

fn is_reset(stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(SOON)).unwrap();
    (&*stream)
        .read(&mut [0; 8])
        .is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset)
}

#[test]
fn who_stays_is_closed_at_the_deadline_on_every_tier() {
    if !privileged("who_stays_is_closed_at_the_deadline_on_every_tier") {
        return;
    }
    for datapath in ["{ cut: auto }", "{ cut: off }", "{ tier: sockmap }"] {
        let lab = cut::lab();
        let hosts = Hosts::start(&lab);
        let _health = ["east-1", "east-2"].map(|host| servers::healthy(lab.host(host)));
        let sb = Signalbox::start(&lab, &config::tcp(&format!("datapath: {datapath}"), &["east-1"]));
        sb.wait_healthy(&["east-1"]);
        let flows = [(); 3].map(|()| stubborn(&lab, &hosts));
        let id = out_forced(&sb, "east-1", 1.5);
        let view = job(&sb, id);
        assert_eq!(view["waits_for"], json!({ "east/east-1": 3 }), "{datapath}: {view}");
        assert_eq!(view["progress"], "draining");
        for (client, host) in &flows {
            lab::tiers::ping(client, host);
        }
        // The first flow ends by itself, the others are closed.
        cut::finish(&flows[0].0, &flows[0].1);
        let view = done(&sb, id);
        assert_eq!(view["closed_connections"], 2, "{datapath}: {view}");
        for (client, host) in &flows[1..] {
            assert!(is_reset(client) && is_reset(host), "{datapath}: both ends are told");
        }
        assert_eq!(sb.host("east-1")["active_connections"], 0);
        let closed = "signalbox_connections_closed_total{cluster=\"east\",reason=\"drained\"}";
        assert_eq!(sb.metric(closed), 2.0, "{datapath}");
    }
}

fn out_forced(sb: &Signalbox, name: &str, timeout: f64) -> u64 {
    let body = json!({ "action": "out", "names": [name], "timeout": timeout, "force": true });
    let (status, answer) = rotate(sb, &body);
    assert_eq!(status, 202, "{answer}");
    answer["job"]["id"].as_u64().unwrap()
}

#[test]
fn a_killed_balancer_comes_back_with_the_rotation_and_the_drain_goes_on() {
    if !privileged("a_killed_balancer_comes_back_with_the_rotation_and_the_drain_goes_on") {
        return;
    }
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_server, others) = servers::hand_over(lab.host("east-2"), cut::BACKEND);
    let _health = ["east-1", "east-2"].map(|host| servers::healthy(lab.host(host)));
    let body = config::tcp("", &["east-1", "east-2"]);
    let mut sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1", "east-2"]);
    // Turn by turn.
    let clients = [(); 2].map(|()| lab.client.connect(TCP));
    let host = hosts.accept("east-1", 3306);
    let _other = others.recv_timeout(SOON).unwrap();
    let client = clients
        .iter()
        .find(|client| client.local_addr().unwrap() == host_of(&sb, "east-1"))
        .unwrap();
    lab::tiers::ping(client, &host);
    cut::expect_cut(&sb, client);

    let id = out(&sb, "east-1", 6.0);
    assert_eq!(job(&sb, id)["remaining_connections"], 1);
    sb.kill9();
    sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1", "east-2"]);
    assert_eq!(sb.host("east-1")["out_of_rotation"], "host:east/east-1");
    let view = job(&sb, id);
    assert_eq!(
        (&view["progress"], &view["remaining_connections"]),
        (&json!("draining"), &json!(1)),
        "{view}"
    );
    lab::tiers::ping(client, &host);
    let new: Vec<_> = (0..4).map(|_| lab.client.connect(TCP)).collect();
    for _ in &new {
        others.recv_timeout(SOON).unwrap();
    }
    assert!(hosts.next("east-1", 3306).is_none());
    assert_eq!(done(&sb, id)["closed_connections"], 1);
    assert!(is_reset(client) && is_reset(&host));

    // A successor knows it from the beginning; one that is started later, too; and in is in.
    let next = Signalbox::start_with(&lab, &body, &["--takeover"]);
    next.wait_healthy(&["east-2"]);
    assert_eq!(next.host("east-1")["out_of_rotation"], "host:east/east-1");
    // The predecessor answers until the successor does, and has let go of the file already.
    assert!(eventually(SOON, || next
        .cli(&["rotate", "in", "east-1"])
        .status
        .success()));
    drop(sb);
    drop(next);
    let last = Signalbox::start(&lab, &body);
    last.wait_healthy(&["east-1", "east-2"]);
    assert_eq!(last.host("east-1")["out_of_rotation"], Value::Null);
}

/// The client of the flow to a host.
fn host_of(sb: &Signalbox, host: &str) -> std::net::SocketAddr {
    let flows = sb.flows(&format!("host={host}"));
    flows[0]["client"].as_str().unwrap().parse().unwrap()
}

#[test]
fn twenty_hosts_in_parallel_each_with_flows_of_its_own() {
    if !privileged("twenty_hosts_in_parallel_each_with_flows_of_its_own") {
        return;
    }
    let lab = cut::lab();
    let names: Vec<String> = (0..21).map(|n| format!("h{n}")).collect();
    let entries: Vec<_> = (0..21)
        .map(|n| format!("{{ name: h{n}, address: 10.2.0.2, tcp: {} }}", 4000 + n))
        .collect();
    let servers: Vec<_> = (0..21)
        .map(|n| servers::hand_over(lab.host("east-1"), &format!("[::]:{}", 4000 + n)))
        .collect();
    let listener = "{ name: tcp, protocol: tcp, listen: [\"10.1.0.1:3306\"], cluster: east }";
    let keys = [
        "balance: round-robin",
        "health: { tcp: {}, interval: 2s, timeout: 1s, rise: 1, fall: 1 }",
    ];
    let east = config::cluster_of("east", &keys, &entries);
    let sb = Signalbox::start(&lab, &format!("listeners:\n  - {listener}\nclusters:\n{east}"));
    let all: Vec<_> = names.iter().map(String::as_str).collect();
    sb.wait_healthy(&all);
    let hang_up = || {
        servers
            .iter()
            .for_each(|(_, receiver)| while receiver.try_recv().is_ok() {});
    };
    let clients: Vec<_> = (0..42).map(|_| lab.client.connect(TCP)).collect();
    assert!(eventually(SOON, || sb.flow_count() == 42));
    let mut words = vec!["rotate", "out", "--no-wait", "--timeout", "60"];
    words.extend(&all[..20]);
    let said = cli(&sb, &words);
    let id: u64 = said.trim().strip_prefix("job ").unwrap().parse().unwrap();
    assert_eq!(job(&sb, id)["remaining_connections"], 40);
    let why = refusal(&sb, &["rotate", "out", "h20"]);
    assert!(why.contains("listener tcp would be left without"), "{why}");
    let new = lab.client.connect(TCP);
    assert!(eventually(SOON, || sb.host("h20")["active_connections"] == 3));
    drop((clients, new));
    hang_up();
    let view = done(&sb, id);
    assert_eq!(
        (&view["progress"], &view["closed_connections"]),
        (&json!("done"), &json!(0)),
        "{view}"
    );

    // Called off: what it had taken out is in again, and nobody is closed.
    cli(&sb, &["rotate", "in", "h0"]);
    let stays: Vec<_> = (0..4).map(|_| lab.client.connect(TCP)).collect();
    assert!(eventually(SOON, || sb.host("h0")["active_connections"] == 2));
    let id = out(&sb, "h0", 2.0);
    let said = cli(&sb, &["rotate", "cancel", &id.to_string()]);
    assert_eq!(said.trim(), "called off: host:east/h0");
    assert_eq!(sb.host("h0")["out_of_rotation"], Value::Null);
    assert!(!eventually(
        Duration::from_secs(3),
        || sb.host("h0")["active_connections"] != 2
    ));
    assert_eq!(job(&sb, id)["progress"], "cancelled");
    drop(stays);
}

#[test]
fn what_cannot_be_remembered_is_refused_and_traffic_goes_on() {
    if !privileged("what_cannot_be_remembered_is_refused_and_traffic_goes_on") {
        return;
    }
    let lab = cut::lab();
    let _router = Router::start(&lab, "east-1");
    let file = lab.dir().join("state.redb");
    std::fs::write(&file, "somebody's letter").unwrap();
    let east = config::cluster("east", &[], &["east-1"]);
    let body = format!(
        "{}clusters:\n{east}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::WEB_LISTENERS
    );
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1"]);
    assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200);
    let (status, answer) = rotate(&sb, &json!({ "action": "out", "names": ["east-1"], "force": true }));
    let detail = answer["detail"].as_str().unwrap();
    assert!(
        status == 503 && detail.contains("state.redb") && detail.contains("move it away"),
        "{answer}"
    );
    let weights = sb.unix("PUT", "/api/v1/routes/a.test", r#"{"clusters":{"east":7}}"#);
    assert!(
        weights.status == 422 && weights.body.contains("move it away"),
        "{}",
        weights.body
    );
    assert_eq!(sb.host("east-1")["out_of_rotation"], Value::Null);
    assert_eq!(std::fs::read(&file).unwrap(), b"somebody's letter");
    assert!(sb.get("/readyz?verbose").1.contains("[~] store:"));
    // Mended while it runs.
    std::fs::remove_file(&file).unwrap();
    assert_eq!(
        sb.unix("PUT", "/api/v1/routes/a.test", r#"{"clusters":{"east":7}}"#)
            .status,
        200
    );
}

#[test]
fn weights_that_an_operator_sets_survive_kills_and_edits_of_the_file_until_they_are_taken_back() {
    if !privileged("weights_that_an_operator_sets_survive_kills_and_edits_of_the_file_until_they_are_taken_back") {
        return;
    }
    let lab = cut::lab();
    let routes = |weight: u32| {
        let a = format!("{{ host: a.test, clusters: {{ east: {weight}, west: 1 }} }}");
        config::web(&[&a, "{ host: b.test, clusters: { east: 1, west: 1 } }"])
    };
    let weights = |sb: &Signalbox, host: &str| {
        let routes = sb.json("/api/v1/routes");
        let all = routes["routes"].as_array().unwrap();
        let route = all.iter().find(|route| route["host"] == host).unwrap();
        let clusters = route["clusters"].as_array().unwrap();
        let one = |cluster: &Value| {
            (
                cluster["name"].as_str().unwrap().to_owned(),
                cluster["weight"].as_u64().unwrap(),
            )
        };
        clusters.iter().map(one).collect::<Vec<_>>()
    };
    let pair = |east, west| vec![("east".to_owned(), east), ("west".to_owned(), west)];
    let mut sb = Signalbox::start(&lab, &routes(1));
    let tried = cli(&sb, &["weight", "a.test", "east=9", "west=0", "--dry-run"]);
    assert!(tried.contains("a.test") && tried.contains("west:0"), "{tried}");
    assert_eq!(weights(&sb, "a.test"), pair(1, 1), "tried only");
    cli(&sb, &["weight", "a.test", "east=9", "west=0"]);
    for _ in 0..2 {
        sb.kill9();
        sb = Signalbox::start(&lab, &routes(1));
        assert_eq!(weights(&sb, "a.test"), pair(9, 0));
    }
    sb.reload(&routes(2));
    assert_eq!(weights(&sb, "a.test"), pair(9, 0), "the file was edited");
    sb.kill9();
    sb = Signalbox::start(&lab, &routes(3));
    assert_eq!(weights(&sb, "a.test"), pair(9, 0), "and edited while nobody was there");

    // Weights of a file change all or none.
    let file = lab.dir().join("weights");
    std::fs::write(&file, "a.test east=1 west=3\nb.test east=5 elsewhere=5\n").unwrap();
    let file = file.to_str().unwrap();
    let why = refusal(&sb, &["weight", "--file", file]);
    assert!(why.contains("there is no cluster elsewhere"), "{why}");
    assert_eq!(weights(&sb, "a.test"), pair(9, 0));
    std::fs::write(file, "a.test east=1 west=3\nb.test east=5 west=6 # and this one\n").unwrap();
    cli(&sb, &["weight", "--file", file]);
    assert_eq!(
        (weights(&sb, "a.test"), weights(&sb, "b.test")),
        (pair(1, 3), pair(5, 6))
    );
    for (words, why) in [
        (&["a.test", "east=0", "west=0"][..], "above 0"),
        (&["c.test", "east=1"], "there is no route c.test"),
    ] {
        let said = refusal(&sb, &[&["weight"], words].concat());
        assert!(said.contains(why), "{said}");
    }
    let explained = cli(&sb, &["explain", "a.test"]);
    assert!(explained.contains("weights set by API"), "{explained}");

    cli(&sb, &["weight", "a.test", "--clear"]);
    assert_eq!(
        (weights(&sb, "a.test"), weights(&sb, "b.test")),
        (pair(3, 1), pair(5, 6))
    );
    sb.kill9();
    sb = Signalbox::start(&lab, &routes(3));
    assert_eq!(
        (weights(&sb, "a.test"), weights(&sb, "b.test")),
        (pair(3, 1), pair(5, 6))
    );
}

/// An authority, and certificates that it has signed, in the lab's directory.
fn certify(lab: &Lab) {
    let script = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=lab -keyout ca.key -out ca.pem \
         -addext basicConstraints=critical,CA:TRUE -addext keyUsage=keyCertSign\n\
         sign() { openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=$1 -keyout $1.key -out $1.csr\n\
         echo subjectAltName=IP:10.2.0.4 > $1.ext\n\
         openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile $1.ext -out $1.pem; }\n\
         sign second; sign first\n\
         openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=other -keyout other.key -out other.pem";
    let output = std::process::Command::new("sh")
        .args(["-ec", script])
        .current_dir(lab.dir())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_set_of_balancers_rotates_together_or_says_who_did_not() {
    if !privileged("a_set_of_balancers_rotates_together_or_says_who_did_not") {
        return;
    }
    let lab = cut::lab();
    certify(&lab);
    let _routers = Router::start_all(&lab, &["east-1", "east-2"]);
    let dir = lab.dir().display();
    let clusters = format!(
        "clusters:\n{}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::cluster("east", &[], &["east-1", "east-2"])
    );
    // The second is a machine of its own; who may change something there shows a certificate.
    let second = lab.dir().join("second.yaml");
    let text = format!(
        "version: 1\nadmin: {{ listen: \"10.2.0.4:8089\", socket: {dir}/second.sock, \
         tls: {{ cert: {dir}/second.pem, key: {dir}/second.key, client_ca: {dir}/ca.pem }} }}\n\
         store: {{ path: {dir}/second.redb }}\nlisteners:\n  - {{ name: http, protocol: http, listen: [\"10.2.0.4:8080\"] }}\n{clusters}"
    );
    std::fs::write(&second, text).unwrap();
    let spawn = || {
        let mut command = lab.host("east-3").command(crate::lab::signalbox::binary());
        command.arg("run").arg("-f").arg(&second);
        lab::Proc::spawn("second", command, lab.dir())
    };
    let mut other = spawn();
    let curl = |words: &[&str]| {
        let mut all = vec!["curl", "-s", "--cacert", "ca.pem"];
        all.extend(words);
        let mut command = lab.lb.command(all[0]);
        command.args(&all[1..]).current_dir(lab.dir());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let url = "https://10.2.0.4:8089";
    let hosts = format!("{url}/api/v1/hosts");
    let there = || {
        let hosts: Value = serde_json::from_str(&curl(&[&hosts])).unwrap_or_default();
        lab::signalbox::find(&hosts["hosts"], "name", "east-1")
    };
    assert!(eventually(SOON, || there()["health"] == "healthy"), "{}", other.log());

    let set = format!(
        "balancers:\n  - {{ url: \"{url}\", ca: {dir}/ca.pem, cert: {dir}/first.pem, key: {dir}/first.key }}\n"
    );
    let sb = Signalbox::start(&lab, &format!("{set}{}{clusters}", config::WEB_LISTENERS));
    sb.wait_healthy(&["east-1", "east-2"]);
    let said = cli(&sb, &["rotate", "out", "east-1", "--all-balancers"]);
    assert!(
        said.contains(url) && said.matches("out of rotation: host:east/east-1").count() == 2,
        "{said}"
    );
    assert_eq!(sb.host("east-1")["out_of_rotation"], "host:east/east-1");
    assert_eq!(there()["out_of_rotation"], "host:east/east-1");
    cli(&sb, &["rotate", "in", "east-1", "--all-balancers"]);
    assert_eq!(there()["out_of_rotation"], Value::Null);

    // Without a certificate, and with one that nobody has signed.
    let post = ["-o", "/dev/null", "-w", "%{http_code}", "-X", "POST", "-d", "{}"];
    let reload = format!("{url}/api/v1/reload");
    let code = |more: &[&str]| curl(&[&post[..], more, &[&reload]].concat());
    assert_eq!(code(&[]), "403");
    assert_eq!(code(&["--cert", "first.pem", "--key", "first.key"]), "200");
    assert_eq!(
        code(&["--cert", "other.pem", "--key", "other.key"]),
        "000",
        "the handshake fails"
    );

    // A balancer that does not answer is named; the rotation is done here.
    other.kill();
    let why = refusal(&sb, &["rotate", "out", "east-1", "--all-balancers"]);
    assert!(why.contains(url) && why.contains("does not answer"), "{why}");
    assert_eq!(sb.host("east-1")["out_of_rotation"], "host:east/east-1");
    other = spawn();
    assert!(eventually(SOON, || there()["health"] == "healthy"), "{}", other.log());
    assert_eq!(there()["out_of_rotation"], Value::Null);
    cli(&sb, &["rotate", "out", "east-1", "--all-balancers"]);
    assert_eq!(
        there()["out_of_rotation"],
        "host:east/east-1",
        "asked again, all have done it"
    );
    // A balancer that refuses is named as well.
    let why = refusal(&sb, &["rotate", "out", "east-2", "--all-balancers"]);
    assert!(why.contains(url) && why.contains("would be left without"), "{why}");
}

#[test]
fn a_configuration_put_by_api_survives_a_kill_until_the_file_says_something_else() {
    if !privileged("a_configuration_put_by_api_survives_a_kill_until_the_file_says_something_else") {
        return;
    }
    let lab = cut::lab();
    let body = |weight: u32| config::web(&[&format!("{{ host: a.test, clusters: {{ east: {weight} }} }}")]);
    let weight = |sb: &Signalbox| sb.json("/api/v1/routes")["routes"][0]["clusters"][0]["weight"].clone();
    let put = |sb: &Signalbox, text: &str| sb.unix("PUT", "/api/v1/config", &sb.document(text)).status;
    let mut sb = Signalbox::start(&lab, &body(1));
    assert_eq!(put(&sb, &body(7)), 200);
    assert_eq!(
        sb.unix("PUT", "/api/v1/routes/a.test", r#"{"clusters":{"east":9}}"#)
            .status,
        200
    );
    for _ in 0..2 {
        sb.kill9();
        sb = Signalbox::start(&lab, &body(1));
        assert_eq!(weight(&sb), 9, "with the weights that were set since");
    }
    // A refused one leaves the last good one.
    assert_eq!(put(&sb, &body(700)), 422);
    let taken = body(8).replace("10.1.0.1:80", "10.1.0.1:22222");
    let holder = lab.lb.listen("10.1.0.1:22222");
    assert_eq!(put(&sb, &taken), 422);
    drop(holder);
    sb.kill9();
    sb = Signalbox::start(&lab, &body(1));
    assert_eq!(weight(&sb), 9);
    cli(&sb, &["weight", "a.test", "--clear"]);
    assert_eq!(weight(&sb), 7);
    // Read again on request, the file counts; and it does when it has changed.
    assert_eq!(sb.unix("POST", "/api/v1/reload", "").status, 200);
    assert_eq!(weight(&sb), 1);
    sb.kill9();
    sb = Signalbox::start(&lab, &body(1));
    assert_eq!(weight(&sb), 1);
    assert_eq!(put(&sb, &body(7)), 200);
    sb.kill9();
    sb = Signalbox::start(&lab, &body(2));
    assert_eq!(weight(&sb), 2);
}

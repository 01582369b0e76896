//! Layer-4 services with real connections: both families, both protocols, while hosts come and go, while signalbox is
//! killed.

use crate::lab;

use std::collections::BTreeMap;
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use lab::services::{Answerer, ask, echo, greeter, greeting, udp};
use lab::{Lab, SOON, Server, Signalbox, eventually, lab_test};
use serde_json::json;

const EAST: [(&str, &str, &str); 3] = [
    ("east-1", "10.2.0.2", "fd00:2::2"),
    ("east-2", "10.2.0.3", "fd00:2::3"),
    ("east-3", "10.2.0.4", "fd00:2::6"),
];

/// A cluster with these hosts, both families, and services on 3306 (TCP) and 53 (UDP).
fn body(hosts: &[&str]) -> String {
    let mut list = String::new();
    for (name, v4, v6) in EAST.iter().filter(|(name, ..)| hosts.contains(name)) {
        list += &format!("      - {{ name: {name}, address: {v4}, ports: {{ dns: 5353 }} }}\n");
        list += &format!("      - {{ name: {name}-v6, address: \"{v6}\", ports: {{ dns: 5353 }} }}\n");
    }
    format!(
        r#"services:
  - {{ name: db, protocol: tcp, listen: ["10.1.0.1:3306", "[fd00:1::1]:3306"], cluster: east }}
  - {{ name: dns, protocol: udp, listen: ["10.1.0.1:53", "[fd00:1::1]:53"], cluster: east, affinity: source, idle: 2s }}
timeouts: {{ drain: 3s }}
clusters:
  - name: east
    health: {{ tcp: {{ port: 3306 }}, interval: 1s, fast_interval: 300ms, timeout: 1s, rise: 1, fall: 2 }}
    hosts:
{list}"#
    )
}

struct Hosts {
    tcp: BTreeMap<&'static str, Server>,
    _udp: Vec<Answerer>,
}

fn start() -> (Lab, Hosts, Signalbox) {
    let lab = Lab::new();
    let mut hosts = Hosts {
        tcp: BTreeMap::new(),
        _udp: Vec::new(),
    };
    for (name, ..) in EAST {
        hosts.tcp.insert(name, greeter(lab.host(name), "[::]:3306", name));
        hosts._udp.push(Answerer::start(lab.host(name), "[::]:5353", name));
    }
    let sb = Signalbox::start(&lab, &body(&["east-1", "east-2", "east-3"]));
    sb.wait_healthy(&["east-1", "east-2", "east-3", "east-1-v6", "east-2-v6", "east-3-v6"]);
    wait_ready(&sb);
    (lab, hosts, sb)
}

/// Waits until every host can be reached, and has its share.
fn wait_ready(sb: &Signalbox) {
    let ready = || {
        let answer = sb.json("/api/v1/services");
        let hosts = answer["services"][0]["hosts"].as_array().cloned().unwrap_or_default();
        !hosts.is_empty()
            && hosts.iter().all(|host| host["reachable"] == true)
            && answer["troubles"].as_array().is_some_and(Vec::is_empty)
    };
    assert!(
        eventually(SOON, ready),
        "{}\n{}",
        sb.json("/api/v1/services"),
        sb.proc.log()
    );
}

fn share(sb: &Signalbox, host: &str) -> f64 {
    let answer = sb.json("/api/v1/services");
    lab::signalbox::find(&answer["services"][0]["hosts"], "name", host)["share"]
        .as_f64()
        .unwrap()
}

fn connect(lab: &Lab, to: &str) -> (TcpStream, String) {
    let stream = lab.client.connect(to);
    let name = greeting(&stream);
    (stream, name)
}

#[lab_test]
fn connections_and_datagrams_reach_all_hosts_and_come_back() {
    let (lab, _hosts, sb) = start();
    for to in ["10.1.0.1:3306", "[fd00:1::1]:3306"] {
        let mut seen = BTreeMap::<String, usize>::new();
        for _ in 0..60 {
            let (stream, name) = connect(&lab, to);
            *seen.entry(name).or_default() += 1;
            echo(&stream, &vec![b'x'; 20_000]).unwrap();
        }
        assert_eq!(seen.len(), 3, "{to}: {seen:?}");
    }
    for to in ["10.1.0.1:53", "[fd00:1::1]:53"] {
        // Flows of one source go to one host, from any port.
        let first = ask(&udp(&lab, to), b"who?").unwrap();
        for _ in 0..20 {
            let socket = udp(&lab, to);
            assert_eq!(ask(&socket, b"again").as_ref(), Some(&first));
            assert_eq!(ask(&socket, b"and again").as_ref(), Some(&first));
        }
        // The question and the answer go in fragments.
        let socket = udp(&lab, to);
        let large: Vec<u8> = (0..5000u32).map(|at| at as u8).collect();
        assert_eq!(ask(&socket, &large).as_ref(), Some(&first), "{to}: in fragments");
    }
    assert_eq!(
        sb.metric("signalbox_service_flows_opened_total{service=\"db\"}") as u64,
        120
    );
    assert_eq!(
        sb.metric("signalbox_service_hook{hook=\"tc\"}") as u64,
        2,
        "on the client's side and the hosts'"
    );
    let table = String::from_utf8(sb.cli(&["services"]).stdout).unwrap();
    assert!(
        table.contains("db") && table.contains("east-2-v6") && table.contains("veth"),
        "{table}"
    );
}

#[lab_test]
fn flows_survive_host_changes_and_a_drained_hosts_end_in_time() {
    let (lab, mut hosts, sb) = start();
    let flows: Vec<(TcpStream, String)> = (0..40).map(|_| connect(&lab, "10.1.0.1:3306")).collect();
    for (stream, _) in &flows {
        echo(stream, b"established").unwrap();
    }
    // Out of the file: no new flows, and existing ones continue.
    sb.reload(&body(&["east-1", "east-2"]));
    assert!(eventually(SOON, || share(&sb, "east-1") > 49.0));
    for _ in 0..20 {
        assert_ne!(connect(&lab, "10.1.0.1:3306").1, "east-3");
    }
    for (stream, name) in &flows {
        echo(stream, name.as_bytes()).unwrap();
    }
    // The host is in again, and one dies: the others' flows continue, clients of the dead one are told in time.
    sb.reload(&body(&["east-1", "east-2", "east-3"]));
    assert!(eventually(SOON, || (33.0..34.0).contains(&share(&sb, "east-3"))));
    drop(hosts.tcp.remove("east-2"));
    assert!(eventually(SOON, || share(&sb, "east-2") == 0.0));
    for _ in 0..20 {
        assert_ne!(connect(&lab, "10.1.0.1:3306").1, "east-2");
    }
    for (stream, name) in flows.iter().filter(|(_, name)| name != "east-2") {
        echo(stream, name.as_bytes()).unwrap();
    }
    hosts
        .tcp
        .insert("east-2", greeter(lab.host("east-2"), "[::]:3306", "east-2"));
    assert!(eventually(SOON, || (33.0..34.0).contains(&share(&sb, "east-2"))));
    // Taken out by an operator: closed when the time is up, and the job reports it.
    let held = flows.iter().filter(|(_, name)| name == "east-1").count() as u64;
    assert!(held > 0);
    let out = json!({ "action": "out", "names": ["east-1"], "timeout": 1.0 });
    let response = sb.unix("POST", "/api/v1/rotations", &out.to_string());
    assert!(response.status == 200 || response.status == 202, "{}", response.body);
    let closed = |stream: &TcpStream| {
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut byte = [0];
        let reset = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        std::io::Read::read(&mut &*stream, &mut byte).is_err_and(reset)
    };
    for (stream, _) in flows.iter().filter(|(_, name)| name == "east-1") {
        assert!(
            eventually(SOON, || closed(stream)),
            "a flow of a drained host was not closed"
        );
    }
    for (stream, name) in flows.iter().filter(|(_, name)| name == "east-3") {
        stream.set_read_timeout(Some(SOON)).unwrap();
        echo(stream, name.as_bytes()).unwrap();
    }
}

#[lab_test]
fn old_and_new_flows_work_while_signalbox_is_down_and_after() {
    let (lab, _hosts, mut sb) = start();
    let flows: Vec<(TcpStream, String)> = (0..30).map(|_| connect(&lab, "[fd00:1::1]:3306")).collect();
    sb.kill9();
    for (stream, name) in &flows {
        echo(stream, name.as_bytes()).unwrap();
    }
    for _ in 0..10 {
        echo(&connect(&lab, "10.1.0.1:3306").0, b"without a balancer").unwrap();
    }
    let mut sb = Signalbox::start(&lab, &body(&["east-1", "east-2", "east-3"]));
    wait_ready(&sb);
    for (stream, name) in &flows {
        echo(stream, name.as_bytes()).unwrap();
    }
    assert!(eventually(
        SOON,
        || sb.metric("signalbox_service_flows{service=\"db\"}") as u64 >= 30
    ));
    // A successor takes over.
    let config = lab::signalbox::write_config(&lab, "next.yaml", &body(&["east-1", "east-2", "east-3"]));
    let mut next = Signalbox::start_file(&lab, "next", &config, &["--takeover"]);
    assert!(sb.proc.wait_exit(SOON).is_some(), "the predecessor has not ended");
    wait_ready(&next);
    for (stream, name) in &flows {
        echo(stream, name.as_bytes()).unwrap();
    }
    for _ in 0..10 {
        echo(&connect(&lab, "10.1.0.1:3306").0, b"with another").unwrap();
    }
    drop(flows);
    next.term();
    let ended = next.proc.wait_exit(SOON);
    assert!(
        ended.is_some_and(|status| status.success()),
        "{ended:?}: {}",
        next.proc.log()
    );
}

/// Names of services are numbered for as long as the machine runs: of two configurations with a thousand each, the
/// second has no room for all.
#[lab_test]
fn a_host_that_moves_is_found_though_a_service_has_no_room() {
    let (lab, _hosts, sb) = start();
    let (stream, name) = connect(&lab, "10.1.0.1:3306");
    for letter in ["a", "b"] {
        let more = (0..1000).map(|n| {
            let port = 20_000 + n;
            format!("  - {{ name: {letter}{n}, protocol: udp, listen: [\"10.1.0.1:{port}\"], cluster: east }}\n")
        });
        let services = format!("services:\n{}", more.collect::<String>());
        sb.reload(&body(&["east-1", "east-2", "east-3"]).replace("services:\n", &services));
    }
    let refused = || {
        sb.json("/api/v1/services")["troubles"]
            .to_string()
            .contains("names of services")
    };
    assert!(eventually(SOON, refused), "{}", sb.json("/api/v1/services"));
    // The new card has the old one's addresses, but another MAC.
    let host = lab.host(&name);
    host.must(&["ip", "link", "set", "eth0", "address", "02:00:00:00:33:06"]);
    lab.lb.must(&["ip", "neigh", "flush", "all"]);
    echo(&stream, b"are you there?").unwrap();
}

#[lab_test]
fn udp_sessions_end_by_themselves() {
    let (lab, _hosts, sb) = start();
    let sockets: Vec<_> = (0..20).map(|_| udp(&lab, "10.1.0.1:53")).collect();
    for socket in &sockets {
        ask(socket, b"one").unwrap();
        ask(socket, b"two").unwrap();
    }
    let known = || sb.metric("signalbox_service_flows{service=\"dns\"}") as u64;
    assert!(eventually(SOON, || known() == 20), "{}", known());
    assert!(eventually(SOON, || known() == 0), "{}", known());
    ask(&sockets[0], b"three").unwrap();
}

/// A client that keeps sending from one port: resolvers, syslog, RADIUS.
#[lab_test]
fn datagrams_for_a_dead_host_go_to_another() {
    let lab = Lab::new();
    let mut servers: BTreeMap<_, _> = EAST[..2]
        .iter()
        .map(|(name, ..)| {
            let tcp = greeter(lab.host(name), "[::]:3306", name);
            (
                name.to_string(),
                (tcp, Answerer::start(lab.host(name), "[::]:5353", name)),
            )
        })
        .collect();
    let body = body(&["east-1", "east-2"])
        .replace("drain: 3s", "drain: 10m")
        .replace("idle: 2s", "idle: 10m");
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1", "east-2", "east-1-v6", "east-2-v6"]);
    wait_ready(&sb);
    let sockets = ["10.1.0.1:53", "[fd00:1::1]:53"].map(|at| udp(&lab, at));
    let host_of = |socket: &UdpSocket| {
        // An error is that of an earlier datagram: the dead host's port is unreachable.
        let mut answer = [0; 64];
        socket.send(b"who?").ok()?;
        let length = socket.recv(&mut answer).ok()?;
        let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
        answer.split(':').next().map(str::to_owned)
    };
    let first = host_of(&sockets[0]).unwrap();
    servers.remove(&first);
    for socket in &sockets {
        let is_moved = || host_of(socket).is_some_and(|name| name != first);
        assert!(eventually(SOON, is_moved), "{}", sb.json("/api/v1/services"));
    }
}

/// A cluster whose hosts have the service's address themselves.
fn direct(lab: &Lab, mode: &str) -> (Vec<Server>, Signalbox) {
    let mut hosts = Vec::new();
    for (name, ..) in EAST {
        let host = lab.host(name);
        host.must(&["ip", "addr", "add", "10.8.0.1/32", "dev", "lo"]);
        host.must(&["ip", "route", "replace", "10.1.0.0/24", "via", "10.2.0.1"]);
        hosts.push(greeter(host, "0.0.0.0:3306", name));
        if mode == "dsr-ipip" {
            let out = host.must(&[crate::lab::signalbox::binary(), "unwrap", "eth0"]);
            assert!(out.contains("in the driver"), "{out}");
        }
    }
    lab.lb.must(&["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
    lab.client
        .must(&["ip", "route", "add", "10.8.0.1", "via", "10.1.0.1", "mtu", "1400"]);
    let list: String = EAST
        .iter()
        .map(|(name, v4, _)| format!("      - {{ name: {name}, address: {v4}, tcp: 3306 }}\n"))
        .collect();
    let body = format!(
        "services:\n  - {{ name: db, protocol: tcp, listen: [\"10.8.0.1:3306\"], cluster: east, mode: {mode} }}\n\
         clusters:\n  - name: east\n    health: {{ tcp: {{}}, interval: 1s, fast_interval: 300ms, timeout: 1s, rise: 1, fall: 2 }}\n    \
         hosts:\n{list}"
    );
    let sb = Signalbox::start(lab, &body);
    sb.wait_healthy(&["east-1", "east-2", "east-3"]);
    wait_ready(&sb);
    (hosts, sb)
}

fn answered_directly(mode: &str) {
    let lab = Lab::new();
    let (_hosts, sb) = direct(&lab, mode);
    let mut seen = BTreeMap::<String, usize>::new();
    let mut held = Vec::new();
    for _ in 0..40 {
        let (stream, name) = connect(&lab, "10.8.0.1:3306");
        echo(&stream, &vec![b'd'; 30_000]).unwrap();
        *seen.entry(name.clone()).or_default() += 1;
        held.push((stream, name));
    }
    assert_eq!(seen.len(), 3, "{mode}: {seen:?}");
    let packets = |direction: &str| {
        sb.metric(&format!(
            "signalbox_service_packets_total{{service=\"db\",direction=\"{direction}\"}}"
        ))
    };
    assert!(packets("in") > 0.0);
    assert_eq!(packets("out") as u64, 0, "answers do not come by us");
    let response = sb.unix(
        "POST",
        "/api/v1/rotations",
        &json!({ "action": "out", "names": ["east-2"], "timeout": 60.0 }).to_string(),
    );
    assert!(response.status == 200 || response.status == 202, "{}", response.body);
    assert!(eventually(SOON, || share(&sb, "east-2") == 0.0));
    for (stream, name) in &held {
        echo(stream, name.as_bytes()).unwrap();
    }
    for _ in 0..20 {
        assert_ne!(connect(&lab, "10.8.0.1:3306").1, "east-2");
    }
    for (name, ..) in EAST {
        lab.host(name).output(&[crate::lab::signalbox::binary(), "detach"]);
    }
}

#[lab_test]
fn hosts_answer_clients_directly_in_dsr_l2_mode() {
    answered_directly("dsr-l2");
}

#[lab_test]
fn hosts_answer_by_themselves_what_reaches_them_by_a_tunnel() {
    answered_directly("dsr-ipip");
}

/// The lab without its bridge, with a separate cable for each host: every interface has a driver with XDP. The other
/// ends have a program, too, because a veth takes nothing from XDP before its peer has one.
pub(crate) fn cabled() -> Lab {
    let lab = Lab::new();
    lab.lb.must(&["ip", "link", "del", "back"]);
    for (name, v4, v6) in EAST {
        for words in [
            &["addr", "add", "10.2.0.1/32", "dev", name][..],
            &["addr", "add", "fd00:2::1/128", "dev", name, "nodad"],
            &["route", "add", v4, "dev", name, "src", "10.2.0.1"],
            &["route", "add", v6, "dev", name, "src", "fd00:2::1"],
        ] {
            lab.lb.must(&[&["ip"], words].concat());
        }
        lab.host(name)
            .must(&[crate::lab::signalbox::binary(), "unwrap", "eth0"]);
    }
    lab.client.must(&[crate::lab::signalbox::binary(), "unwrap", "eth0"]);
    lab
}

#[lab_test]
fn in_the_drivers_it_is_the_same() {
    let lab = cabled();
    let mut servers = Vec::new();
    let mut answerers = Vec::new();
    for (name, ..) in EAST {
        servers.push(greeter(lab.host(name), "[::]:3306", name));
        answerers.push(Answerer::start(lab.host(name), "[::]:5353", name));
    }
    let body = format!("layer4: {{ hook: native }}\n{}", body(&["east-1", "east-2", "east-3"]));
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1", "east-2", "east-3", "east-1-v6", "east-2-v6", "east-3-v6"]);
    wait_ready(&sb);
    assert_eq!(sb.metric("signalbox_service_hook{hook=\"xdp\"}") as u64, 4);
    for to in ["10.1.0.1:3306", "[fd00:1::1]:3306"] {
        let mut seen = BTreeMap::<String, usize>::new();
        for _ in 0..40 {
            let (stream, name) = connect(&lab, to);
            *seen.entry(name).or_default() += 1;
            echo(&stream, &vec![b'x'; 20_001]).unwrap();
        }
        assert_eq!(seen.len(), 3, "{to}: {seen:?}");
    }
    for to in ["10.1.0.1:53", "[fd00:1::1]:53"] {
        for length in [0, 1, 3, 500, 1400, 5000] {
            let question = vec![b'q'; length];
            assert!(ask(&udp(&lab, to), &question).is_some(), "{to}: {length} bytes");
        }
    }
    drop(sb);
    for ns in EAST.map(|(name, ..)| lab.host(name)).into_iter().chain([&lab.client]) {
        ns.output(&[crate::lab::signalbox::binary(), "detach"]);
    }
}

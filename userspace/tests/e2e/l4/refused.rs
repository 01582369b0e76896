//! Services that no host serves, and answers to connections that the balancer itself has opened at a service's port.

use crate::lab;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use lab::services::{Answerer, ask, greeter, greeting, udp};
use lab::{Lab, SOON, Signalbox, eventually, lab_test};
use socket2::{Domain, Socket, Type};

/// Two services at the balancer's addresses, and one at an address to which it is only the router.
const SERVICES: &str = r#"services:
  - { name: db, protocol: tcp, listen: ["10.1.0.1:3306", "[fd00:1::1]:3306"], cluster: east }
  - { name: dns, protocol: udp, listen: ["10.1.0.1:5300", "[fd00:1::1]:5300"], cluster: east }
  - { name: elsewhere, protocol: tcp, listen: ["198.51.100.77:3306"], cluster: east }
clusters:
  - name: east
    health: { tcp: { port: 3306 }, interval: 1s, fast_interval: 300ms, timeout: 1s, rise: 1, fall: 1 }
    hosts:
      - { name: east-1, address: 10.2.0.2 }
      - { name: east-1-v6, address: "fd00:2::2" }
"#;

/// Outcome of a client's attempt at a TCP service, within a second.
fn attempt(lab: &Lab, to: &str) -> Result<TcpStream, ErrorKind> {
    let to: SocketAddr = to.parse().unwrap();
    lab.client
        .run(|| TcpStream::connect_timeout(&to, Duration::from_secs(1)))
        .map_err(|error| error.kind())
}

/// Outcome of a client's datagram: the length of its answer, or the error.
fn attempt_udp(lab: &Lab, to: &str) -> Result<usize, ErrorKind> {
    let socket = udp(lab, to);
    socket.send(b"anybody?").unwrap();
    socket.recv(&mut [0; 64]).map_err(|error| error.kind())
}

#[lab_test]
fn a_service_without_hosts_refuses_as_a_closed_port_does() {
    let lab = Lab::new();
    let (host, other) = (lab.host("east-1"), lab.host("east-2"));
    // Another machine has the third address, and refuses packets that reach it.
    other.must(&["ip", "addr", "add", "198.51.100.77/32", "dev", "lo"]);
    other.must(&["ip", "route", "replace", "10.1.0.0/24", "via", "10.2.0.1"]);
    lab.lb.must(&["ip", "route", "add", "198.51.100.77", "via", "10.2.0.3"]);
    lab.lb.must(&["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
    lab.client
        .must(&["ip", "route", "replace", "198.51.100.77", "via", "10.1.0.1"]);
    let _server = greeter(host, "[::]:3306", "east-1");
    let _answerer = Answerer::start(host, "[::]:5300", "east-1");
    let sb = Signalbox::start(&lab, SERVICES);
    sb.wait_healthy(&["east-1", "east-1-v6"]);
    for to in ["10.1.0.1:3306", "[fd00:1::1]:3306"] {
        assert!(eventually(SOON, || attempt(&lab, to).is_ok()), "{to}");
    }
    let unserved = attempt(&lab, "198.51.100.77:3307").map(|_| ());
    assert_eq!(
        unserved,
        Err(ErrorKind::ConnectionRefused),
        "by the machine that has it"
    );
    host.must(&["ip", "link", "set", "eth0", "down"]);
    for to in ["10.1.0.1:3306", "[fd00:1::1]:3306"] {
        let refused = || attempt(&lab, to).is_err_and(|kind| kind == ErrorKind::ConnectionRefused);
        assert!(eventually(SOON, refused), "{to}: {:?}", attempt(&lab, to));
    }
    for to in ["10.1.0.1:5300", "[fd00:1::1]:5300"] {
        let refused = || attempt_udp(&lab, to) == Err(ErrorKind::ConnectionRefused);
        assert!(eventually(SOON, refused), "{to}: {:?}", attempt_udp(&lab, to));
    }
    let elsewhere = attempt(&lab, "198.51.100.77:3306").map(|_| ());
    assert_eq!(elsewhere, Err(ErrorKind::TimedOut), "not sent on past the service");
}

/// The kernel gives such ports to resolvers, to health checks, to every program that connects.
#[lab_test]
fn answers_to_the_balancers_own_connections_are_not_a_services() {
    let lab = Lab::new();
    let _host = greeter(lab.host("east-1"), "[::]:3306", "east-1");
    let _answerer = Answerer::start(lab.host("east-1"), "[::]:50003", "east-1");
    let (_resolver, _peer) = (
        Answerer::start(&lab.client, "[::]:53", "resolver"),
        greeter(&lab.client, "[::]:7000", "peer"),
    );
    let body = SERVICES.replace(":3306\"", ":50003\"").replace(":5300\"", ":50003\"");
    let body = body.replace("address: 10.2.0.2", "address: 10.2.0.2, ports: { db: 3306 }");
    let body = body.replace("address: \"fd00:2::2\"", "address: \"fd00:2::2\", ports: { db: 3306 }");
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1", "east-1-v6"]);
    // Answers to unconnected sockets would go to a host: the kernel must not give such sockets these ports.
    let told = sb.json("/api/v1/services")["troubles"].to_string();
    assert!(told.contains("net.ipv4.ip_local_reserved_ports=50003`"), "{told}");
    let doctor = String::from_utf8(sb.cli(&["doctor"]).stdout).unwrap();
    assert!(doctor.contains("ip_local_reserved_ports=50003"), "{doctor}");
    for (ours, theirs) in [("10.1.0.1", "10.1.0.2"), ("[fd00:1::1]", "[fd00:1::2]")] {
        let service = format!("{ours}:50003");
        assert!(eventually(SOON, || attempt(&lab, &service).is_ok()), "{service}");
        let (at, dns, peer): (SocketAddr, SocketAddr, SocketAddr) = (
            service.parse().unwrap(),
            format!("{theirs}:53").parse().unwrap(),
            format!("{theirs}:7000").parse().unwrap(),
        );
        let own = lab.lb.run(|| {
            let socket = UdpSocket::bind(at).unwrap();
            socket.connect(dns).unwrap();
            socket
        });
        own.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        assert_eq!(ask(&own, b"name?").as_deref(), Some("resolver"), "{service}");
        let own = lab.lb.run(|| {
            let socket = Socket::new(Domain::for_address(at), Type::STREAM, None).unwrap();
            socket.bind(&at.into()).unwrap();
            socket
                .connect_timeout(&peer.into(), Duration::from_secs(2))
                .map(|()| TcpStream::from(socket))
        });
        assert_eq!(greeting(&own.unwrap()), "peer", "{service}");
        // Clients of the service notice nothing.
        assert_eq!(greeting(&attempt(&lab, &service).unwrap()), "east-1");
        assert_eq!(ask(&udp(&lab, &service), b"who?").as_deref(), Some("east-1"));
    }
}

#[lab_test]
fn a_client_that_finds_no_source_port_is_refused() {
    let lab = Lab::new();
    let _server = greeter(lab.host("east-1"), "[::]:3306", "east-1");
    let body = format!("layer4: {{ nat: {{ ports: 1024-1031 }} }}\n{SERVICES}");
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1", "east-1-v6"]);
    let troubles = || sb.json("/api/v1/services")["troubles"].to_string();
    for to in ["10.1.0.1:3306", "[fd00:1::1]:3306"] {
        assert!(eventually(SOON, || attempt(&lab, to).is_ok()), "{to}");
        let mut held = Vec::new();
        let refused = (0..30).find_map(|_| match attempt(&lab, to) {
            Ok(stream) => {
                held.push(stream);
                None
            }
            Err(kind) => Some(kind),
        });
        assert_eq!(
            refused,
            Some(ErrorKind::ConnectionRefused),
            "{to}: {} connections",
            held.len()
        );
    }
    assert!(
        eventually(SOON, || troubles().contains("no source port")),
        "{}",
        troubles()
    );
}

//! The product's main jobs in one lab: listeners of every kind in both families, tier cut through a SIGKILL, layer-4
//! services while no process runs, the shield.

use std::net::TcpStream;

use crate::lab::callers::{call, is_answered, is_greeted, is_served, second_v6};
use crate::lab::cut::{self, doors, expect_cut};
use crate::lab::services::{Answerer, echo, greeter, greeting};
use crate::lab::{Lab, SOON, Signalbox, eventually, exchange, lab_test, transfers};

use super::numbered::{Download, serve};

const MIB: u64 = 1 << 20;
const DB: [&str; 2] = ["10.1.0.1:5432", "[fd00:1::1]:5432"];
const DNS: [&str; 2] = ["10.1.0.1:53", "[fd00:1::1]:53"];
const LONG: [&str; 2] = ["10.1.0.1:7000", "[fd00:1::1]:7000"];
const GOOD: [&str; 2] = ["10.1.0.2", "fd00:1::2"];
const BAD: [&str; 2] = ["10.1.0.3", "fd00:1::3"];

/// The listeners of [`cut::body`], one for long downloads, services of both protocols and families, and a shield.
fn body() -> String {
    let top = "shield: { deny: [10.1.0.3, \"fd00:1::3\"] }\nservices:\n  \
         - { name: db4, protocol: tcp, listen: [\"10.1.0.1:5432\"], cluster: east }\n  \
         - { name: db6, protocol: tcp, listen: [\"[fd00:1::1]:5432\"], cluster: west }\n  \
         - { name: dns4, protocol: udp, listen: [\"10.1.0.1:53\"], cluster: east }\n  \
         - { name: dns6, protocol: udp, listen: [\"[fd00:1::1]:53\"], cluster: west }\n";
    let long = "  - { name: long4, protocol: tcp, listen: [\"10.1.0.1:7000\"], cluster: long4 }\n  \
         - { name: long6, protocol: tcp, listen: [\"[fd00:1::1]:7000\"], cluster: long6 }\nclusters:\n  \
         - { name: long4, health: { http: { port: 1936, path: /healthz } }, hosts: [{ name: a, address: 10.2.0.2, tcp: 7000 }] }\n  \
         - { name: long6, health: { http: { port: 1936, path: /healthz } }, hosts: [{ name: b, address: \"fd00:2::4\", tcp: 7000 }] }\n";
    cut::body(top).replace("clusters:\n", long)
}

/// Connects from the address that no list denies: the kernel might choose the other one.
fn from_good(lab: &Lab, to: &str) -> TcpStream {
    let from = if to.starts_with('[') { "[fd00:1::2]" } else { GOOD[0] };
    lab.client.connect_from(from, to)
}

/// Returns the bytes of each of the two long downloads; the machines of `cargo xtask test --kernel` take more.
fn bytes() -> u64 {
    let mib = std::env::var("SIGNALBOX_TEST_DOWNLOAD_MIB")
        .ok()
        .and_then(|mib| mib.parse().ok());
    mib.unwrap_or(64) * MIB
}

#[lab_test]
fn listeners_cut_services_and_shield_work_and_outlive_a_sigkill() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    second_v6(&lab);
    let _transfers = transfers::servers(&lab);
    let mut servers = Vec::new();
    let mut answerers = Vec::new();
    for host in ["east-1", "west-1"] {
        servers.push(crate::lab::servers::healthy(lab.host(host)));
        servers.push(greeter(lab.host(host), "[::]:5432", host));
        servers.push(serve(lab.host(host), "[::]:7000"));
        answerers.push(Answerer::start(lab.host(host), "[::]:53", host));
    }
    let mut sb = Signalbox::start(&lab, &body());
    sb.wait_healthy(&["east-1", "west-1", "a", "b"]);

    for (n, door) in (0..).zip(doors()) {
        let stream = from_good(&lab, door.at);
        std::io::Write::write_all(&mut &stream, &door.first).unwrap();
        exchange::client(&stream, n, MIB, MIB).unwrap_or_else(|e| panic!("{} at {}: {e}", door.listener, door.at));
    }
    assert_eq!(
        cut::opened(&sb),
        doors().len() as u64,
        "{}\n{}",
        cut::reasons(&sb),
        sb.proc.log()
    );

    let mut downloads: Vec<_> = LONG
        .into_iter()
        .map(|to| Download::begin(from_good(&lab, to), bytes()).unwrap())
        .collect();
    for download in &mut downloads {
        expect_cut(&sb, download.stream());
        download.read_to(0.1).unwrap();
    }
    let mut held = Vec::new();
    for family in 0..2 {
        assert!(
            eventually(SOON, || is_served(&lab, GOOD[family], DB[family])),
            "{}",
            sb.proc.log()
        );
        held.push(call(&lab, GOOD[family], DB[family]).unwrap());
        assert!(!greeting(&held[family]).is_empty());
        assert!(
            eventually(SOON, || is_answered(&lab, GOOD[family], DNS[family])),
            "{}",
            DNS[family]
        );
        for at in [LONG[family], DB[family]] {
            assert!(!is_greeted(&lab, BAD[family], at), "{at} serves who is denied");
        }
        assert!(!is_answered(&lab, BAD[family], DNS[family]));
    }

    sb.kill9();
    for download in &mut downloads {
        download.read_to(0.5).unwrap();
    }
    for family in 0..2 {
        echo(&held[family], b"without a balancer").unwrap();
        assert!(is_greeted(&lab, GOOD[family], DB[family]) && is_answered(&lab, GOOD[family], DNS[family]));
        assert!(!is_greeted(&lab, BAD[family], DB[family]) && !is_answered(&lab, BAD[family], DNS[family]));
    }

    let sb = Signalbox::start(&lab, &body());
    assert_eq!(sb.flows("tier=cut&limit=100").len(), 2, "the downloads are known again");
    for family in 0..2 {
        echo(&held[family], b"and with the next one").unwrap();
        assert!(
            !is_greeted(&lab, BAD[family], LONG[family]),
            "from the first packet after it is ready"
        );
        assert!(!is_greeted(&lab, BAD[family], DB[family]));
    }
    for download in downloads {
        download.finish().unwrap();
    }
    cut::expect_none(&sb);
    assert_eq!(sb.get("/readyz").0, 200);
}

//! Services whose list of protocols changes while they have connections.

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use super::east;
use crate::lab::services::{Answerer, ask, echo, greeter, greeting, udp};
use crate::lab::{Lab, SOON, Signalbox, eventually, lab_test};

const VIP: &str = "10.1.0.1:6000";

fn body(protocol: &str) -> String {
    let service = east::service("s", protocol, 6000, "");
    format!("timeouts: {{ drain: 1s }}\n{}", east::body(&service, 6000, &["east-1"]))
}

/// Waits until each protocol of the service has its hosts.
fn wait_served(sb: &Signalbox, protocols: usize) {
    let is_served = || {
        let answer = sb.json("/api/v1/services");
        let services = answer["services"].as_array().unwrap();
        let shares = services.iter().map(|service| service["hosts"][0]["share"].as_f64());
        services.len() == protocols && shares.flatten().filter(|share| *share > 99.0).count() == protocols
    };
    assert!(eventually(SOON, is_served), "{}", sb.json("/api/v1/services"));
}

/// Expects that a connection stays for longer than its host could drain.
fn expect_kept(stream: &TcpStream, when: &str) {
    for _ in 0..12 {
        echo(stream, b"still there").unwrap_or_else(|error| panic!("{when}: {error}"));
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[lab_test]
fn a_connection_survives_any_order_of_its_services_protocols() {
    let lab = Lab::new();
    let host = lab.host("east-1");
    let _servers = ["10.2.0.2:6000", "[fd00:2::2]:6000"].map(|at| greeter(host, at, "east-1"));
    let _answerer = Answerer::start(host, "10.2.0.2:6000", "east-1");
    let mut sb = Signalbox::start(&lab, &body("tcp"));
    wait_served(&sb, 1);
    let held = lab.client.connect(VIP);
    greeting(&held);
    for (protocols, count) in [("[udp, tcp]", 2), ("[tcp, udp]", 2), ("tcp", 1), ("[udp, tcp]", 2)] {
        sb.reload(&body(protocols));
        wait_served(&sb, count);
        expect_kept(&held, protocols);
    }
    let asker = udp(&lab, VIP);
    ask(&asker, b"who?").unwrap();
    let opened = |sb: &Signalbox, protocol: &str| {
        let labels = format!("service=\"s\",protocol=\"{protocol}\"");
        sb.metric(&format!("signalbox_service_flows_opened_total{{{labels}}}")) as u64
    };
    assert_eq!((opened(&sb, "tcp"), opened(&sb, "udp")), (1, 1));
    // A successor of the process knows the services by the same numbers.
    sb.be_replaced("second");
    wait_served(&sb, 2);
    expect_kept(&held, "after the takeover");
    assert_eq!((opened(&sb, "tcp"), opened(&sb, "udp")), (1, 1));
    // Connections of a protocol that has left the list end as those of a removed service do.
    sb.reload(&body("udp"));
    held.set_read_timeout(Some(SOON)).unwrap();
    let error = (&held).read(&mut [0; 16]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    assert!(ask(&asker, b"again").is_some(), "the flow of the other protocol stays");
}

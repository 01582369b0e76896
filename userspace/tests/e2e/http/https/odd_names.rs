//! Server names that no host has: addresses, and names with a port.

use std::process::Stdio;

use super::scene::{body, certificate};
use crate::lab::{Lab, Router, Signalbox, lab_test};

/// Output of openssl for a handshake with such a name.
fn shake_hands(lab: &Lab, address: &str, name: &str) -> String {
    let mut command = lab.client.command("openssl");
    command.args(["s_client", "-connect", address, "-servername", name]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    [output.stdout, output.stderr]
        .map(|text| String::from_utf8_lossy(&text).into_owned())
        .concat()
}

#[lab_test]
fn an_address_or_a_port_in_sni_names_no_host() {
    let lab = Lab::new();
    let _east = Router::start(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let text = format!(
        "certificates: [{{ cert: {}, default: true }}]\nunmatched: {{ cluster: east-1 }}",
        pem.display()
    );
    let routes = ["{ host: app1.example.com, clusters: { east-1: 1 }, tls: { termination: edge } }"];
    let edge = "  - { name: ended, protocol: https, listen: [\"10.1.0.1:8443\"], termination: edge }\n  \
                - { name: passed, protocol: tls, listen: [\"10.1.0.1:9443\"] }\nclusters:\n";
    let body = body("", &text, &[("east-1", "")], &routes).replacen("clusters:\n", edge, 1);
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1"]);
    let names = [
        "10.1.0.1",
        "fd00:1::1",
        "[fd00:1::1]",
        "[fd00:1::1]:443",
        "app1.example.com:443",
    ];
    for name in names {
        for at in ["10.1.0.1:443", "10.1.0.1:9443"] {
            let shown = shake_hands(&lab, at, name);
            assert!(shown.contains("CN = east-1"), "{at} {name}: {shown}");
        }
    }
    for name in &names[..2] {
        let shown = shake_hands(&lab, "10.1.0.1:8443", name);
        assert!(shown.contains("CN = lb"), "{name}: {shown}");
    }
    for listener in ["https", "passed", "ended"] {
        let malformed = sb.metric(&format!(
            "signalbox_peek_total{{listener=\"{listener}\",outcome=\"malformed\"}}"
        ));
        assert!(malformed < 0.5, "{listener}: {malformed}");
    }
}

//! An operator moves an application by weights while its clients keep their connections: each step has its exact share
//! at once, no request fails, and no connection ends.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use super::scene::{body, certificate, certificates, connect};
use crate::http::request::scene::{Client, WebHost, field};
use crate::lab::{Lab, Signalbox, lab_test};

const ROUTE: &str = "{ host: a.test, clusters: { east-1: 1, west-2: 0 }, tls: { termination: edge, insecure: allow } }";

/// Asks on a kept connection; the host that answers.
fn ask<S: Read + Write>(client: &mut Client<S>) -> String {
    let answer = client.get("a.test", "/");
    assert_eq!(
        (answer.status, field(&answer.head, "connection")),
        (200, None),
        "{}",
        answer.head
    );
    crate::lab::http::field(&answer.text, "host")
}

#[lab_test]
fn clients_with_kept_connections_move_by_exact_shares() {
    const EACH: usize = 3;
    const REQUESTS: usize = 200;
    let lab = Lab::new();
    let hosts = ["east-1", "west-2"];
    let _hosts = hosts.map(|host| WebHost::start(&lab, host));
    let pem = certificate(&lab, "lb", &["a.test"]);
    let clusters = hosts.map(|host| (host, ""));
    let sb = Signalbox::start(&lab, &body("", &certificates(&pem), &clusters, &[ROUTE]));
    sb.wait_healthy(&hosts);
    let mut plain: Vec<_> = (0..EACH).map(|_| Client::connect(&lab)).collect();
    let mut tls: Vec<_> = (0..EACH).map(|_| connect(&lab, "a.test")).collect();
    for (east, west) in [(100, 0), (90, 10), (50, 50), (10, 90), (0, 100), (50, 50)] {
        let (old, new) = (format!("east-1={east}"), format!("west-2={west}"));
        let said = sb.cli(&["weight", "a.test", &old, &new]);
        assert!(said.status.success(), "{said:?}");
        let mut shares = BTreeMap::new();
        for n in 0..REQUESTS {
            let host = match n % 2 {
                0 => ask(&mut plain[n / 2 % EACH]),
                _ => ask(&mut tls[n / 2 % EACH]),
            };
            *shares.entry(host).or_insert(0) += 1;
        }
        let expected = [("east-1", east), ("west-2", west)].map(|(host, percent)| (host.to_owned(), percent * 2));
        let expected: BTreeMap<_, _> = expected.into_iter().filter(|(_, n)| *n > 0).collect();
        assert_eq!(shares, expected, "{east} : {west}");
    }
    assert_eq!(sb.metric("signalbox_listener_connections_total"), 2.0 * EACH as f64);
    assert_eq!(sb.metric("signalbox_requests_total{code=\"5xx\"}"), 0.0);
}

//! Listeners of protocol `tcp`, one for each tier, all in front of one host, whose connections a test holds at both
//! ends.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use super::servers::{self, Server};
use super::{Lab, SOON, Signalbox, config, eventually};

/// Tiers, and the addresses of their listeners.
pub(crate) const TIERS: [(&str, &str); 3] = [
    ("copy", "10.1.0.1:3306"),
    ("splice", "10.1.0.1:3307"),
    ("sockmap", "10.1.0.1:3308"),
];
/// The tiers to be tested: all, or the one that SIGNALBOX_E2E_TIER names.
pub(crate) fn tiers() -> impl Iterator<Item = (&'static str, &'static str)> {
    let only = std::env::var("SIGNALBOX_E2E_TIER").ok();
    TIERS
        .into_iter()
        .filter(move |(tier, _)| only.as_ref().is_none_or(|only| only == tier))
}

/// Address that the host listens on for all tiers.
pub(crate) const BACKEND: &str = "[::]:3306";

/// A configuration with a listener for each tier.
pub(crate) fn body(extra: &str) -> String {
    let listener = |(tier, at): &(&str, &str)| {
        format!("{{ name: {tier}, protocol: tcp, listen: [\"{at}\"], cluster: east, datapath: {{ tier: {tier} }} }}")
    };
    let listeners: Vec<_> = TIERS.iter().map(listener).collect();
    let east = config::cluster("east", &[], &["east-1"]);
    format!(
        "{extra}\nlisteners:\n{}clusters:\n{east}",
        config::yaml_list("  ", &listeners)
    )
}

/// Signalbox in front of a backend that is already there.
pub(crate) fn start(lab: &Lab, extra: &str) -> (Server, Signalbox) {
    let health = servers::healthy(lab.host("east-1"));
    let sb = Signalbox::start(lab, &body(extra));
    sb.wait_healthy(&["east-1"]);
    (health, sb)
}

/// Opens a flow; returns its ends once it has exchanged a few bytes and reached its tier.
pub(crate) fn flow(
    lab: &Lab,
    sb: &Signalbox,
    backends: &Receiver<Arc<TcpStream>>,
    tier: &str,
    at: &str,
) -> (TcpStream, Arc<TcpStream>) {
    let client = lab.client.connect(at);
    let host = backends.recv_timeout(SOON).unwrap();
    client.set_nodelay(true).unwrap();
    ping(&client, &host);
    ping(&host, &client);
    reaches(sb, &client, tier);
    (client, host)
}

/// A few bytes from one end to the other.
pub(crate) fn ping(mut from: &TcpStream, mut to: &TcpStream) {
    let mut buffer = [0; 5];
    from.write_all(b"hello").unwrap();
    to.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"hello");
}

/// Waits until the API shows the flow of this client on its tier.
pub(crate) fn reaches(sb: &Signalbox, client: &TcpStream, tier: &str) {
    let local = client.local_addr().unwrap().to_string();
    let mut last = serde_json::Value::Null;
    let reached = eventually(SOON, || {
        last = sb
            .flows("limit=10000")
            .into_iter()
            .find(|f| f["client"] == *local)
            .unwrap_or_default();
        last["tier"] == tier
    });
    assert!(reached, "a flow that should be on {tier}: {last}");
    assert_eq!(last["listener"], tier);
}

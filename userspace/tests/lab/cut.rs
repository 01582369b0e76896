//! What the tests of tier `cut` share: a balancer with every kind of listener in both families, and the question
//! whether a flow is cut.

use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::servers::{self, Server};
use super::tiers::ping;
use super::{Lab, SOON, Signalbox, config, eventually};

/// The `tcp` listeners. A client may not change its family on the way, so each has a host of its own.
pub(crate) const TCP: [(&str, &str); 2] = [("10.1.0.1:3306", "east-1"), ("[fd00:1::1]:3306", "west-1")];
/// The addresses of the `http` listener, and the name that leads to a host of the same family.
pub(crate) const HTTP: [(&str, &str); 2] = [("10.1.0.1:80", "a.test"), ("[fd00:1::1]:80", "b.test")];
/// The same for the `tls` listener.
pub(crate) const TLS: [(&str, &str); 2] = [("10.1.0.1:443", "a.test"), ("[fd00:1::1]:443", "b.test")];
/// Where hosts listen for the `tcp` listeners.
pub(crate) const BACKEND: &str = "[::]:3306";

/// A configuration with all of these. `extra` are further top-level lines.
pub(crate) fn body(extra: &str) -> String {
    let east = config::cluster("east", &["balance: least-connections"], &["east-1"]);
    let west = config::cluster("west", &["balance: least-connections"], &["west-1"]);
    format!(
        "{extra}\n{}  - {{ name: tcp4, protocol: tcp, listen: [\"{}\"], cluster: east }}\n  \
         - {{ name: tcp6, protocol: tcp, listen: [\"{}\"], cluster: west }}\n\
         clusters:\n{east}{west}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n  \
         - {{ host: b.test, clusters: {{ west: 1 }} }}\n",
        config::WEB_LISTENERS,
        TCP[0].0,
        TCP[1].0
    )
}

/// Signalbox in front of hosts whose servers the test brings; only their health is answered here.
pub(crate) fn start(lab: &Lab, extra: &str) -> (Vec<Server>, Signalbox) {
    let health = ["east-1", "west-1"].map(|host| servers::healthy(lab.host(host)));
    let sb = Signalbox::start(lab, &body(extra));
    sb.wait_healthy(&["east-1", "west-1"]);
    (health.into(), sb)
}

/// Whether flows may be on another tier than `cut`: for working on the lab itself.
pub(crate) fn lenient() -> bool {
    std::env::var_os("SIGNALBOX_E2E_NO_CUT").is_some()
}

/// The flow of a client as the API shows it; null if it does not.
pub(crate) fn shown(sb: &Signalbox, client: SocketAddr) -> Value {
    let client = client.to_string();
    let flows = sb.flows("limit=300000");
    flows.into_iter().find(|f| f["client"] == *client).unwrap_or_default()
}

/// Waits until the flow of this client is cut, and shows it.
pub(crate) fn expect_cut(sb: &Signalbox, client: &TcpStream) -> Value {
    expect_tier(sb, client, "cut")
}

/// The same for any tier.
pub(crate) fn expect_tier(sb: &Signalbox, client: &TcpStream, tier: &str) -> Value {
    let local = client.local_addr().unwrap();
    let mut last = Value::Null;
    let is = eventually(SOON, || {
        last = shown(sb, local);
        last["tier"] == tier || (lenient() && last.is_object())
    });
    assert!(is, "a flow that should be on {tier}: {last}");
    last
}

/// All flows are gone from the API, within the time that ends take to be noticed.
pub(crate) fn expect_none(sb: &Signalbox) {
    let gone = eventually(SOON, || sb.flow_count() == 0);
    assert!(gone, "flows that have ended are shown: {:?}", sb.flows("limit=10"));
}

/// Both ends of a new flow on a `tcp` listener, once it is cut.
pub(crate) fn flow(
    lab: &Lab,
    sb: &Signalbox,
    hosts: &Receiver<Arc<TcpStream>>,
    at: &str,
) -> (TcpStream, Arc<TcpStream>) {
    let client = lab.client.connect(at);
    let host = hosts.recv_timeout(SOON).unwrap();
    client.set_nodelay(true).unwrap();
    ping(&client, &host);
    ping(&host, &client);
    expect_cut(sb, &client);
    (client, host)
}

/// Servers on both hosts that give their connections to the test.
pub(crate) fn hand_over(lab: &Lab) -> (Vec<Server>, [Receiver<Arc<TcpStream>>; 2]) {
    let mut servers = Vec::new();
    let receivers = TCP.map(|(_, host)| {
        let (server, receiver) = servers::hand_over(lab.host(host), BACKEND);
        servers.push(server);
        receiver
    });
    (servers, receivers)
}

/// Ends a flow in good order from both sides and sees both ends arrive.
pub(crate) fn finish(client: &TcpStream, host: &TcpStream) {
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&*host).read(&mut [0; 8]).unwrap(), 0);
    host.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&*client).read(&mut [0; 8]).unwrap(), 0);
}

/// The open descriptors of a process.
pub(crate) fn descriptors(sb: &Signalbox) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", sb.proc.pid()))
        .unwrap()
        .count()
}

/// Waits until a number stays the same for half a second; that number.
pub(crate) fn settled(mut number: impl FnMut() -> usize) -> usize {
    let (mut last, mut since) = (number(), Instant::now());
    eventually(SOON, || {
        let now = number();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        since.elapsed() > Duration::from_millis(500)
    });
    last
}

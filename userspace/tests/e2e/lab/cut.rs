//! Common parts of the tests of tier `cut`: a balancer with every kind of listener in both families, and the question
//! whether a flow is cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::servers::{self, Server};
use super::tiers::ping;
use super::topology::has_rules;
use super::{Lab, SOON, Signalbox, config, eventually, hello, privileged};

/// The `tcp` listeners. A client may not change its family on the way, so each has a host.
pub(crate) const TCP: [(&str, &str); 2] = [("10.1.0.1:3306", "east-1"), ("[fd00:1::1]:3306", "west-1")];
/// The addresses of the `http` listener, and the name that leads to a host of the same family.
pub(crate) const HTTP: [(&str, &str); 2] = [("10.1.0.1:80", "a.test"), ("[fd00:1::1]:80", "b.test")];
/// Addresses and names of the `tls` listener.
pub(crate) const TLS: [(&str, &str); 2] = [("10.1.0.1:443", "a.test"), ("[fd00:1::1]:443", "b.test")];
/// Address that hosts listen on for the `tcp` listeners.
pub(crate) const BACKEND: &str = "[::]:3306";

/// Checks that a bad link does not upset.
pub(crate) const PATIENT: [&str; 2] = [
    "health: { http: { port: 1936, path: /healthz }, interval: 2s, timeout: 1s, rise: 1, fall: 100 }",
    "ejection: { failures: 0 }",
];

/// A configuration with all of these. `extra` are further top-level lines.
pub(crate) fn body(extra: &str) -> String {
    body_with(extra, "balance: least-connections")
}

/// Makes the configuration with a line for each cluster.
pub(crate) fn body_with(extra: &str, key: &str) -> String {
    let [health, ejection] = PATIENT;
    let keys = [key, health, ejection];
    let off = if lenient() { "datapath: { cut: off }\n" } else { "" };
    let east = config::cluster("east", &keys, &["east-1"]);
    let west = config::cluster("west", &keys, &["west-1"]);
    format!(
        "{off}{extra}\n{}  - {{ name: tcp4, protocol: tcp, listen: [\"{}\"], cluster: east }}\n  \
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

/// Whether flows may be on other tiers than `cut`: a failure there too is not the tier's.
pub(crate) fn lenient() -> bool {
    std::env::var_os("SIGNALBOX_E2E_NO_CUT").is_some()
}

/// The flow of a client as the API shows it; null if it does not.
pub(crate) fn shown(sb: &Signalbox, client: SocketAddr) -> Value {
    let client = client.to_string();
    let flows = sb.flows("limit=300000");
    flows.into_iter().find(|f| f["client"] == *client).unwrap_or_default()
}

/// Waits until the flow of this client is cut, and its host has acknowledged what userspace had to deliver: from then
/// on it needs no process. Shows it.
pub(crate) fn expect_cut(sb: &Signalbox, client: &TcpStream) -> Value {
    expect_tier(sb, client, "cut")
}

/// Waits until a flow is on a tier; returns the flow as the API shows it.
pub(crate) fn expect_tier(sb: &Signalbox, client: &TcpStream, tier: &str) -> Value {
    let local = client.local_addr().unwrap();
    let mut last = Value::Null;
    let is = eventually(SOON, || {
        last = shown(sb, local);
        last["tier"] == tier && last["state"] != "draining" || (lenient() && last.is_object())
    });
    assert!(is, "a flow that should be on {tier}: {last}");
    last
}

/// Waits until no flow is in the API, within the time that ends take to be noticed.
pub(crate) fn expect_none(sb: &Signalbox) {
    let gone = eventually(SOON, || sb.flow_count() == 0);
    assert!(gone, "flows that have ended are shown: {:?}", sb.flows("limit=10"));
}

/// Servers on both hosts, at the port of each kind of listener, that give their connections to the test.
pub(crate) struct Hosts {
    _servers: Vec<Server>,
    receivers: Vec<(&'static str, u16, Receiver<Arc<TcpStream>>)>,
}

impl Hosts {
    /// Listens.
    pub(crate) fn start(lab: &Lab) -> Self {
        let (mut servers, mut receivers) = (Vec::new(), Vec::new());
        for host in ["east-1", "west-1"] {
            for port in [80, 443, 3306] {
                let (server, receiver) = servers::hand_over(lab.host(host), &format!("[::]:{port}"));
                servers.push(server);
                receivers.push((host, port, receiver));
            }
        }
        Self {
            _servers: servers,
            receivers,
        }
    }

    /// The host's end of the next connection.
    pub(crate) fn accept(&self, host: &str, port: u16) -> Arc<TcpStream> {
        let stream = self.receiver(host, port).recv_timeout(SOON);
        stream.unwrap_or_else(|e| panic!("no connection for {host}:{port}: {e}"))
    }

    /// Accepts the next connection if there is one within a moment.
    pub(crate) fn next(&self, host: &str, port: u16) -> Option<Arc<TcpStream>> {
        self.receiver(host, port).recv_timeout(Duration::from_millis(200)).ok()
    }

    fn receiver(&self, host: &str, port: u16) -> &Receiver<Arc<TcpStream>> {
        let mut all = self.receivers.iter();
        &all.find(|(h, p, _)| *h == host && *p == port).unwrap().2
    }
}

/// A way in: a listener, in one family.
pub(crate) struct Door {
    /// The listener's name.
    pub(crate) listener: &'static str,
    /// Address of the listener.
    pub(crate) at: &'static str,
    /// The host, and its port.
    pub(crate) host: &'static str,
    pub(crate) port: u16,
    /// The cluster.
    pub(crate) cluster: &'static str,
    /// Bytes that a client must send before a host is chosen.
    pub(crate) first: Vec<u8>,
}

/// Returns a door for each kind of listener and each family.
pub(crate) fn doors() -> Vec<Door> {
    let request = |(_, name): (&str, &str)| format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n").into_bytes();
    let hello = |(_, name): (&str, &str)| hello::records(&hello::client_hello(Some(name)), 1);
    let mut doors = Vec::new();
    for (i, (host, cluster)) in [("east-1", "east"), ("west-1", "west")].into_iter().enumerate() {
        for (listener, at, port, first) in [
            ("http", HTTP[i].0, 80, request(HTTP[i])),
            ("https", TLS[i].0, 443, hello(TLS[i])),
            (["tcp4", "tcp6"][i], TCP[i].0, 3306, Vec::new()),
        ] {
            doors.push(Door {
                listener,
                at,
                host,
                port,
                cluster,
                first,
            });
        }
    }
    doors
}

impl Door {
    /// Opens a flow; returns its ends after the first bytes and a few more each way.
    pub(crate) fn enter(&self, lab: &Lab, hosts: &Hosts) -> (TcpStream, Arc<TcpStream>) {
        let mut client = lab.client.connect(self.at);
        client.set_nodelay(true).unwrap();
        client.write_all(&self.first).unwrap();
        let host = hosts.accept(self.host, self.port);
        let mut received = vec![0; self.first.len()];
        (&*host).read_exact(&mut received).unwrap();
        assert_eq!(received, self.first, "{} at {}", self.listener, self.at);
        ping(&client, &host);
        ping(&host, &client);
        (client, host)
    }

    /// Opens a flow; returns its ends once the flow is cut.
    pub(crate) fn enter_cut(&self, lab: &Lab, sb: &Signalbox, hosts: &Hosts) -> (TcpStream, Arc<TcpStream>) {
        let (client, host) = self.enter(lab, hosts);
        expect_cut(sb, &client);
        (client, host)
    }
}

/// Ends a flow in good order from both sides and sees both ends arrive.
pub(crate) fn finish(client: &TcpStream, host: &TcpStream) {
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&*host).read(&mut [0; 8]).unwrap(), 0);
    host.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&*client).read(&mut [0; 8]).unwrap(), 0);
}

/// A flow that is not cut, with its reason; null if there is none.
pub(crate) fn not_cut(sb: &Signalbox) -> Value {
    let flows = sb.flows("limit=300000");
    flows.into_iter().find(|flow| flow["tier"] != "cut").unwrap_or_default()
}

/// Formats the number of flows that have not been cut, by reason.
pub(crate) fn reasons(sb: &Signalbox) -> String {
    let (_, text) = sb.get("/metrics");
    let lines = text.lines().filter(|line| line.starts_with("signalbox_not_cut_total"));
    lines
        .filter(|line| !line.ends_with(" 0"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Formats the reason why a flow is on another tier.
pub(crate) fn reason(flow: &Value) -> String {
    let reason = flow["not_cut"].as_str().unwrap_or_default();
    assert!(
        flow["tier"].is_string() && flow["tier"] != "cut" && !reason.is_empty(),
        "{flow}"
    );
    reason.to_owned()
}

/// Flows that have been cut so far.
pub(crate) fn opened(sb: &Signalbox) -> u64 {
    sb.metric("signalbox_connections_opened_total{tier=\"cut\"}") as u64
}

/// A lab whose pins are removed with it: pins of a namespace do not end with the namespace.
pub(crate) struct CutLab(Lab);

/// Builds it. With `SIGNALBOX_E2E_SOCKETS=repaired`, userspace makes the sockets of connections that are passed up, as on
/// a machine whose kernel would not.
pub(crate) fn lab() -> CutLab {
    let lab = Lab::new();
    if has_no_cookies() {
        lab.lb.must(&["sysctl", "-qw", "net.ipv4.tcp_syncookies=0"]);
    }
    CutLab(lab)
}

fn has_no_cookies() -> bool {
    match std::env::var("SIGNALBOX_E2E_SOCKETS") {
        Ok(how) if how == "repaired" => true,
        Ok(how) => panic!("SIGNALBOX_E2E_SOCKETS={how}: the other way is `repaired`"),
        Err(_) => false,
    }
}

/// Whether userspace makes the sockets of connections that are passed up. Connection tracking beside rules loses those of
/// the kernel.
pub(crate) fn repairs_sockets() -> bool {
    has_no_cookies() || has_rules()
}

/// The beginning of a test of flows that enter by HTTP: a lab, hosts that hand connections over, and the door of
/// `a.test`. `None` where flows cannot be cut.
pub(crate) fn by_http(test: &str) -> Option<(CutLab, Hosts, Door)> {
    if !privileged(test) || lenient() {
        return None;
    }
    let lab = lab();
    let hosts = Hosts::start(&lab);
    Some((lab, hosts, doors().remove(0)))
}

impl Deref for CutLab {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.0
    }
}

impl Drop for CutLab {
    fn drop(&mut self) {
        for dir in pins(&self.0) {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// Returns the pins of signalbox for the balancer's namespace.
pub(crate) fn pins(lab: &Lab) -> Vec<PathBuf> {
    pins_of(lab, "net")
}

/// Returns the pins of `net` (tier cut) or `l4-net` (layer 4).
pub(crate) fn pins_of(lab: &Lab, kind: &str) -> Vec<PathBuf> {
    // The namespace's cookie, which no other namespace will have: its inode's number is used again.
    let cookie = lab.lb.run(|| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
        signalbox::sys::netns_cookie(std::os::fd::AsRawFd::as_raw_fd(&socket)).unwrap()
    });
    let versions = std::fs::read_dir("/sys/fs/bpf/signalbox")
        .into_iter()
        .flatten()
        .flatten();
    let dirs = versions.map(|version| version.path().join(format!("{kind}-{cookie}")));
    dirs.filter(|dir| dir.exists()).collect()
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

/// `signalbox detach` in the balancer's namespace.
pub(crate) fn detach(lab: &Lab) {
    let mut command = lab.lb.command(crate::lab::signalbox::binary());
    let output = command.arg("detach").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Returns, for each cut flow by client, the facts of the API that do not change while nothing is sent.
pub(crate) fn known(sb: &Signalbox) -> Vec<Vec<String>> {
    let mut flows = sb.flows("tier=cut&limit=100");
    flows.sort_by_key(|flow| flow["client"].to_string());
    let keys = [
        "client",
        "local",
        "backend",
        "leg_b_local",
        "listener",
        "route",
        "cluster",
        "host",
        "state",
        "bytes_in",
        "bytes_out",
    ];
    let facts = |flow: &Value| keys.map(|key| flow[key].to_string()).to_vec();
    flows.iter().map(facts).collect()
}

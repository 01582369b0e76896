//! Two balancers that share virtual addresses, with a client in front of them and a host behind:
//!
//! ```text
//! client 10.1.0.2 ──bridge "front"── node-a 10.1.0.11, node-b 10.1.0.12, VIP 10.1.0.10
//! host   10.2.0.2 ──bridge "back"─── node-a 10.2.0.11, node-b 10.2.0.12, floating source 10.2.0.10
//!                                    node-a 10.3.0.11 ──veth "direct"── node-b 10.3.0.12
//! ```
//!
//! The test itself moves the addresses and says who has them (`mode: external`), or keepalived does.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use signalbox_lab::{Kind, Sandbox};

use crate::lab::signalbox::binary;
use crate::lab::tiers::ping;
use crate::lab::{Ns, Proc, SOON, Server, Signalbox, eventually, hello, privileged, servers};

const KIND: Kind = Kind {
    prefix: "sbp",
    program: "e2e",
    detach: |ns| {
        if ns.name().contains("-node-") {
            ns.output(&[binary(), "detach"]);
        }
    },
};

/// Addresses that move, with the devices that have them.
pub(super) const MOVING: [(&str, &str); 4] = [
    ("10.1.0.10/32", "front"),
    ("fd00:1::10/128", "front"),
    ("10.2.0.10/24", "back"),
    ("fd00:2::10/64", "back"),
];

/// Last parts of the nodes' own addresses.
const LAST: [&str; 2] = ["11", "12"];

/// A way in: address, port of the host, and the first bytes of the client.
pub(super) struct Door {
    pub(super) at: &'static str,
    pub(super) port: u16,
    pub(super) first: Vec<u8>,
}

/// Returns a door for each kind of listener and each family.
pub(super) fn doors() -> Vec<Door> {
    let request = |name: &str| format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n").into_bytes();
    let hello = |name: &str| hello::records(&hello::client_hello(Some(name)), 1);
    let door = |at, port, first| Door { at, port, first };
    vec![
        door("10.1.0.10:3306", 3306, Vec::new()),
        door("[fd00:1::10]:3306", 3306, Vec::new()),
        door("10.1.0.10:80", 80, request("a.test")),
        door("[fd00:1::10]:80", 80, request("b.test")),
        door("10.1.0.10:443", 443, hello("a.test")),
        door("[fd00:1::10]:443", 443, hello("b.test")),
    ]
}

/// The namespaces, and the balancers that run.
pub(super) struct Pair {
    sandbox: Sandbox,
    pub(super) client: Ns,
    pub(super) host: Ns,
    pub(super) nodes: [Ns; 2],
    pub(super) balancers: [Option<Signalbox>; 2],
    _health: Server,
    receivers: Vec<(u16, Receiver<Arc<TcpStream>>)>,
    _servers: Vec<Server>,
    /// Most shadows of each node.
    room: u32,
    /// Lines of the section `ha` that say who moves the addresses.
    mover: &'static str,
    /// Further top-level lines of both configurations.
    settings: &'static str,
    pub(super) supervisors: [Option<Proc>; 2],
    /// Idle time of services of layer 4 at port 3306; `None`: there are listeners.
    idle: Option<&'static str>,
}

/// Addresses that the test moves.
const BY_TEST: &str = "  mode: external\n";

/// What is at port 3306 of the virtual addresses: listeners, or services of layer 4.
const LISTENERS: &str = "  - { name: tcp4, protocol: tcp, listen: [\"10.1.0.10:3306\"], cluster: v4 }
  - { name: tcp6, protocol: tcp, listen: [\"[fd00:1::10]:3306\"], cluster: v6 }
";
fn services(idle: &str) -> String {
    let service = |name: &str, at: &str, cluster: &str| {
        format!("  - {{ name: {name}, protocol: tcp, listen: [\"{at}:3306\"], cluster: {cluster}, idle: {idle} }}\n")
    };
    let all = [service("db4", "10.1.0.10", "v4"), service("db6", "[fd00:1::10]", "v6")];
    format!("services:\n{}", all.concat())
}

impl Pair {
    /// Builds it with both balancers, of which the first has the addresses.
    pub(super) fn begin(test: &str) -> Option<Self> {
        Self::begin_with(test, 4096, "")
    }

    /// Builds it with room for so many shadows at each node, and further top-level lines in both configurations.
    pub(super) fn begin_with(test: &str, room: u32, settings: &'static str) -> Option<Self> {
        if !privileged(test) {
            return None;
        }
        let mut pair = Self::build(room);
        pair.settings = settings;
        for port in [80, 443, 3306] {
            let (server, receiver) = servers::hand_over(&pair.host, &format!("[::]:{port}"));
            pair.receivers.push((port, receiver));
            pair._servers.push(server);
        }
        for node in [0, 1] {
            pair.start(node);
        }
        pair.give(0);
        pair.wait_synced();
        Some(pair)
    }

    /// Builds it with the servers of the host in the test's hands.
    pub(super) fn begin_bare(test: &str) -> Option<Self> {
        if !privileged(test) {
            return None;
        }
        let mut pair = Self::build(4096);
        for node in [0, 1] {
            pair.start(node);
        }
        pair.give(0);
        pair.wait_synced();
        Some(pair)
    }

    /// Builds it with keepalived, whose adverts have this interval. The first node gets the addresses.
    pub(super) fn begin_keepalived(test: &str, mover: &'static str) -> Option<Self> {
        if !signalbox_lab::privileged(test, &["ip", "nsenter", "keepalived"]) {
            return None;
        }
        let mut pair = Self::build(4096);
        pair.mover = mover;
        for node in [0, 1] {
            pair.start(node);
            pair.supervise(node);
        }
        pair.wait_synced();
        pair.wait_owner(0);
        Some(pair)
    }

    /// Starts the supervisor of a node's addresses.
    pub(super) fn supervise(&mut self, node: usize) {
        let (name, dir) = (node_name(node), self.dir().join(node_name(node)));
        let mut command = self.nodes[node].command(binary());
        command.args(["ha", "run", "--config"]).arg(dir.join("signalbox.yaml"));
        command.arg("--runtime-dir").arg(dir.join("run"));
        self.supervisors[node] = Some(Proc::spawn(&format!("{name}-ha"), command, &dir));
    }

    /// Waits until a node has the addresses, and its balancer knows it.
    pub(super) fn wait_owner(&self, node: usize) {
        let mut last = Value::Null;
        let is = eventually(SOON, || {
            last = self.balancer(node).json("/api/v1/ha");
            last["groups"][0]["state"] == "master"
        });
        assert!(is, "{} does not have the addresses: {last:#}", node_name(node));
    }

    /// Builds it with services of layer 4 with this idle time, whose servers are in the test's hands.
    pub(super) fn begin_with_services(test: &str, idle: &'static str) -> Option<Self> {
        if !privileged(test) {
            return None;
        }
        let mut pair = Self::build(4096);
        pair.idle = Some(idle);
        for node in [0, 1] {
            pair.start(node);
        }
        pair.give(0);
        pair.wait_synced();
        Some(pair)
    }

    /// Has the test accept connections at another port of the host.
    pub(super) fn hand_over(&mut self, port: u16) {
        let (server, receiver) = servers::hand_over(&self.host, &format!("[::]:{port}"));
        self.receivers.push((port, receiver));
        self._servers.push(server);
    }

    fn build(room: u32) -> Self {
        let sandbox = Sandbox::new(&KIND).unwrap();
        let [client, host, a, b] = ["client", "host", "node-a", "node-b"].map(|role| sandbox.namespace(role).unwrap());
        wire(&client, &host, [&a, &b]);
        certificates(sandbox.dir());
        Self {
            _health: servers::healthy(&host),
            sandbox,
            client,
            host,
            nodes: [a, b],
            balancers: [None, None],
            receivers: Vec::new(),
            _servers: Vec::new(),
            room,
            mover: BY_TEST,
            settings: "",
            supervisors: [None, None],
            idle: None,
        }
    }

    /// Directory of the pair's files.
    pub(super) fn dir(&self) -> &Path {
        self.sandbox.dir()
    }

    /// Starts the balancer of a node.
    pub(super) fn start(&mut self, node: usize) {
        let name = node_name(node);
        let dir = self.dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let body = self.body(node);
        let started = Signalbox::start_in(&self.nodes[node], &dir, name, &body);
        started.wait_healthy(&["host4", "host6"]);
        self.balancers[node] = Some(started);
    }

    pub(super) fn balancer(&self, node: usize) -> &Signalbox {
        self.balancers[node].as_ref().unwrap()
    }

    /// Configuration of a node.
    pub(super) fn body(&self, node: usize) -> String {
        let (name, dir) = (node_name(node), self.dir().display());
        let cluster = |name: &str, host: &str, address: &str| {
            format!(
                "  - name: {name}\n    ejection: {{ failures: 0 }}\n    \
                 health: {{ http: {{ port: 1936, path: /healthz }}, interval: 2s, timeout: 2s, rise: 1, fall: 100 }}\n    \
                 hosts:\n      - {{ name: {host}, address: \"{address}\", http: 80, https: 443, tcp: 3306 }}\n"
            )
        };
        let (listeners, services) = match self.idle {
            Some(idle) => ("", services(idle)),
            None => (LISTENERS, String::new()),
        };
        format!(
            "{}
listeners:
{listeners}  - {{ name: http, protocol: http, listen: [\"10.1.0.10:80\", \"[fd00:1::10]:80\"] }}
  - {{ name: ws, protocol: http, routing: request, listen: [\"10.1.0.10:8080\", \"[fd00:1::10]:8080\"] }}
  - {{ name: https, protocol: tls, listen: [\"10.1.0.10:443\", \"[fd00:1::10]:443\"] }}
clusters:
{}{}routes:
  - {{ host: a.test, clusters: {{ v4: 1 }} }}
  - {{ host: b.test, clusters: {{ v6: 1 }} }}
ha:
{}  node: {name}
  nodes:
    - {{ name: node-a, address: 10.3.0.11 }}
    - {{ name: node-b, address: 10.3.0.12 }}
  interface: front
  groups:
    - {{ name: g1, prefer: node-a, vips: [\"10.1.0.10\", \"fd00:1::10\"], sources: [\"10.2.0.10/24@back\", \"fd00:2::10/64@back\"] }}
  sync: {{ listen: \"10.3.0.1{}:8090\", cert: {dir}/{name}.crt, key: {dir}/{name}.key, ca: {dir}/ca.pem, flows: {} }}
{}",
            self.settings,
            cluster("v4", "host4", "10.2.0.2"),
            cluster("v6", "host6", "fd00:2::2"),
            self.mover,
            node + 1,
            self.room,
            services,
        )
    }

    /// Gives the addresses to a node, and takes them from the other: as a change of owner by VRRP looks to everybody.
    pub(super) fn give(&self, node: usize) {
        self.withdraw(1 - node);
        self.take(node);
    }

    /// Gives the addresses to a node.
    pub(super) fn take(&self, node: usize) {
        let add = |(address, device): (&str, &str)| format!("addr add {address} dev {device} nodad\n");
        self.nodes[node].ip(&MOVING.map(add).concat()).unwrap();
        self.announce(node);
        self.report(node, "master");
    }

    /// Has client and host find a node at the addresses, as its gratuitous ARP does.
    pub(super) fn announce(&self, node: usize) {
        for (address, device) in MOVING {
            let (neighbour, link) = if device == "front" {
                (&self.client, "front")
            } else {
                (&self.host, "back")
            };
            let mac = mac(&self.nodes[node], device);
            let address = address.split('/').next().unwrap_or_default();
            let line = format!("neigh replace {address} lladdr {mac} dev {link} nud permanent\n");
            neighbour.ip(&line).unwrap();
        }
    }

    /// Takes the addresses from a node, if it has them.
    pub(super) fn withdraw(&self, node: usize) {
        for (address, device) in MOVING {
            let _ = self.nodes[node].ip(&format!("addr del {address} dev {device}\n"));
        }
        self.report(node, "backup");
    }

    /// Tells a balancer the state of its group, if it runs.
    pub(super) fn report(&self, node: usize, state: &str) {
        if let Some(balancer) = &self.balancers[node] {
            let body = json!({ "state": state }).to_string();
            let answer = balancer.unix("PUT", "/api/v1/ha/groups/g1", &body);
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
    }

    /// A node loses its power: its links go down, then its process ends without a word.
    pub(super) fn kill(&mut self, node: usize) {
        self.nodes[node]
            .ip("link set front down\nlink set back down\nlink set direct down\n")
            .unwrap();
        // Not even keepalived says goodbye.
        let pids = self.dir().join(node_name(node)).join("run");
        for file in ["keepalived.pid", "vrrp.pid"] {
            let pid = std::fs::read_to_string(pids.join(file)).ok();
            if let Some(pid) = pid.and_then(|text| text.trim().parse().ok()) {
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
            }
        }
        if let Some(mut supervisor) = self.supervisors[node].take() {
            supervisor.kill();
        }
        if let Some(mut balancer) = self.balancers[node].take() {
            balancer.kill9();
        }
    }

    /// Kills the process of a node, and starts it again.
    pub(super) fn restart(&mut self, node: usize) {
        if let Some(mut balancer) = self.balancers[node].take() {
            balancer.kill9();
        }
        self.start(node);
    }

    /// A node that was killed starts again, without anything that it knew.
    pub(super) fn revive(&mut self, node: usize) {
        self.nodes[node].output(&[binary(), "detach"]);
        for (address, device) in MOVING {
            let _ = self.nodes[node].ip(&format!("addr del {address} dev {device}\n"));
        }
        self.nodes[node]
            .ip("link set front up\nlink set back up\nlink set direct up\n")
            .unwrap();
        let last = LAST[node];
        // Addresses of IPv6 go with a link.
        let again =
            format!("addr replace fd00:1::{last}/64 dev front nodad\naddr replace fd00:2::{last}/64 dev back nodad\n");
        self.nodes[node].ip(&again).unwrap();
        self.start(node);
        if self.mover == BY_TEST {
            self.report(node, "backup");
        }
    }

    /// Waits until both balancers have each other's flows.
    pub(super) fn wait_synced(&self) {
        let mut last = [Value::Null, Value::Null];
        let is = eventually(SOON, || {
            last = [0, 1].map(|node| self.balancer(node).json("/api/v1/ha"));
            last.iter().all(|ha| {
                let peers = ha["sync"]["peers"].as_array();
                peers.is_some_and(|peers| {
                    peers
                        .iter()
                        .all(|peer| peer["sending"] == true && peer["complete"] == true)
                })
            })
        });
        assert!(is, "the balancers have not found each other: {last:#?}");
    }

    /// The host's end of the next connection to a port.
    pub(super) fn accept(&self, port: u16) -> Arc<TcpStream> {
        let (_, receiver) = self.receivers.iter().find(|(known, _)| *known == port).unwrap();
        receiver
            .recv_timeout(SOON)
            .unwrap_or_else(|e| panic!("no connection at {port}: {e}"))
    }

    /// Opens a flow; returns its ends after a few bytes each way.
    pub(super) fn enter(&self, door: &Door) -> (TcpStream, Arc<TcpStream>) {
        let mut client = self.client.connect(door.at);
        client.set_nodelay(true).unwrap();
        client.write_all(&door.first).unwrap();
        let host = self.accept(door.port);
        let mut received = vec![0; door.first.len()];
        (&*host).read_exact(&mut received).unwrap();
        assert_eq!(received, door.first, "at {}", door.at);
        ping(&client, &host);
        ping(&host, &client);
        (client, host)
    }

    /// Waits until a node holds so many shadows of its peer's flows.
    pub(super) fn wait_shadows(&self, node: usize, count: u64) {
        let mut last = Value::Null;
        let is = eventually(SOON, || {
            last = self.balancer(node).json("/api/v1/ha");
            last["sync"]["peers"][0]["shadows"] == count
        });
        let other = self.balancers[1 - node]
            .as_ref()
            .map(|other| other.json("/api/v1/ha")["sync"].clone());
        assert!(
            is,
            "{} does not hold {count} shadows: {last:#}, {other:#?}",
            node_name(node)
        );
    }
}

pub(super) const fn node_name(node: usize) -> &'static str {
    ["node-a", "node-b"][node]
}

fn mac(ns: &Ns, device: &str) -> String {
    let shown = ns.must(&["ip", "-j", "link", "show", "dev", device]);
    let links: Value = serde_json::from_str(&shown).unwrap();
    links[0]["address"].as_str().unwrap().to_owned()
}

fn wire(client: &Ns, host: &Ns, nodes: [&Ns; 2]) {
    client
        .ip("link add front type bridge forward_delay 0
             addr add 10.1.0.2/24 dev front
             addr add fd00:1::2/64 dev front nodad
             link set front up\n")
        .unwrap();
    host.ip("link add back type bridge forward_delay 0
             addr add 10.2.0.2/24 dev back
             addr add fd00:2::2/64 dev back nodad
             link set back up\n")
        .unwrap();
    for (at, node) in nodes.into_iter().enumerate() {
        let (name, last) = (node_name(at), LAST[at]);
        for (bridge, network, far) in [("front", 1, client), ("back", 2, host)] {
            let add = format!(
                "link add {name} type veth peer name {bridge} netns {}\nlink set {name} master {bridge}\nlink set {name} up\n",
                node.name()
            );
            far.ip(&add).unwrap();
            node.ip(&format!(
                "addr add 10.{network}.0.{last}/24 dev {bridge}
                 addr add fd00:{network}::{last}/64 dev {bridge} nodad
                 link set {bridge} up\n"
            ))
            .unwrap();
        }
        node.sysctl(&["net.ipv4.ip_local_port_range=12000 65000"]).unwrap();
    }
    let [a, b] = nodes;
    a.ip(&format!(
        "link add name direct type veth peer name direct netns {}\n",
        b.name()
    ))
    .unwrap();
    a.ip("addr add 10.3.0.11/24 dev direct\nlink set direct up\n").unwrap();
    b.ip("addr add 10.3.0.12/24 dev direct\nlink set direct up\n").unwrap();
}

/// Writes an authority, and for each node a certificate for its name.
fn certificates(dir: &Path) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(dir.join("ca.pem"), authority.pem()).unwrap();
    for name in ["node-a", "node-b", "node-c"] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let signed = params.signed_by(&key, &authority).unwrap();
        std::fs::write(dir.join(format!("{name}.crt")), signed.pem()).unwrap();
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

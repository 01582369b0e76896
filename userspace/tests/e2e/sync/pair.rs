//! Balancers, usually two, that share virtual addresses, with a client in front of them and a host behind:
//!
//! ```text
//! client 10.1.0.2 ──bridge "front"── node-a 10.1.0.11, node-b 10.1.0.12, ..., VIP 10.1.0.10
//! host   10.2.0.2 ──bridge "back"─── node-a 10.2.0.11, node-b 10.2.0.12, ..., floating source 10.2.0.10
//!                   bridge "direct"─ node-a 10.3.0.11, node-b 10.3.0.12, ...
//! ```
//!
//! The test itself moves the addresses and says who has them (`mode: external`), or keepalived does.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use signalbox_lab::{Kind, Sandbox};

use super::config::{Door, Settings};
use super::network::{certificates, wire};
use crate::lab::signalbox::{binary, find};
use crate::lab::tiers::ping;
use crate::lab::{Ns, Proc, SOON, Server, Signalbox, eventually, privileged, servers};

const KIND: Kind = Kind {
    prefix: "sbp",
    program: "e2e",
    detach: |ns| {
        if ns.name().contains("-node-") {
            ns.output(&[binary(), "detach"]);
        }
    },
};

/// The namespaces, and the balancers that run.
pub(super) struct Pair {
    sandbox: Sandbox,
    pub(super) client: Ns,
    pub(super) host: Ns,
    pub(super) nodes: Vec<Ns>,
    pub(super) balancers: Vec<Option<Signalbox>>,
    _health: Server,
    receivers: Vec<(u16, Receiver<Arc<TcpStream>>)>,
    _servers: Vec<Server>,
    pub(super) settings: Settings,
    /// Variables of the environment that a node's processes have.
    pub(super) environment: Vec<Vec<(&'static str, String)>>,
    pub(super) supervisors: Vec<Option<Proc>>,
}

impl Pair {
    /// Builds it with two balancers, of which the first has the addresses.
    pub(super) fn begin(test: &str) -> Option<Self> {
        Self::begin_with(test, Settings::default())
    }

    /// Builds it with these settings. The test accepts the connections of listeners.
    pub(super) fn begin_with(test: &str, settings: Settings) -> Option<Self> {
        Self::begin_prepared(test, settings, |pair| {
            for port in [80, 443, 3306] {
                pair.hand_over(port);
            }
        })
    }

    /// Builds it with the servers of the host in the test's hands.
    pub(super) fn begin_bare(test: &str) -> Option<Self> {
        Self::begin_prepared(test, Settings::default(), |_| {})
    }

    /// Builds it with services of layer 4 with this idle time, whose servers are in the test's hands.
    pub(super) fn begin_with_services(test: &str, idle: &'static str) -> Option<Self> {
        let idle = Some(idle);
        Self::begin_prepared(
            test,
            Settings {
                idle,
                ..Settings::default()
            },
            |_| {},
        )
    }

    /// Builds it, with something done before the balancers start.
    pub(super) fn begin_prepared(test: &str, settings: Settings, prepare: impl FnOnce(&mut Self)) -> Option<Self> {
        if !privileged(test) {
            return None;
        }
        let mut pair = Self::build(settings);
        prepare(&mut pair);
        for node in pair.settings.listed.clone() {
            pair.start(node);
        }
        pair.give(0);
        pair.wait_synced();
        Some(pair)
    }

    /// Builds it with keepalived. The first node gets the addresses.
    pub(super) fn begin_keepalived(test: &str, mover: &'static str) -> Option<Self> {
        Self::begin_keepalived_with(test, Settings::moved_by(mover))
    }

    /// Builds it with keepalived and these settings.
    pub(super) fn begin_keepalived_with(test: &str, settings: Settings) -> Option<Self> {
        Self::begin_keepalived_prepared(test, settings, |_| {})
    }

    /// Builds it with keepalived, with something done before all of it starts.
    pub(super) fn begin_keepalived_prepared(
        test: &str,
        settings: Settings,
        prepare: impl FnOnce(&mut Self),
    ) -> Option<Self> {
        if !signalbox_lab::privileged(test, &["ip", "nsenter", "keepalived", "nft"]) {
            return None;
        }
        let mut pair = Self::build(settings);
        prepare(&mut pair);
        for node in pair.settings.listed.clone() {
            pair.start(node);
            pair.supervise(node);
        }
        pair.wait_synced();
        // Both may have had the addresses for a moment: neighbours must not have heard of the other node last.
        pair.wait_sole_owner(0);
        pair.point_to(0);
        Some(pair)
    }

    /// Has the test accept connections at another port of the host.
    pub(super) fn hand_over(&mut self, port: u16) {
        let (server, receiver) = servers::hand_over(&self.host, &format!("[::]:{port}"));
        self.receivers.push((port, receiver));
        self._servers.push(server);
    }

    fn build(settings: Settings) -> Self {
        let sandbox = Sandbox::new(&KIND).unwrap();
        let [client, host] = ["client", "host"].map(|role| sandbox.namespace(role).unwrap());
        let nodes: Vec<_> = (0..settings.nodes)
            .map(|node| sandbox.namespace(node_name(node)).unwrap())
            .collect();
        wire(&client, &host, &nodes);
        certificates(sandbox.dir());
        Self {
            _health: servers::healthy(&host),
            sandbox,
            client,
            host,
            balancers: nodes.iter().map(|_| None).collect(),
            supervisors: nodes.iter().map(|_| None).collect(),
            environment: nodes.iter().map(|_| Vec::new()).collect(),
            nodes,
            receivers: Vec::new(),
            _servers: Vec::new(),
            settings,
        }
    }

    /// Makes a further namespace, which is removed with the others.
    pub(super) fn namespace(&self, role: &str) -> Ns {
        self.sandbox.namespace(role).unwrap()
    }

    /// Directory of the pair's files.
    pub(super) fn dir(&self) -> &Path {
        self.sandbox.dir()
    }

    pub(super) fn balancer(&self, node: usize) -> &Signalbox {
        self.balancers[node].as_ref().unwrap()
    }

    /// Numbers of the nodes whose balancers run.
    pub(super) fn running(&self) -> Vec<usize> {
        (0..self.nodes.len())
            .filter(|&node| self.balancers[node].is_some())
            .collect()
    }

    /// Waits until all balancers that run have each other's flows.
    pub(super) fn wait_synced(&self) {
        let running = self.running();
        let mut last = Vec::new();
        let is = eventually(2 * SOON, || {
            last = running
                .iter()
                .map(|&node| self.balancer(node).json("/api/v1/ha"))
                .collect();
            let is_in_touch = |node: usize, other: usize| {
                let peer = find(&last[node]["sync"]["peers"], "node", node_name(running[other]));
                node == other || (peer["sending"] == true && peer["complete"] == true)
            };
            (0..running.len()).all(|node| (0..running.len()).all(|other| is_in_touch(node, other)))
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
        self.enter_with(door, self.client.connect(door.at))
    }

    /// Opens a flow by the connection of a client that has sent nothing.
    pub(super) fn enter_with(&self, door: &Door, mut client: TcpStream) -> (TcpStream, Arc<TcpStream>) {
        client.set_nodelay(true).unwrap();
        client.write_all(&door.first).unwrap();
        self.enter_spoken(door, client)
    }

    /// Opens a flow by the connection of a client that has sent its first data.
    pub(super) fn enter_spoken(&self, door: &Door, client: TcpStream) -> (TcpStream, Arc<TcpStream>) {
        let host = self.accept(door.port);
        let mut received = vec![0; door.first.len()];
        (&*host).read_exact(&mut received).unwrap();
        assert_eq!(received, door.first, "at {}", door.at);
        ping(&client, &host);
        ping(&host, &client);
        (client, host)
    }

    /// Number of shadows that a node holds, by its peers.
    pub(super) fn shadows(&self, node: usize) -> Vec<u64> {
        let ha = self.balancer(node).json("/api/v1/ha");
        let peers = ha["sync"]["peers"].as_array().unwrap();
        peers.iter().map(|peer| peer["shadows"].as_u64().unwrap()).collect()
    }

    /// Waits until a node holds `count` shadows of its peers' flows.
    pub(super) fn wait_shadows(&self, node: usize, count: u64) {
        let is = eventually(SOON, || self.shadows(node).iter().sum::<u64>() == count);
        let all = || {
            let states = self.balancers.iter().flatten();
            states
                .map(|balancer| balancer.json("/api/v1/ha")["sync"].clone())
                .collect::<Vec<_>>()
        };
        assert!(is, "{} does not hold {count} shadows: {:#?}", node_name(node), all());
    }

    /// Waits until the kernel carries `count` flows for a node.
    pub(super) fn wait_flows(&self, node: usize, count: u64) {
        let balancer = self.balancer(node);
        let is = eventually(SOON, || balancer.flow_count() == count);
        let flows = balancer.flow_count();
        assert!(
            is,
            "{} has {flows} flows, not {count}:\n{}",
            node_name(node),
            self.logs()
        );
    }
}

/// Names of the nodes, as many as there may be.
pub(super) const NODE_NAMES: [&str; 8] = [
    "node-a", "node-b", "node-c", "node-d", "node-e", "node-f", "node-g", "node-h",
];

pub(super) const fn node_name(node: usize) -> &'static str {
    NODE_NAMES[node]
}

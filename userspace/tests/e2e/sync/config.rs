//! The configurations of two balancers that share virtual addresses, and their doors for clients.

use std::path::Path;

use super::network::LAST;
use super::pair::node_name;
use crate::lab::hello;

/// Addresses that the test moves.
pub(super) const BY_TEST: &str = "  mode: external\n";

/// Listeners at port 3306 of the virtual addresses.
const LISTENERS: &str = "  - { name: tcp4, protocol: tcp, listen: [\"10.1.0.10:3306\"], cluster: v4 }
  - { name: tcp6, protocol: tcp, listen: [\"[fd00:1::10]:3306\"], cluster: v6 }
";

/// Likewise at the addresses of the second group.
const SECOND_LISTENERS: &str = "  - { name: second4, protocol: tcp, listen: [\"10.1.0.20:3306\"], cluster: v4 }
  - { name: second6, protocol: tcp, listen: [\"[fd00:1::20]:3306\"], cluster: v6 }
";
const SECOND_GROUP: &str = "    - { name: g2, vips: [\"10.1.0.20\", \"fd00:1::20\"], sources: [\"10.2.0.20/24@back\", \"fd00:2::20/64@back\"] }
";

/// A door for clients: address, port of the host, and the first bytes of the client.
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

/// Returns the doors of the second group.
pub(super) fn second_doors() -> Vec<Door> {
    let door = |at| Door {
        at,
        port: 3306,
        first: Vec::new(),
    };
    ["10.1.0.20:3306", "[fd00:1::20]:3306"].map(door).into()
}

/// Settings that all nodes have.
pub(super) struct Settings {
    /// Number of nodes that there are.
    pub(super) nodes: usize,
    /// Nodes of the configuration, in their order.
    pub(super) listed: Vec<usize>,
    /// Whether there is a second group, with listeners at its port 3306.
    pub(super) has_second_group: bool,
    /// Most shadows of each node.
    pub(super) room: u32,
    /// Lines of the section `ha` that set who moves the addresses.
    pub(super) mover: &'static str,
    /// Further keys of `ha.sync`, each with a comma before it.
    pub(super) sync: &'static str,
    /// Further top-level lines, and one with certificates.
    pub(super) lines: &'static str,
    pub(super) certificates: String,
    /// Further listeners.
    pub(super) listeners: &'static str,
    /// Idle time of services of layer 4 at port 3306; `None`: there are listeners.
    pub(super) idle: Option<&'static str>,
    /// Further services and clusters.
    pub(super) services: String,
    pub(super) clusters: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            nodes: 2,
            listed: vec![0, 1],
            has_second_group: false,
            room: 4096,
            mover: BY_TEST,
            sync: "",
            lines: "",
            certificates: String::new(),
            listeners: "",
            idle: None,
            services: String::new(),
            clusters: String::new(),
        }
    }
}

impl Settings {
    /// Settings of `nodes` nodes.
    pub(super) fn of(nodes: usize) -> Self {
        Self {
            nodes,
            listed: (0..nodes).collect(),
            ..Self::default()
        }
    }

    /// Settings of two nodes with this in the section `ha`.
    pub(super) fn moved_by(mover: &'static str) -> Self {
        Self {
            mover,
            ..Self::default()
        }
    }

    /// Configuration of a node whose files are in a directory.
    pub(super) fn body(&self, node: usize, dir: &Path) -> String {
        let (name, dir) = (node_name(node), dir.display());
        let listeners = if self.idle.is_some() { "" } else { LISTENERS };
        format!(
            "{}
{}listeners:
{listeners}{}{}  - {{ name: http, protocol: http, listen: [\"10.1.0.10:80\", \"[fd00:1::10]:80\"] }}
  - {{ name: ws, protocol: http, routing: request, listen: [\"10.1.0.10:8080\", \"[fd00:1::10]:8080\"] }}
  - {{ name: https, protocol: tls, listen: [\"10.1.0.10:443\", \"[fd00:1::10]:443\"] }}
clusters:
{}{}{}routes:
  - {{ host: a.test, clusters: {{ v4: 1 }} }}
  - {{ host: b.test, clusters: {{ v6: 1 }} }}
ha:
{}  node: {name}
  nodes:
{}  interface: front
  groups:
    - {{ name: g1, prefer: {}, vips: [\"10.1.0.10\", \"fd00:1::10\"], sources: [\"10.2.0.10/24@back\", \"fd00:2::10/64@back\"] }}
{}  sync: {{ listen: \"10.3.0.1{}:8090\", cert: {dir}/{name}.crt, key: {dir}/{name}.key, ca: {dir}/ca.pem, flows: {}{} }}
{}",
            self.lines,
            self.certificates,
            self.listeners,
            if self.has_second_group { SECOND_LISTENERS } else { "" },
            cluster("v4", "host4", "10.2.0.2"),
            cluster("v6", "host6", "fd00:2::2"),
            self.clusters,
            self.mover,
            self.listed.iter().map(listed).collect::<String>(),
            node_name(self.listed[0]),
            if self.has_second_group { SECOND_GROUP } else { "" },
            node + 1,
            self.room,
            self.sync,
            self.all_services(),
        )
    }

    fn all_services(&self) -> String {
        let service = |name: &str, at: &str, cluster: &str| match self.idle {
            Some(idle) => format!(
                "  - {{ name: {name}, protocol: tcp, listen: [\"{at}:3306\"], cluster: {cluster}, idle: {idle} }}\n"
            ),
            None => String::new(),
        };
        let all = [
            service("db4", "10.1.0.10", "v4"),
            service("db6", "[fd00:1::10]", "v6"),
            self.services.clone(),
        ]
        .concat();
        if all.is_empty() {
            return all;
        }
        format!("services:\n{all}")
    }
}

fn listed(node: &usize) -> String {
    format!(
        "    - {{ name: {}, address: 10.3.0.{} }}\n",
        node_name(*node),
        LAST[*node]
    )
}

fn cluster(name: &str, host: &str, address: &str) -> String {
    format!(
        "  - name: {name}\n    ejection: {{ failures: 0 }}\n    \
         health: {{ http: {{ port: 1936, path: /healthz }}, interval: 2s, timeout: 2s, rise: 1, fall: 100 }}\n    \
         hosts:\n      - {{ name: {host}, address: \"{address}\", http: 80, https: 443, tcp: 3306 }}\n"
    )
}

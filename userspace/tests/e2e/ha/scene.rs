//! Two balancers with keepalived between a client and a host:
//!
//! ```text
//! client 10.1.0.2 ──┐                ┌── node-a 10.1.0.11 │ 10.2.0.11 ──┐               ┌── host 10.2.0.2
//!                   └─ bridge front ─┤                                  ├─ bridge back ─┘
//!                                    └── node-b 10.1.0.12 │ 10.2.0.12 ──┘
//! ```

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use signalbox_lab::Sandbox;

use crate::lab::namespace::connect_here;
use crate::lab::signalbox::binary;
use crate::lab::topology::KIND;
use crate::lab::{Ns, Proc, SOON, Server, config, eventually, http, servers};

/// Virtual addresses of groups `g1` and `g2`.
pub(super) const VIPS: [&str; 2] = ["10.1.0.101", "10.1.0.102"];
/// Virtual address of IPv6 of group `g1`.
pub(super) const VIP6: &str = "fd00:1::101";
/// Source of group `g1`.
pub(super) const SOURCE: &str = "10.2.0.101";

/// Whether the tests of this module can run here.
pub(super) fn privileged(test: &str) -> bool {
    signalbox_lab::privileged(test, &["ip", "nsenter", "keepalived", "nft"])
}

/// The network, and both nodes.
pub(super) struct HaLab {
    pub(super) nodes: [Node; 2],
    pub(super) client: Ns,
    switch: Ns,
    _servers: [Server; 2],
    _sandbox: Sandbox,
}

impl HaLab {
    /// Builds the network and starts both nodes; `ha` are further keys of the section.
    pub(super) fn start(ha: &str) -> Self {
        let lab = Self::new();
        for node in &lab.nodes {
            node.write(ha);
        }
        let mut lab = lab;
        for node in &mut lab.nodes {
            node.start_signalbox();
            node.start_supervisor();
        }
        lab
    }

    /// Builds the network.
    pub(super) fn new() -> Self {
        let sandbox = Sandbox::new(&KIND).unwrap();
        let create = |role: &str| sandbox.namespace(role).unwrap();
        let (client, host, switch) = (create("client"), create("host"), create("switch"));
        let namespaces = [create("a-lb"), create("b-lb")];
        switch
            .ip(
                "link add front type bridge forward_delay 0\nlink add back type bridge forward_delay 0\n\
                 link set front up\nlink set back up\n",
            )
            .unwrap();
        switch
            .cable("client", &[""; 0], &client, &["10.1.0.2/24", "fd00:1::2/64"])
            .unwrap();
        switch.cable("host", &[""; 0], &host, &["10.2.0.2/24"]).unwrap();
        switch
            .ip("link set client master front\nlink set host master back\n")
            .unwrap();
        for (at, ns) in namespaces.iter().enumerate() {
            let (name, last) = (["a", "b"][at], 11 + at);
            let lines = format!(
                "link add {name}-front type veth peer name front netns {0}\n\
                 link add {name}-back type veth peer name back netns {0}\n\
                 link set {name}-front up master front\nlink set {name}-back up master back\n",
                ns.name()
            );
            switch.ip(&lines).unwrap();
            let lines = format!(
                "link set front up\nlink set back up\naddr add 10.1.0.{last}/24 dev front\n\
                 addr add fd00:1::{last}/64 dev front nodad\naddr add 10.2.0.{last}/24 dev back\n"
            );
            ns.ip(&lines).unwrap();
        }
        let answer = |stream: std::sync::Arc<std::net::TcpStream>| {
            let mut request = [0; 1024];
            let _ = (&*stream).read(&mut request);
            let _ = (&*stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        };
        let servers = [servers::healthy(&host), Server::start(&host, "[::]:80", answer)];
        let nodes = [0, 1].map(|at| {
            let name = ["node-a", "node-b"][at];
            let dir = sandbox.dir().join(name);
            fs::create_dir_all(&dir).unwrap();
            Node {
                name,
                ns: namespaces[at].clone(),
                dir,
                signalbox: None,
                supervisor: None,
            }
        });
        Self {
            nodes,
            client,
            switch,
            _servers: servers,
            _sandbox: sandbox,
        }
    }

    /// Node with this index and the other one.
    pub(super) fn pair(&mut self, first: usize) -> (&mut Node, &mut Node) {
        let [a, b] = &mut self.nodes;
        if first == 0 { (a, b) } else { (b, a) }
    }

    /// Pulls a node's cables, or puts them back.
    pub(super) fn set_links(&self, node: usize, up: bool) {
        let (name, state) = (["a", "b"][node], if up { "up" } else { "down" });
        let lines = format!("link set {name}-front {state}\nlink set {name}-back {state}\n");
        self.switch.ip(&lines).unwrap();
    }

    /// Pulls the cable between a node and the hosts, or puts it back.
    pub(super) fn set_back_link(&self, node: usize, up: bool) {
        let (name, state) = (["a", "b"][node], if up { "up" } else { "down" });
        self.switch.ip(&format!("link set {name}-back {state}\n")).unwrap();
    }

    /// Index of the node that has an address; exactly one must have it soon.
    pub(super) fn owner(&self, address: &str) -> usize {
        let mut owner = None;
        let found = eventually(SOON, || {
            let owners: Vec<_> = (0..2).filter(|at| self.nodes[*at].has(address)).collect();
            owner = (owners.len() == 1).then(|| owners[0]);
            owner.is_some()
        });
        assert!(found, "{address} has no owner:\n{}", self.logs());
        owner.unwrap()
    }

    /// Index of the node that has a group once both nodes agree: at the start both may have had it for a moment.
    pub(super) fn settled_owner(&self, group: &str, address: &str) -> usize {
        let mut owner = 0;
        let is_settled = eventually(SOON, || {
            owner = self.owner(address);
            let states = [self.nodes[owner].state(group), self.nodes[1 - owner].state(group)];
            states[0] == "master" && states[1] == "backup"
        });
        assert!(is_settled, "{group} is not settled:\n{}", self.logs());
        owner
    }

    /// Waits until a node, and no other, has an address.
    pub(super) fn wait_owner(&self, address: &str, node: usize) {
        let is_there = eventually(SOON, || {
            self.nodes[node].has(address) && !self.nodes[1 - node].has(address)
        });
        assert!(is_there, "{address} is not at node {node}:\n{}", self.logs());
    }

    /// Waits until a client reaches the host at a virtual address.
    pub(super) fn wait_served(&self, address: &str) {
        let at = if address.contains(':') {
            format!("[{address}]:80")
        } else {
            format!("{address}:80")
        };
        let is_served = eventually(SOON, || self.client.run(|| ask(&at)).is_ok_and(|status| status == 200));
        assert!(is_served, "{at} is not served:\n{}", self.logs());
    }

    pub(super) fn logs(&self) -> String {
        let logs = self.nodes.iter().map(|node| {
            let log = |process: &Option<Proc>| {
                process
                    .as_ref()
                    .map_or_else(String::new, |p| p.last_words(40).join("\n"))
            };
            let ours = format!("{}\n{}", log(&node.signalbox), log(&node.supervisor));
            format!(
                "--- {}: {}\n{ours}\n",
                node.name,
                node.ns.must(&["ip", "-brief", "address"])
            )
        });
        let neighbours = self.client.must(&["ip", "neigh"]);
        logs.collect::<String>() + "--- neighbours of the client:\n" + &neighbours
    }
}

fn ask(at: &str) -> std::io::Result<u16> {
    let stream = connect_here(at)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    http::get(&stream, "a.test", "/").map(|response| response.status)
}

/// A balancer.
pub(super) struct Node {
    pub(super) name: &'static str,
    pub(super) ns: Ns,
    dir: PathBuf,
    pub(super) signalbox: Option<Proc>,
    pub(super) supervisor: Option<Proc>,
}

impl Node {
    /// Writes the configuration, with further keys of the section `ha`.
    pub(super) fn write(&self, ha: &str) {
        let mode = if ha.contains("vrrp:") {
            ""
        } else {
            "  vrrp: { advert: 100ms }\n"
        };
        let interface = if ha.contains("mode: address") {
            ""
        } else {
            "  interface: front\n"
        };
        let nodes = "[{ name: node-a, address: 10.1.0.11 }, { name: node-b, address: 10.1.0.12 }]";
        let name = self.name;
        self.write_text(&format!(
            "ha:\n  name: router-west\n  node: {name}\n  nodes: {nodes}\n{interface}{mode}{ha}\n"
        ));
    }

    /// Writes a configuration that has no section `ha`.
    pub(super) fn write_without_section(&self) {
        self.write_text("");
    }

    fn write_text(&self, section: &str) {
        let dir = self.dir.display();
        let hosts = ["{ name: host-1, address: 10.2.0.2, http: 80 }".to_owned()];
        let text = format!(
            "version: 1\nadmin: {{ listen: none, socket: {dir}/admin.sock }}\nstore: {{ path: {dir}/state.redb }}\n\
             datapath: {{ cut: off }}\nlisteners:\n  - {{ name: http, protocol: http, listen: [\"*:80\"] }}\n\
             clusters:\n{}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n{section}",
            config::cluster_of("east", &[], &hosts),
        );
        let (file, new) = (self.config(), self.dir.join("new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, file).unwrap();
    }

    pub(super) fn config(&self) -> PathBuf {
        self.dir.join("signalbox.yaml")
    }

    /// File of the node's directory.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Writes a program into the node's directory.
    pub(super) fn write_program(&self, name: &str, body: &str) -> PathBuf {
        let path = self.file(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    pub(super) fn start_signalbox(&mut self) {
        let mut command = self.ns.command(binary());
        command.arg("run").arg("--config").arg(self.config());
        self.signalbox = Some(Proc::spawn("signalbox", command, &self.dir));
    }

    pub(super) fn start_supervisor(&mut self) {
        let mut command = self.ns.command(binary());
        command
            .args(["--log", "info,keepalived=debug", "ha", "run", "--config"])
            .arg(self.config());
        command.arg("--runtime-dir").arg(self.file("run"));
        self.supervisor = Some(Proc::spawn("supervisor", command, &self.dir).ended_in_order());
    }

    /// Runs `signalbox ha` with further words.
    pub(super) fn ha(&self, words: &[&str]) -> Output {
        let mut command = self.ns.command(binary());
        command.arg("ha").args(words);
        if matches!(words[0], "release" | "reclaim") {
            command.arg("--runtime-dir").arg(self.file("run"));
        }
        if matches!(words[0], "check") {
            command.arg("--config").arg(self.config());
        } else {
            command.arg("--socket").arg(self.file("admin.sock"));
        }
        command.output().unwrap()
    }

    /// Output of `signalbox ha status`; null while signalbox does not answer.
    pub(super) fn status(&self) -> Value {
        serde_json::from_slice(&self.ha(&["status", "-o", "json"]).stdout).unwrap_or_default()
    }

    /// State of a group in the API.
    pub(super) fn state(&self, group: &str) -> Value {
        let status = self.status();
        crate::lab::signalbox::find(&status["groups"], "name", group)["state"].clone()
    }

    /// Waits until the API says that a group is in a state.
    pub(super) fn wait_state(&self, group: &str, state: &str) {
        assert!(
            eventually(SOON, || self.state(group) == state),
            "{}: {group}: {}",
            self.name,
            self.status()
        );
    }

    /// Whether the node has an address.
    pub(super) fn has(&self, address: &str) -> bool {
        let text = self.ns.must(&["ip", "-oneline", "address", "show"]);
        text.contains(&format!(" {address}/"))
    }

    /// Ids of keepalived and its child.
    pub(super) fn keepalived(&self) -> [Pid; 2] {
        ["keepalived.pid", "vrrp.pid"].map(|file| {
            let path = self.file("run").join(file);
            let mut pid = None;
            let found = eventually(SOON, || {
                pid = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
                pid.is_some()
            });
            assert!(found, "{}", path.display());
            Pid::from_raw(pid.unwrap())
        })
    }

    /// Sends a request to the admin socket.
    pub(super) fn ask(&self, method: &str, path: &str, body: &str) -> http::Response {
        let stream = UnixStream::connect(self.file("admin.sock")).unwrap();
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}");
        http::request(stream, &format!("{head}\r\n\r\n{body}")).unwrap()
    }

    /// Starts a signalbox that takes the listening sockets over from the running one, and waits for that one's end.
    pub(super) fn take_over(&mut self) {
        let mut command = self.ns.command(binary());
        command.arg("run").arg("--takeover").arg("--config").arg(self.config());
        let successor = Proc::spawn("successor", command, &self.dir);
        let mut before = self.signalbox.replace(successor).unwrap();
        assert!(before.wait_exit(SOON).is_some(), "{}", before.log());
    }

    /// Kills processes without a chance to say goodbye.
    pub(super) fn kill(pids: &[Pid]) {
        // Stopped first: a child that outlives its parent for a moment would remove the addresses.
        for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
            for pid in pids {
                kill(*pid, signal).unwrap();
            }
        }
    }
}

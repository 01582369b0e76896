//! Namespaces of the lab, and how they are joined:
//!
//! ```text
//! client 10.1.0.2 ──veth── lb 10.1.0.1 │ bridge 10.2.0.1, 10.3.0.1 ──veth── each router host
//! ```

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use signalbox_lab::{Kind, Sandbox};

use super::Ns;
use super::signalbox::binary;

/// Kind of the labs: pins of signalbox would outlive the balancer's namespace.
pub(crate) const KIND: Kind = Kind {
    prefix: "sbx",
    program: "e2e",
    detach: |ns| {
        if ns.name().ends_with("-lb") {
            ns.output(&[binary(), "detach"]);
        }
    },
};

/// The router hosts: name, IPv4, IPv6.
pub(crate) const HOSTS: [(&str, &str, &str); 5] = [
    ("east-1", "10.2.0.2", "fd00:2::2"),
    ("east-2", "10.2.0.3", "fd00:2::3"),
    ("east-3", "10.2.0.4", "fd00:2::6"),
    ("west-1", "10.3.0.2", "fd00:2::4"),
    ("west-2", "10.3.0.3", "fd00:2::5"),
];

/// Rules of a host's firewall, of bans and of a node's services, which do nothing to the connections of these tests. With
/// `SIGNALBOX_E2E_RULES`, every balancer of a lab has them.
const HARMLESS_RULES: &str = include_str!("rules.nft");

/// Whether balancers run beside [`HARMLESS_RULES`].
pub(crate) fn has_rules() -> bool {
    std::env::var_os("SIGNALBOX_E2E_RULES").is_some()
}

/// The client's addresses beside 10.1.0.2, for tests that depend on the source.
pub(crate) const OTHER_CLIENTS: [&str; 2] = ["10.1.0.3", "10.1.0.4"];

/// The namespaces of one test. Removed on drop.
pub(crate) struct Lab {
    /// Directory for configurations, certificates, logs and the admin socket; the names of the namespaces.
    sandbox: Sandbox,
    /// Namespace of clients.
    pub(crate) client: Ns,
    /// Namespace of signalbox.
    pub(crate) lb: Ns,
    hosts: Vec<Ns>,
    /// Environment of every signalbox that is started here.
    environment: Mutex<Vec<(&'static str, String)>>,
    /// Program that is started instead of the one under test.
    program: Mutex<Option<PathBuf>>,
}

impl Lab {
    /// Builds it.
    pub(crate) fn new() -> Self {
        let sandbox = Sandbox::new(&KIND).unwrap();
        let create = |role: &str| sandbox.namespace(role).unwrap();
        let lab = Self {
            client: create("client"),
            lb: create("lb"),
            hosts: HOSTS.iter().map(|(name, ..)| create(name)).collect(),
            sandbox,
            environment: Mutex::default(),
            program: Mutex::default(),
        };
        lab.wire();
        lab
    }

    /// The namespace of a router host.
    pub(crate) fn host(&self, name: &str) -> &Ns {
        let index = HOSTS.iter().position(|(host, ..)| *host == name);
        &self.hosts[index.unwrap_or_else(|| panic!("no host {name}"))]
    }

    /// Has every signalbox that is started here from now on find a variable in its environment.
    pub(crate) fn set_env(&self, name: &'static str, value: impl Into<String>) {
        self.environment.lock().unwrap().push((name, value.into()));
    }

    /// Starts of signalbox take this program from now on.
    pub(crate) fn set_program(&self, program: impl Into<PathBuf>) {
        *self.program.lock().unwrap() = Some(program.into());
    }

    /// The program that was set, if one was.
    pub(crate) fn program(&self) -> Option<PathBuf> {
        self.program.lock().unwrap().clone()
    }

    /// Returns the environment of every signalbox.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        self.environment.lock().unwrap().clone()
    }

    /// The lab's directory.
    pub(crate) fn dir(&self) -> &Path {
        self.sandbox.dir()
    }

    /// Gives the balancer another address, such as `10.1.0.9/24`.
    pub(crate) fn add_lb_address(&self, address: &str) {
        self.lb.ip(&format!("addr add {address} dev client nodad")).unwrap();
    }

    /// A cable pulled out and put back: the effect of a host that died silently.
    pub(crate) fn set_link(&self, host: &str, up: bool) {
        let state = if up { "up" } else { "down" };
        self.lb.ip(&format!("link set {host} {state}")).unwrap();
    }

    fn wire(&self) {
        let v4 = ["10.1.0.2"].iter().chain(&OTHER_CLIENTS).map(|a| format!("{a}/24"));
        let theirs: Vec<_> = v4.chain(["fd00:1::2/64".to_owned()]).collect();
        let ours = ["10.1.0.1/24", "fd00:1::1/64"];
        self.lb.cable("client", &ours, &self.client, &theirs).unwrap();
        self.client.ip("route add default via 10.1.0.1").unwrap();
        let mut bridge = "link add back type bridge forward_delay 0
             addr add 10.2.0.1/24 dev back
             addr add 10.3.0.1/24 dev back
             addr add fd00:2::1/64 dev back nodad
             link set back up
             route add local 10.9.0.0/24 dev lo\n"
            .to_owned();
        for (ns, (name, v4, v6)) in self.hosts.iter().zip(HOSTS) {
            let addresses = [format!("{v4}/24"), format!("{v6}/64")];
            self.lb.cable(name, &[""; 0], ns, &addresses).unwrap();
            bridge += &format!("link set {name} master back\n");
        }
        self.lb.ip(&bridge).unwrap();
        for ns in self.hosts.iter().chain([&self.client, &self.lb]) {
            // The kernel's own defaults, regardless of the machine's tuning: the tests of back-pressure count on them.
            // Tests also open more connections than the default range has ports for.
            let settings = [
                "net.ipv4.tcp_rmem=4096 131072 6291456",
                "net.ipv4.tcp_wmem=4096 16384 4194304",
                "net.ipv4.ip_local_port_range=12000 65000",
            ];
            ns.sysctl(&settings).unwrap();
        }
        if has_rules() {
            // The bridge stands for the hosts' switch, which no packet filter of the balancer sees.
            if Path::new("/proc/sys/net/bridge").exists() {
                let off = [
                    "net.bridge.bridge-nf-call-iptables=0",
                    "net.bridge.bridge-nf-call-ip6tables=0",
                ];
                self.lb.sysctl(&off).unwrap();
            }
            self.lb.try_must(&["nft", "--file", "-"], HARMLESS_RULES).unwrap();
        }
    }
}

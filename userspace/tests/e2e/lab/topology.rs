//! Namespaces of the lab, and how they are joined:
//!
//! ```text
//! client 10.1.0.2 ──veth── lb 10.1.0.1 │ bridge 10.2.0.1, 10.3.0.1 ──veth── each router host
//! ```

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once};

use super::namespace::Ns;

/// The router hosts: name, IPv4, IPv6.
pub(crate) const HOSTS: [(&str, &str, &str); 5] = [
    ("east-1", "10.2.0.2", "fd00:2::2"),
    ("east-2", "10.2.0.3", "fd00:2::3"),
    ("east-3", "10.2.0.4", "fd00:2::6"),
    ("west-1", "10.3.0.2", "fd00:2::4"),
    ("west-2", "10.3.0.3", "fd00:2::5"),
];

/// The client's addresses beside 10.1.0.2, for what depends on the source.
pub(crate) const OTHER_CLIENTS: [&str; 2] = ["10.1.0.3", "10.1.0.4"];

/// The namespaces of one test. Removed on drop.
pub(crate) struct Lab {
    prefix: String,
    /// Configurations, certificates, logs, the admin socket.
    dir: PathBuf,
    /// Namespace of clients.
    pub(crate) client: Ns,
    /// Namespace of signalbox.
    pub(crate) lb: Ns,
    hosts: Vec<Ns>,
    /// Environment of every signalbox that is started here.
    environment: Mutex<Vec<(&'static str, &'static str)>>,
    /// Program that is started instead of the one under test.
    program: Mutex<Option<PathBuf>>,
}

impl Lab {
    /// Builds it.
    pub(crate) fn new() -> Self {
        static CLEAN: Once = Once::new();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        CLEAN.call_once(remove_stale);
        let prefix = format!("sbx{}-{}-", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(prefix.trim_end_matches('-'));
        std::fs::create_dir_all(&dir).unwrap();
        let create = |role: &str| Ns::create(&format!("{prefix}{role}"));
        let lab = Self {
            client: create("client"),
            lb: create("lb"),
            hosts: HOSTS.iter().map(|(name, ..)| create(name)).collect(),
            prefix,
            dir,
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
    pub(crate) fn set_env(&self, name: &'static str, value: &'static str) {
        self.environment.lock().unwrap().push((name, value));
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
    pub(crate) fn environment(&self) -> Vec<(&'static str, &'static str)> {
        self.environment.lock().unwrap().clone()
    }

    /// The lab's directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Gives the balancer another address, such as `10.1.0.9/24`.
    pub(crate) fn add_lb_address(&self, address: &str) {
        batch(&self.lb, &format!("addr add {address} dev client nodad"));
    }

    /// A cable pulled out and put back: what a host that died without a word looks like.
    pub(crate) fn set_link(&self, host: &str, up: bool) {
        batch(&self.lb, &format!("link set {host} {}", if up { "up" } else { "down" }));
    }

    fn wire(&self) {
        let (client, lb) = (self.client.name(), self.lb.name());
        let others: String = OTHER_CLIENTS
            .iter()
            .map(|a| format!("addr add {a}/24 dev eth0\n"))
            .collect();
        batch(
            &self.lb,
            &format!(
                "link set lo up
                 link add client type veth peer name eth0 netns {client}
                 addr add 10.1.0.1/24 dev client
                 addr add fd00:1::1/64 dev client nodad
                 link set client up
                 link add back type bridge forward_delay 0
                 addr add 10.2.0.1/24 dev back
                 addr add 10.3.0.1/24 dev back
                 addr add fd00:2::1/64 dev back nodad
                 link set back up
                 route add local 10.9.0.0/24 dev lo"
            ),
        );
        batch(
            &self.client,
            &format!(
                "link set lo up
                 addr add 10.1.0.2/24 dev eth0
                 addr add fd00:1::2/64 dev eth0 nodad
                 {others}
                 link set eth0 up
                 route add default via 10.1.0.1"
            ),
        );
        for (ns, (name, v4, v6)) in self.hosts.iter().zip(HOSTS) {
            batch(
                ns,
                &format!("link set lo up\nlink add eth0 type veth peer name {name} netns {lb}"),
            );
            batch(&self.lb, &format!("link set {name} master back\nlink set {name} up"));
            batch(
                ns,
                &format!("addr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\nlink set eth0 up"),
            );
        }
        for ns in std::iter::once(&self.client).chain(&self.hosts).chain([&self.lb]) {
            // The kernel's own defaults, whatever the machine is tuned to: the tests of back-pressure count on them.
            // Tests also open more connections than the default range has ports for.
            ns.must(&[
                "sysctl",
                "-qw",
                "net.ipv4.tcp_rmem=4096 131072 6291456",
                "net.ipv4.tcp_wmem=4096 16384 4194304",
                "net.ipv4.ip_local_port_range=12000 65000",
            ]);
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for ns in self.hosts.iter().chain([&self.client, &self.lb]) {
            remove(ns.name());
        }
        if std::thread::panicking() {
            println!("the files of the failed test are in {}", self.dir.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// Runs `ip -batch` in a namespace.
fn batch(ns: &Ns, lines: &str) {
    use std::io::Write;
    let mut child = Command::new("ip")
        .args(["-n", ns.name(), "-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "in {}: {why}\n{lines}", ns.name());
}

/// Removes what tests left that were killed: namespaces named after a process that is no more, the processes in
/// them, and the directories beside.
fn remove_stale() {
    let dead = |name: &str| {
        let pid = name.strip_prefix("sbx").and_then(|rest| rest.split('-').next());
        pid.and_then(|pid| pid.parse::<u32>().ok())
            .is_some_and(|pid| pid == std::process::id() || !Path::new(&format!("/proc/{pid}")).exists())
    };
    for name in names_in(Path::new("/run/netns")).into_iter().filter(|n| dead(n)) {
        remove(&name);
    }
    let temp = std::env::temp_dir();
    for name in names_in(&temp).into_iter().filter(|n| dead(n)) {
        let _ = std::fs::remove_dir_all(temp.join(name));
    }
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().into_string().ok()).collect()
}

/// Ends whatever runs in a namespace of ours, then removes it. A test process itself is never in one: only threads
/// of it are, for the time of a closure.
fn remove(name: &str) {
    let pids = Command::new("ip").args(["netns", "pids", name]).output().unwrap();
    for pid in String::from_utf8_lossy(&pids.stdout).split_whitespace() {
        let pid: i32 = pid.parse().unwrap();
        if pid != std::process::id().cast_signed() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
    }
    if name.ends_with("-lb") {
        // Pins are removed, because they would outlive the namespace.
        let net = format!("--net=/run/netns/{name}");
        let _ = Command::new("nsenter")
            .args([&net, "--", crate::lab::signalbox::binary(), "detach"])
            .output();
    }
    let _ = Command::new("ip").args(["netns", "del", name]).output();
}

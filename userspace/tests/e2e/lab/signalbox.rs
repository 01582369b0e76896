//! The program under test: started in the balancer's namespace, asked over its API, controlled by signals.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::Proc;
use super::http::{self, Response};
use super::namespace::{Ns, connect_here};
use super::servers::{self, Server};
use super::topology::Lab;
use super::{SOON, config, eventually};

const ADMIN: &str = "127.0.0.1:8089";
/// A kernel on an emulated processor verifies the programs for a minute, and two such kernels share this machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for an answer of the API: a list of hundreds of thousands of prefixes takes long on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// A running signalbox.
pub(crate) struct Signalbox {
    /// Process of the signalbox.
    pub(crate) proc: Proc,
    lb: Ns,
    config: PathBuf,
    socket: PathBuf,
}

impl Signalbox {
    /// Starts it with a configuration (all but `version` and `admin`, which the lab sets) and waits until it is ready.
    pub(crate) fn start(lab: &Lab, body: &str) -> Self {
        Self::start_with(lab, body, &[])
    }

    /// Starts a signalbox with further words on the command line.
    pub(crate) fn start_with(lab: &Lab, body: &str, words: &[&str]) -> Self {
        let config = write_config(lab, "signalbox.yaml", body);
        Self::start_file(lab, "signalbox", &config, words)
    }

    /// Starts it on a file; `name` distinguishes several in the output of a failed test.
    pub(crate) fn start_file(lab: &Lab, name: &str, config: &Path, words: &[&str]) -> Self {
        Self::spawn_file(lab, name, config, words).wait_ready()
    }

    /// Before hosts that are not served: that of `a.test` is healthy by its check, that of `b.test` is not. `extra` are
    /// further top-level lines.
    pub(crate) fn refusing(lab: &Lab, extra: &str) -> (Server, Self) {
        let health = servers::healthy(lab.host("east-1"));
        let body = format!(
            "{extra}{}clusters:\n{}{}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n  \
             - {{ host: b.test, clusters: {{ west: 1 }} }}\n",
            config::WEB_LISTENERS,
            config::cluster("east", &["ejection: { failures: 0 }"], &["east-1"]),
            config::cluster("west", &[], &["west-1"]),
        );
        let signalbox = Self::start(lab, &body);
        signalbox.wait_healthy(&["east-1"]);
        assert!(eventually(SOON, || signalbox.host("west-1")["health"] == "unhealthy"));
        (health, signalbox)
    }

    /// Starts it in a namespace, with its files in a separate directory: one of several.
    pub(crate) fn start_in(ns: &Ns, dir: &Path, name: &str, body: &str, environment: &[(&str, String)]) -> Self {
        let (config, socket) = (dir.join("signalbox.yaml"), dir.join("admin.sock"));
        write_text(&config, &document(&socket, body));
        let mut command = ns.command(binary());
        command.arg("run").arg("--config").arg(&config);
        command.env("RUST_BACKTRACE", "1");
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let started = Self {
            proc: Proc::spawn(name, command, dir),
            lb: ns.clone(),
            config,
            socket,
        };
        started.wait_ready()
    }

    /// Has a new process take over, and waits until the one before has ended.
    pub(crate) fn be_replaced(&mut self, name: &str) {
        self.be_replaced_by(binary(), name);
    }

    /// Likewise, with a process of another program.
    pub(crate) fn be_replaced_by(&mut self, program: impl AsRef<OsStr>, name: &str) {
        let mut before = self.start_successor(program, name);
        // Verifying the programs takes a while on a busy machine.
        let code = before.exit_code(4 * SOON);
        assert_eq!(code, 0, "{}\n{}", before.log(), self.proc.log());
    }

    /// Starts a process that takes over, and waits until it answers; returns the one before, which drains.
    pub(crate) fn be_followed_by(&mut self, program: impl AsRef<OsStr>, name: &str) -> Proc {
        let before = self.start_successor(program, name);
        let answers = || {
            let status = self.try_get("/api/v1/status").ok()?;
            let status: Value = serde_json::from_str(&status.body).ok()?;
            status["pid"].as_u64()
        };
        let is_there = eventually(4 * SOON, || answers() == Some(self.proc.pid().into()));
        assert!(is_there, "{}\n{}", before.log(), self.proc.log());
        before
    }

    fn start_successor(&mut self, program: impl AsRef<OsStr>, name: &str) -> Proc {
        let mut command = self.lb.command(program);
        command.args(["run", "--takeover", "--config"]).arg(&self.config);
        command.env("RUST_BACKTRACE", "1");
        let dir = self.config.parent().unwrap();
        std::mem::replace(&mut self.proc, Proc::spawn(name, command, dir))
    }

    pub(crate) fn wait_ready(self) -> Self {
        let ready = self.wait_serving();
        let is_loading = || {
            let status = ready.try_get("/api/v1/status");
            // An error: a successor takes the port over.
            status.map_or(true, |status| {
                status.status == 200 && status.body.contains("\"loading\"")
            })
        };
        assert!(
            eventually(START_TIMEOUT, || !is_loading()),
            "the kernel peek is not loaded"
        );
        ready
    }

    /// Waits until it is ready. The kernel may still be checking the kernel peek's program.
    pub(crate) fn wait_serving(mut self) -> Self {
        let mut ended = None;
        let ready = eventually(START_TIMEOUT, || {
            ended = self.proc.wait_exit(Duration::ZERO);
            ended.is_some() || self.try_get("/readyz").is_ok_and(|r| r.status == 200)
        });
        assert!(ended.is_none(), "signalbox ended with {ended:?}:\n{}", self.proc.log());
        assert!(ready, "signalbox did not become ready:\n{}", self.proc.log());
        self
    }

    /// Starts it by way of another program, such as `prlimit`, with the words that go before ours.
    pub(crate) fn start_under(lab: &Lab, body: &str, under: &[&str]) -> Self {
        let config = write_config(lab, "signalbox.yaml", body);
        Self::spawn_under(lab, "signalbox", &config, &[], under).wait_ready()
    }

    /// Starts it without waiting, for a start that must fail or take over.
    pub(crate) fn spawn_file(lab: &Lab, name: &str, config: &Path, words: &[&str]) -> Self {
        Self::spawn_under(lab, name, config, words, &[])
    }

    pub(crate) fn spawn_under(lab: &Lab, name: &str, config: &Path, words: &[&str], under: &[&str]) -> Self {
        let mut command = under_command(lab, under);
        command.arg("run").arg("--config").arg(config).args(words);
        // The whole suite by another way of steering: SIGNALBOX_E2E_STEERING=bind.
        if let (Ok(steering), false) = (std::env::var("SIGNALBOX_E2E_STEERING"), words.contains(&"--steering")) {
            command.args(["--steering", &steering]);
        }
        command.env("RUST_BACKTRACE", "1");
        command.envs(lab.environment());
        Self {
            proc: Proc::spawn(name, command, lab.dir()),
            lb: lab.lb.clone(),
            config: config.into(),
            socket: socket(lab),
        }
    }

    /// Waits until the API says that these hosts are healthy.
    pub(crate) fn wait_healthy(&self, hosts: &[&str]) {
        for host in hosts {
            let up = eventually(SOON, || self.host(host)["health"] == "healthy");
            assert!(up, "{host} is not healthy: {}", self.host(host));
        }
    }

    /// GET on the read-only API; status and body. No process has its port for a moment when a successor takes it over.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let mut response = self.try_get(path);
        let is_refused = |e: &std::io::Error| e.kind() == std::io::ErrorKind::ConnectionRefused;
        eventually(Duration::from_secs(2), || {
            if response.as_ref().is_err_and(is_refused) {
                response = self.try_get(path);
            }
            !response.as_ref().is_err_and(is_refused)
        });
        let response = response.unwrap_or_else(|e| panic!("GET {path}: {e}"));
        (response.status, response.body)
    }

    /// Sends a GET; the error is for a server that does not answer.
    pub(crate) fn try_get(&self, path: &str) -> std::io::Result<Response> {
        if !peeks_in_userspace() {
            // Flows that programs have made are counted when userspace sees them.
            std::thread::sleep(Duration::from_millis(60));
        }
        self.lb.run(|| send(connect_here(ADMIN)?, "GET", path, ""))
    }

    /// Any method on the read-only API.
    pub(crate) fn admin(&self, method: &str, path: &str, body: &str) -> Response {
        self.lb.run(|| send(connect_here(ADMIN)?, method, path, body)).unwrap()
    }

    /// GET that must succeed, as JSON.
    pub(crate) fn json(&self, path: &str) -> Value {
        let (status, body) = self.get(path);
        assert_eq!(status, 200, "GET {path}: {body}");
        serde_json::from_str(&body).unwrap_or_else(|e| panic!("GET {path}: {e}: {body}"))
    }

    /// A host of `/api/v1/hosts`; null if it is not there.
    pub(crate) fn host(&self, name: &str) -> Value {
        find(&self.json("/api/v1/hosts")["hosts"], "name", name)
    }

    /// The flows of `/api/v1/flows` with such a query.
    pub(crate) fn flows(&self, query: &str) -> Vec<Value> {
        self.json(&format!("/api/v1/flows?{query}"))["flows"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    }

    /// The number of flows.
    pub(crate) fn flow_count(&self) -> u64 {
        self.json("/api/v1/flows?limit=1")["total"].as_u64().unwrap()
    }

    /// The sum of the metric's series that have (at least) the labels of `key`, such as `name{label="value"}`; 0 if
    /// there is none.
    pub(crate) fn metric(&self, key: &str) -> f64 {
        let (name, labels) = parse_key(key);
        let (status, text) = self.get("/metrics");
        assert_eq!(status, 200);
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(series, value)| (parse_key(series), value))
            .filter(|((n, l), _)| *n == name && labels.iter().all(|(k, v)| l.get(k) == Some(v)))
            .map(|(_, value)| value.parse::<f64>().unwrap())
            .sum()
    }

    /// A request on the unix socket, which takes changes.
    pub(crate) fn unix(&self, method: &str, path: &str, body: &str) -> Response {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).unwrap();
        send(stream, method, path, body).unwrap_or_else(|e| panic!("{method} {path}: {e}"))
    }

    /// Replaces the configuration file's text, without notifying the process.
    pub(crate) fn write(&self, body: &str) {
        write_text(&self.config, &document(&self.socket, body));
    }

    /// Makes it read the file again, and waits until it has.
    pub(crate) fn reload(&self, body: &str) {
        self.write(body);
        let response = self.unix("POST", "/api/v1/reload", "");
        assert_eq!(response.status, 200, "{}", response.body);
    }

    /// The whole document for a configuration, for `PUT /api/v1/config`.
    pub(crate) fn document(&self, body: &str) -> String {
        document(&self.socket, body)
    }

    /// SIGHUP.
    pub(crate) fn hup(&self) {
        self.proc.signal(Signal::SIGHUP);
    }

    /// Stops the process, or lets it continue.
    pub(crate) fn stand_still(&self, is_still: bool) {
        self.proc
            .signal(if is_still { Signal::SIGSTOP } else { Signal::SIGCONT });
    }

    /// SIGTERM.
    pub(crate) fn term(&self) {
        self.proc.signal(Signal::SIGTERM);
    }

    /// SIGKILL.
    pub(crate) fn kill9(&mut self) {
        self.proc.kill();
    }

    /// Runs a subcommand that shows something.
    pub(crate) fn cli(&self, words: &[&str]) -> Output {
        let mut command = self.lb.command(binary());
        command.args(words).arg("--socket").arg(&self.socket).output().unwrap()
    }
}

/// The program in the balancer's namespace, by way of another program.
pub(crate) fn under_command(lab: &Lab, under: &[&str]) -> Command {
    let program = lab.program().unwrap_or_else(|| binary().into());
    match under.split_first() {
        Some((first, rest)) => {
            let mut command = lab.lb.command(first);
            command.args(rest).arg(program);
            command
        }
        None => lab.lb.command(program),
    }
}

/// `signalbox check --config FILE`.
pub(crate) fn check(config: &Path) -> Output {
    Command::new(binary())
        .arg("check")
        .arg("--config")
        .arg(config)
        .output()
        .unwrap()
}

/// Writes a configuration into the lab's directory.
pub(crate) fn write_config(lab: &Lab, name: &str, body: &str) -> PathBuf {
    let path = lab.dir().join(name);
    write_text(&path, &document(&socket(lab), body));
    path
}

/// A file is replaced at once, as an editor or a configuration management does: half of one must never be read.
fn write_text(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

/// The admin part is the first two lines: a body's line n is the document's line n + 2. The state database is deleted
/// with the lab.
pub(crate) fn document(socket: &Path, body: &str) -> String {
    let (store, socket) = (socket.with_file_name("state.redb"), socket.display());
    let store = if body.contains("store:") {
        String::new()
    } else {
        format!("\nstore: {{ path: {} }}\n", store.display())
    };
    let body = with_peek(body);
    format!("version: 1\nadmin: {{ listen: \"{ADMIN}\", socket: {socket} }}\n{body}{store}")
}

/// The line of a configuration for tests of the path in userspace: connections have sockets until they are cut.
pub(crate) const PEEK_IN_USERSPACE: &str = "datapath: { peek: userspace }";

/// Whether this run has names peeked at in userspace, with `SIGNALBOX_E2E_PEEK=userspace`, not as the product does by
/// default.
pub(crate) fn peeks_in_userspace() -> bool {
    match std::env::var("SIGNALBOX_E2E_PEEK") {
        Ok(place) if place == "userspace" => true,
        Ok(place) => {
            panic!("SIGNALBOX_E2E_PEEK={place}: the other path is `userspace`; without it tests run the default")
        }
        Err(_) => false,
    }
}

/// Leaves a configuration as the test wrote it, so that the product's defaults are tested. Only a run on the other path
/// sets where names are peeked at, in tests that do not set it themselves.
fn with_peek(body: &str) -> String {
    if !peeks_in_userspace() || body.contains("peek:") {
        return body.into();
    }
    if body.contains("\ndatapath: {") || body.starts_with("datapath: {") {
        return body.replacen("datapath: {", "datapath: { peek: userspace,", 1);
    }
    format!("{body}\n{PEEK_IN_USERSPACE}\n")
}

fn socket(lab: &Lab) -> PathBuf {
    lab.dir().join("admin.sock")
}

/// The program under test: the one that `SIGNALBOX_BIN` names, or the one that was built beside the tests.
pub(crate) fn binary() -> &'static str {
    static BINARY: OnceLock<String> = OnceLock::new();
    BINARY.get_or_init(|| std::env::var("SIGNALBOX_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_signalbox").to_owned()))
}

fn send(
    stream: impl std::io::Read + std::io::Write,
    method: &str,
    path: &str,
    body: &str,
) -> std::io::Result<Response> {
    let kind = if body.starts_with('{') {
        "application/json"
    } else {
        "application/yaml"
    };
    let length = body.len();
    http::request(
        stream,
        &format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {kind}\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        ),
    )
}

/// The element of a JSON array whose `key` is `value`; null if there is none.
pub(crate) fn find(array: &Value, key: &str, value: &str) -> Value {
    let found = array
        .as_array()
        .and_then(|items| items.iter().find(|item| item[key] == value));
    found.cloned().unwrap_or_default()
}

/// `name{label="value",...}`, the labels in any order.
fn parse_key(text: &str) -> (&str, BTreeMap<&str, &str>) {
    let (name, labels) = text.split_once('{').unwrap_or((text, ""));
    let labels = labels
        .trim_end_matches('}')
        .split("\",")
        .filter_map(|label| label.split_once("=\""));
    (name, labels.map(|(k, v)| (k, v.trim_end_matches('"'))).collect())
}

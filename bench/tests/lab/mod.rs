//! A lab that a test runs, and the shell beside it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const LAB: &str = env!("CARGO_BIN_EXE_signalbox-bench");
/// Long enough for anything that should happen soon, on a machine with two busy cores.
const SOON: Duration = Duration::from_secs(40);

/// A running lab, and what it has said.
pub(crate) struct Lab {
    child: Child,
    words: Arc<Mutex<String>>,
    name: String,
}

impl Lab {
    /// Starts it and waits for the end of what it prints.
    pub(crate) fn start(name: &str) -> Self {
        let mut child = command(name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (words, stdout) = (Arc::new(Mutex::default()), child.stdout.take().unwrap());
        let heard: Arc<Mutex<String>> = Arc::clone(&words);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                *heard.lock().unwrap() += &(line + "\n");
            }
        });
        let lab = Self {
            child,
            words,
            name: format!("sblab{name}"),
        };
        lab.says("Ctrl-C here");
        lab
    }

    /// Waits until it has said this.
    pub(crate) fn says(&self, what: &str) {
        let said = eventually(|| self.words.lock().unwrap().contains(what));
        assert!(said, "`{what}` is not in:\n{}", self.words.lock().unwrap());
    }

    /// The first command it has printed that has all of these in it.
    pub(crate) fn printed(&self, parts: &[&str]) -> String {
        let words = self.words.lock().unwrap();
        let mut commands = words.lines().filter_map(|line| line.strip_prefix("  "));
        let found = commands.find(|line| parts.iter().all(|part| line.contains(part)));
        found.unwrap_or_else(|| panic!("no {parts:?} in:\n{words}")).to_owned()
    }

    /// Its pid.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal, and waits for its end.
    pub(crate) fn end(&mut self, signal: Signal) -> ExitStatus {
        kill(Pid::from_raw(self.pid().cast_signed()), signal).unwrap();
        let ended = || self.child.try_wait().unwrap().is_some();
        assert!(eventually(ended), "it does not end");
        self.child.wait().unwrap()
    }

    /// Presses Enter. What it said before is forgotten.
    pub(crate) fn type_enter(&mut self) {
        self.words.lock().unwrap().clear();
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Bytes that have come to the client.
    pub(crate) fn received(&self) -> u64 {
        let file = "/sys/class/net/eth0/statistics/rx_bytes";
        let count = sh(&format!("ip netns exec {}-client cat {file}", self.name));
        count.trim().parse().unwrap()
    }

    /// Where the balancer's programs and maps are pinned: it holds the directory open.
    pub(crate) fn pins(&self) -> PathBuf {
        let pid = sh(&format!("ip netns pids {}-balancer", self.name));
        let files = std::fs::read_dir(format!("/proc/{}/fd", pid.trim())).unwrap();
        let mut files = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
        files.find(|file| file.starts_with("/sys/fs/bpf/signalbox")).unwrap()
    }

    /// Namespaces, files and processes with its name.
    pub(crate) fn left(&self) -> Vec<String> {
        let names = |dir: &str| {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().into_string().ok())
        };
        let is_ours = |name: &String| name.starts_with(&self.name);
        let mut left: Vec<_> = names("/run").chain(names("/run/netns")).filter(is_ours).collect();
        left.extend(names("/proc").filter(|pid| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).contains(&self.name)
        }));
        left
    }
}

impl Drop for Lab {
    /// A test that has failed leaves nothing either.
    fn drop(&mut self) {
        // One that has ended may have given its number to another process.
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
            let _ = self.child.wait();
        }
    }
}

/// A lab of that name, which ends in good order even if this test is killed.
pub(crate) fn command(name: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--", LAB, "lab", "--no-install"]);
    command.args(["--name", name, "--signalbox"]).arg(signalbox());
    command
}

/// The balancer that `SIGNALBOX_BIN` names, or that was built with the same profile.
fn signalbox() -> PathBuf {
    let named = std::env::var_os("SIGNALBOX_BIN").map(PathBuf::from);
    named.unwrap_or_else(|| Path::new(LAB).with_file_name("signalbox"))
}

/// Output of a shell that runs a command.
pub(crate) fn sh(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Polls until `condition` holds; false if it does not soon.
pub(crate) fn eventually(condition: impl FnMut() -> bool) -> bool {
    signalbox_lab::eventually(SOON, condition)
}

/// Whether the lab can be built here. The balancer is built by `cargo build -p signalbox` with the same profile.
pub(crate) fn privileged(test: &str) -> bool {
    let signalbox = signalbox();
    let signalbox = signalbox.to_str().unwrap();
    signalbox_lab::privileged(test, &["ip", "nsenter", "setpriv", "haproxy", "curl", signalbox])
}

//! Facts that a result is worth nothing without: machine, kernel and versions.

use std::process::Command;

use serde::Serialize;
use signalbox_lab::{Cpu, field};

use crate::args::BenchPlan;
use crate::product::workspace;

/// Machine, kernel and versions of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Facts {
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) memory_mib: u64,
    pub(crate) kernel: String,
    pub(crate) haproxy: String,
    pub(crate) nginx: String,
    pub(crate) signalbox: String,
    pub(crate) revision: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) warm_up_seconds: f64,
    /// Start of the run, in seconds since 1970.
    pub(crate) started: u64,
    /// Busy part of the machine before the run, with nothing of ours at work.
    pub(crate) busy_before: f64,
}

impl Facts {
    /// Gathers the facts of this machine and plan.
    pub(crate) fn gather(plan: &BenchPlan) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let before = Cpu::now();
        std::thread::sleep(std::time::Duration::from_millis(500));
        let idle = Cpu::now().since(&before);
        let signalbox = plan.setups.iter().find(|s| s.signalbox.is_file()).map(|s| &s.signalbox);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            cpu: model.map_or_else(String::new, |(_, name)| name.to_owned()),
            cpus: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            memory_mib: field(&read("/proc/meminfo"), "MemTotal:") / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            haproxy: first_line("haproxy", &["-v"]),
            nginx: first_line("nginx", &["-v"]),
            signalbox: signalbox.map_or_else(String::new, |path| first_line(path, &["--version"])),
            revision: revision(),
            arguments: std::env::args().skip(1).collect(),
            rounds: plan.rounds,
            seconds: plan.length.as_secs_f64(),
            warm_up_seconds: plan.warm_up.as_secs_f64(),
            started: now.map_or(0, |d| d.as_secs()),
            busy_before: idle.part(idle.busy + idle.steal),
        }
    }
}

/// Revision of the checkout; `+` if it has changes.
fn revision() -> String {
    let root = workspace().to_string_lossy().into_owned();
    let revision = first_line("git", &["-C", &root, "rev-parse", "--short=12", "HEAD"]);
    let changes = first_line("git", &["-C", &root, "status", "--porcelain", "--untracked-files=no"]);
    revision + if changes.is_empty() { "" } else { "+" }
}

/// First line of a command's output, on stdout or stderr.
fn first_line(program: impl AsRef<std::ffi::OsStr>, words: &[&str]) -> String {
    let Ok(output) = Command::new(program).args(words).output() else {
        return String::new();
    };
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text)
        .lines()
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned()
}

//! Facts without which a result is worthless: machine, kernel and versions.

use std::collections::BTreeMap;
use std::process::Command;

use serde::Serialize;
use signalbox_lab::{Cpu, field};

use crate::args::BenchPlan;
use crate::contender::Setup;
use crate::product::workspace;
use crate::scenario::{Condition, Scenario};

/// Machine, kernel and versions of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Facts {
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) memory_mib: u64,
    pub(crate) kernel: String,
    /// Product and version of each rival, or why it is not there.
    pub(crate) versions: BTreeMap<String, String>,
    /// nginx of the hosts.
    pub(crate) hosts: String,
    pub(crate) signalbox: String,
    pub(crate) revision: String,
    /// Conditions of the scenarios: what the balancers have to do besides their work.
    pub(crate) conditions: String,
    /// Day of the start, in UTC.
    pub(crate) date: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) warm_up_seconds: f64,
    /// Start of the run, in seconds since 1970.
    pub(crate) started: u64,
    /// Busy part of the machine before the run, while the benchmark does nothing.
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
        let started = now.map_or(0, |d| d.as_secs());
        Self {
            cpu: model.map_or_else(String::new, |(_, name)| name.to_owned()),
            cpus: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            memory_mib: field(&read("/proc/meminfo"), "MemTotal:") / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            versions: versions(plan),
            hosts: first_line("nginx", &["-v"]),
            signalbox: signalbox.map_or_else(String::new, |path| first_line(path, &["--version"])),
            revision: revision(),
            conditions: conditions(&plan.scenarios),
            date: date(started),
            arguments: std::env::args().skip(1).collect(),
            rounds: plan.rounds,
            seconds: plan.length.as_secs_f64(),
            warm_up_seconds: plan.warm_up.as_secs_f64(),
            started,
            busy_before: idle.part(idle.busy + idle.steal),
        }
    }
}

fn versions(plan: &BenchPlan) -> BTreeMap<String, String> {
    let of = |setup: &Setup| Some((setup.contender.to_string(), setup.version()?));
    plan.setups.iter().filter_map(of).collect()
}

/// Names of the conditions, each once.
fn conditions(scenarios: &[Scenario]) -> String {
    let mut names = Vec::new();
    for scenario in scenarios {
        let name = match scenario.condition {
            Condition::None => "no packet filter, access log, PROXY header or limit",
            Condition::Netfilter => "packet filter",
            Condition::AccessLog => "access log",
            Condition::ProxyProtocol => "PROXY header to hosts",
            Condition::Limits => "limits per source and route",
            Condition::Lists => "list of clients",
            Condition::Site => "all of these at once, with the rules of 1000 services",
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join("; ")
}

/// Day of a moment in seconds since 1970, as `2026-11-28`, by the proleptic Gregorian calendar.
fn date(seconds: u64) -> String {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut days, mut year) = (seconds / 86_400, 1970);
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", days + 1)
}

/// Revision of the checkout; `+` if it has changes.
fn revision() -> String {
    let root = workspace().to_string_lossy().into_owned();
    let revision = first_line("git", &["-C", &root, "rev-parse", "--short=12", "HEAD"]);
    let changes = first_line(
        "git",
        &[
            "-C",
            &root,
            "status",
            "--porcelain",
            "--untracked-files=no",
            "--",
            ".",
            ":!bench/results",
        ],
    );
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{ALL, CONDITIONS};

    #[test]
    fn days_are_those_of_the_calendar() {
        let all = [0, 951_782_400, 951_868_800, 1_795_824_000, 4_107_542_400].map(date);
        assert_eq!(
            all,
            ["1970-01-01", "2000-02-29", "2000-03-01", "2026-11-28", "2100-03-01"]
        );
    }

    #[test]
    fn each_condition_is_named_once() {
        assert_eq!(conditions(&ALL), "no packet filter, access log, PROXY header or limit");
        assert_eq!(conditions(&CONDITIONS).matches("; ").count(), 6);
    }
}

//! Removal of namespaces with the processes in them, of this run and of runs that were killed.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{Kind, Ns, is_alive};

/// Names of the namespaces that begin with `prefix`.
pub fn namespaces(prefix: &str) -> Vec<String> {
    let mut names = names_in(Path::new("/run/netns"));
    names.retain(|name| name.starts_with(prefix));
    names
}

/// Ends all processes in these namespaces, of any origin, then removes each namespace after `detach`, which removes
/// pinned programs and maps that would outlive it.
pub fn remove(names: &[String], detach: impl Fn(&Ns)) {
    names.iter().for_each(|name| end_processes(name));
    for name in names {
        if let Ok(ns) = Ns::open(name) {
            detach(&ns);
        }
        let _ = ip(["netns", "del", name]);
    }
}

/// Removes namespaces and directories of runs whose process has ended.
pub fn remove_stale(kind: &Kind) {
    let is_stale = |name: &String| owner(kind, name).is_some_and(|pid| !is_running(kind, pid));
    let mut names = names_in(Path::new("/run/netns"));
    names.retain(is_stale);
    remove(&names, kind.detach);
    let temp = std::env::temp_dir();
    for name in names_in(&temp).iter().filter(|name| is_stale(name)) {
        let _ = std::fs::remove_dir_all(temp.join(name));
    }
}

/// Pid of the run that the name of a namespace or directory belongs to.
fn owner(kind: &Kind, name: &str) -> Option<u32> {
    name.strip_prefix(kind.prefix)?.split_once('-')?.0.parse().ok()
}

/// Whether a run's process still runs, and its pid is not another program's by now.
fn is_running(kind: &Kind, pid: u32) -> bool {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    pid != std::process::id() && comm.starts_with(kind.program) && is_alive(pid)
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().into_string().ok()).collect()
}

/// Ends all processes in a namespace, which lives as long as a process in it. This process itself is never in one, only
/// threads of it.
fn end_processes(name: &str) {
    let pids = ip(["netns", "pids", name])
        .map(|output| output.stdout)
        .unwrap_or_default();
    let pids = String::from_utf8_lossy(&pids);
    let pids = pids.split_whitespace().filter_map(|pid| pid.parse().ok());
    for pid in pids.map(Pid::from_raw).filter(|pid| *pid != Pid::this()) {
        let _ = kill(pid, Signal::SIGKILL);
    }
}

fn ip(words: [&str; 3]) -> std::io::Result<Output> {
    Command::new("ip").args(words).stderr(Stdio::null()).output()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_a_kind_have_an_owner() {
        let kind = Kind {
            prefix: "sbx",
            program: "test",
            detach: |_| {},
        };
        for name in ["sbx12-0-client", "sbx12-0"] {
            assert_eq!(owner(&kind, name), Some(12), "{name}");
        }
        for other in ["sbb12-0-client", "sbx-client", "sbx12", "sbxx-lb"] {
            assert_eq!(owner(&kind, other), None, "{other}");
        }
    }
}

//! Removal of our namespaces with the processes in them, of this run and of runs that were killed.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Prefix of the names of a run's namespaces and of its directory.
pub(super) fn prefix(pid: u32) -> String {
    format!("sbb{pid}-")
}

/// Removes namespaces and directories of runs whose process is no more.
pub(super) fn remove_stale() {
    for name in names_in(Path::new("/run/netns")) {
        if owner(&name).is_some_and(|pid| !is_running(pid)) {
            remove(&name);
        }
    }
    let temp = std::env::temp_dir();
    for name in names_in(&temp) {
        if owner(&format!("{name}-")).is_some_and(|pid| !is_running(pid)) {
            let _ = std::fs::remove_dir_all(temp.join(name));
        }
    }
}

/// Removes the namespaces with this prefix, and the directory of that name.
pub(super) fn remove_all(prefix: &str) {
    for name in namespaces(prefix) {
        remove(&name);
    }
    let _ = std::fs::remove_dir_all(std::env::temp_dir().join(prefix.trim_end_matches('-')));
}

/// Namespaces whose names begin with `prefix`.
pub(crate) fn namespaces(prefix: &str) -> Vec<String> {
    let mut names = names_in(Path::new("/run/netns"));
    names.retain(|name| name.starts_with(prefix));
    names
}

/// Pid of the run that a name belongs to.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix("sbb")?.split_once('-')?.0.parse().ok()
}

/// Whether a run's process still runs, and its pid is not another program's by now.
fn is_running(pid: u32) -> bool {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    pid != std::process::id() && comm.starts_with("signalbox-bench")
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().into_string().ok()).collect()
}

fn remove(name: &str) {
    end_processes(name);
    delete(name);
}

/// Ends all processes in a namespace, which lives as long as a process in it. This process itself is never in one, only
/// threads of it.
pub(crate) fn end_processes(name: &str) {
    let pids = ip(["netns", "pids", name])
        .map(|output| output.stdout)
        .unwrap_or_default();
    for pid in String::from_utf8_lossy(&pids)
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
    {
        if Pid::from_raw(pid) != Pid::this() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Removes the name of a namespace.
pub(crate) fn delete(name: &str) {
    let _ = ip(["netns", "del", name]);
}

fn ip(words: [&str; 3]) -> std::io::Result<Output> {
    Command::new("ip").args(words).stderr(Stdio::null()).output()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ours_have_an_owner() {
        assert_eq!(owner(&format!("{}client", prefix(12))), Some(12));
        for other in ["sbx12-client", "sbb-client", "sbb12", "sbbx-lb"] {
            assert_eq!(owner(other), None, "{other}");
        }
    }
}

//! Nodes of a cluster: processes with namespaces and cgroups of their own, which containerd and kubelet run in.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Child,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{Cluster, eventually, network, process};
use crate::root::root;

const SCRIPT: &str = "xtask/src/cluster/node.sh";
const CGROUPS: &str = "/sys/fs/cgroup";
/// Puts the shell into a cgroup of each hierarchy, and starts the node in their namespace. Arguments: directories, `--`,
/// the command.
const ENTER: &str = r#"while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs"; shift; done; shift; exec "$@""#;

/// Starts the nodes, which end with this process, and waits until each is ready.
pub(super) fn start(cluster: &Cluster, nodes: u8) -> Result<()> {
    let mut started = (1..=nodes)
        .map(|number| launch(cluster, number, true))
        .collect::<Result<Vec<Child>>>()?;
    eventually("not all nodes are ready: see kubelet.log in their directories", || {
        for (child, number) in started.iter_mut().zip(1..) {
            ensure!(
                child.try_wait()?.is_none(),
                "node n{number} has ended, see its logs in {}",
                cluster.dir.display()
            );
        }
        let list = cluster.kubectl().args(["get", "nodes", "--no-headers"]).output();
        Ok(list.is_ok_and(|list| list.lines().filter(|line| line.contains(" Ready")).count() == usize::from(nodes)))
    })
}

/// Starts a node that was killed. It ends with the cluster.
pub(super) fn restart(cluster: &Cluster, node: &str) -> Result<()> {
    let number = number(cluster, node)?;
    ensure!(!pid_file(cluster, node).exists(), "{node} runs");
    network::link(cluster, node, "up")?;
    launch(cluster, number, false).map(drop)
}

/// Kills a node. The kernel of a dead machine would not go on answering for its addresses: its link goes, too.
pub(super) fn kill(cluster: &Cluster, node: &str) -> Result<()> {
    number(cluster, node)?;
    network::link(cluster, node, "down")?;
    process::end(&pid_file(cluster, node))?;
    remove_cgroups_of(cluster, Some(node))
}

fn pid_file(cluster: &Cluster, node: &str) -> PathBuf {
    cluster.dir.join("pids").join(node)
}

fn number(cluster: &Cluster, node: &str) -> Result<u8> {
    let number = node.strip_prefix('n').and_then(|digits| digits.parse().ok());
    number
        .filter(|_| cluster.dir.join(node).is_dir())
        .with_context(|| format!("cluster {} has no node {node}", cluster.name))
}

fn launch(cluster: &Cluster, number: u8, bound: bool) -> Result<Child> {
    let node = format!("n{number}");
    let home = cluster.dir.join(&node);
    fs::create_dir_all(&home)?;
    let mut command = cluster.command_in(&node, "bash");
    command.args(["-c", ENTER, "enter"]).args(cgroups(cluster, &node)?);
    command.args([
        "--",
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--uts",
        "--ipc",
        "--cgroup",
    ]);
    command
        .args(["--propagation", "private", "bash"])
        .arg(root()?.join(SCRIPT));
    command.env("NODE", &node).env("ADDRESS", network::address(number));
    command.env("PODS", network::pods(number)).env("HOME_DIR", &home);
    command.env("CLUSTER", &cluster.dir).env("PROGRAMS", &cluster.programs);
    process::start(&cluster.dir, &node, &command, bound)
}

/// The last node runs routers, the others are infra nodes.
pub(super) fn label(cluster: &Cluster, nodes: u8) -> Result<()> {
    for number in 1..=nodes {
        let role = if number == nodes { "worker" } else { "infra" };
        let label = format!("node-role.kubernetes.io/{role}=");
        cluster
            .kubectl()
            .args(["label", "node", &format!("n{number}"), &label])
            .output()?;
    }
    Ok(())
}

/// Makes a cgroup for a node in each hierarchy, below that of this process.
fn cgroups(cluster: &Cluster, node: &str) -> Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    let all = own_cgroups()?;
    ensure!(
        !all.is_empty(),
        "this machine has cgroup v2 alone, and nodes need the hierarchies of v1: boot with systemd.unified_cgroup_hierarchy=0"
    );
    for own in all {
        let directory = own.join(cluster.namespace(node));
        fs::create_dir_all(&directory).with_context(|| format!("{} cannot be made", directory.display()))?;
        // A new cpuset has neither processors nor memory.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(value) = fs::read_to_string(own.join(file)) {
                fs::write(directory.join(file), value)?;
            }
        }
        made.push(directory);
    }
    Ok(made)
}

/// Directories of the cgroups v1 that this process is in, one for each controller.
fn own_cgroups() -> Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/cgroup")?;
    let rows = table
        .lines()
        .filter_map(|line| line.split_once(':')?.1.split_once(':'))
        .filter(|(controllers, _)| !controllers.is_empty());
    let place = |(controllers, path): (&str, &str)| {
        let hierarchy = Path::new(CGROUPS).join(controllers.trim_start_matches("name="));
        hierarchy.join(path.trim_start_matches('/'))
    };
    Ok(rows.map(place).filter(|directory| directory.is_dir()).collect())
}

pub(super) fn remove_cgroups(cluster: &Cluster) -> Result<()> {
    remove_cgroups_of(cluster, None)
}

/// Removes cgroups of a node, or of all. Their processes have been killed, and may need a moment to end.
fn remove_cgroups_of(cluster: &Cluster, node: Option<&str>) -> Result<()> {
    let prefix = cluster.namespace(node.unwrap_or_default());
    for own in own_cgroups()? {
        for entry in fs::read_dir(own)?.flatten() {
            let name = entry.file_name();
            let is_ours = match node {
                Some(_) => name == *prefix,
                None => name.to_string_lossy().starts_with(&prefix),
            };
            if is_ours {
                remove_tree(&entry.path())?;
            }
        }
    }
    Ok(())
}

fn remove_tree(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    for _ in 0..100 {
        match fs::remove_dir(directory) {
            Err(error) if error.raw_os_error() == Some(nix::libc::EBUSY) => thread::sleep(Duration::from_millis(50)),
            done => return done.with_context(|| format!("{} cannot be removed", directory.display())),
        }
    }
    bail!("{} has processes that do not end", directory.display())
}

//! The processes of two nodes: how they start, die, and are replaced.

use std::path::Path;
use std::process::Output;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::config::BY_TEST;
use super::network::{LAST, MOVING};
use super::pair::{Pair, node_name};
use crate::lab::signalbox::binary;
use crate::lab::{Proc, Signalbox};

impl Pair {
    /// Starts the balancer of a node.
    pub(super) fn start(&mut self, node: usize) {
        let name = node_name(node);
        let dir = self.dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let body = self.settings.body(node, self.dir());
        let started = Signalbox::start_in(&self.nodes[node], &dir, name, &body, &self.environment[node]);
        started.wait_healthy(&["host4", "host6"]);
        self.balancers[node] = Some(started);
    }

    /// Starts the supervisor of a node's addresses.
    pub(super) fn supervise(&mut self, node: usize) {
        let (name, dir) = (node_name(node), self.dir().join(node_name(node)));
        let mut command = self.nodes[node].command(binary());
        command.args(["ha", "run", "--config"]).arg(dir.join("signalbox.yaml"));
        command.arg("--runtime-dir").arg(dir.join("run"));
        command.envs(self.environment[node].clone());
        self.supervisors[node] = Some(Proc::spawn(&format!("{name}-ha"), command, &dir));
    }

    /// Kills both processes of a node's keepalived, if they run. Returns their ids.
    pub(super) fn kill_keepalived(&self, node: usize) -> Vec<Pid> {
        let pids = self.keepalived(node);
        for pid in &pids {
            let _ = kill(*pid, Signal::SIGKILL);
        }
        pids
    }

    /// Ids of a node's keepalived and its child.
    pub(super) fn keepalived(&self, node: usize) -> Vec<Pid> {
        let run = self.dir().join(node_name(node)).join("run");
        let pid = |file: &str| {
            let text = std::fs::read_to_string(run.join(file)).ok()?;
            Some(Pid::from_raw(text.trim().parse().ok()?))
        };
        ["keepalived.pid", "vrrp.pid"].into_iter().filter_map(pid).collect()
    }

    /// Runs `signalbox ha` on a node, which must succeed.
    pub(super) fn ha(&self, node: usize, action: &str) {
        let output = self.try_ha(node, &[action]);
        assert!(output.status.success(), "{action}: {output:?}");
    }

    /// Runs a command of `signalbox ha` with words.
    pub(super) fn try_ha(&self, node: usize, words: &[&str]) -> Output {
        let dir = self.dir().join(node_name(node));
        let (run, socket) = (dir.join("run"), dir.join("admin.sock"));
        let mut command = self.nodes[node].command(binary());
        command
            .arg("ha")
            .args(words)
            .arg("--runtime-dir")
            .arg(run)
            .arg("--socket")
            .arg(socket);
        command.output().unwrap()
    }

    /// Has a new process take over from that of a node.
    pub(super) fn take_over(&mut self, node: usize) {
        let name = format!("{}-successor", node_name(node));
        self.balancers[node].as_mut().unwrap().be_replaced(&name);
    }

    /// Likewise, with the current settings, and reports to it once more that it has the addresses.
    pub(super) fn take_over_with_settings(&mut self, node: usize) {
        let body = self.settings.body(node, self.dir());
        self.balancer(node).write(&body);
        self.take_over(node);
        self.report(node, "master");
    }

    /// Has a process of another program take over from that of a node.
    pub(super) fn take_over_by(&mut self, node: usize, program: &Path) {
        let name = format!("{}-successor", node_name(node));
        self.balancers[node].as_mut().unwrap().be_replaced_by(program, &name);
    }

    /// A node loses its power: its links go down, then its process ends at once.
    pub(super) fn kill(&mut self, node: usize) {
        self.nodes[node]
            .ip("link set front down\nlink set back down\nlink set direct down\n")
            .unwrap();
        // Not even keepalived says goodbye.
        self.kill_keepalived(node);
        if let Some(mut supervisor) = self.supervisors[node].take() {
            supervisor.kill();
        }
        self.stop(node);
    }

    /// Kills the process of a node.
    pub(super) fn stop(&mut self, node: usize) {
        if let Some(mut balancer) = self.balancers[node].take() {
            balancer.kill9();
        }
    }

    /// Kills the process of a node, and starts it again.
    pub(super) fn restart(&mut self, node: usize) {
        self.stop(node);
        self.start(node);
    }

    /// A node that was killed starts again, without its former state.
    pub(super) fn revive(&mut self, node: usize) {
        self.nodes[node].output(&[binary(), "detach"]);
        for (address, device) in MOVING.iter().flat_map(|(_, addresses)| addresses) {
            let _ = self.nodes[node].ip(&format!("addr del {address} dev {device}\n"));
        }
        self.nodes[node]
            .ip("link set front up\nlink set back up\nlink set direct up\n")
            .unwrap();
        let last = LAST[node];
        // Addresses of IPv6 go with a link.
        let again =
            format!("addr replace fd00:1::{last}/64 dev front nodad\naddr replace fd00:2::{last}/64 dev back nodad\n");
        self.nodes[node].ip(&again).unwrap();
        self.start(node);
        if self.settings.mover == BY_TEST {
            self.report(node, "backup");
        }
    }

    /// Last words of all processes.
    pub(super) fn logs(&self) -> String {
        let balancers = self.balancers.iter().flatten().map(|balancer| &balancer.proc);
        let logs = balancers.chain(self.supervisors.iter().flatten());
        logs.map(|process| process.last_words(30).join("\n") + "\n---\n")
            .collect()
    }
}

//! signalbox as a node of a group of virtual addresses: alone, or with a second node that gets its flows.
//!
//! The second node runs on the same machine, so its work is charged to the machine, like that of clients and hosts. The
//! contender is charged only with its own process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use signalbox_lab::router;

use super::Setup;
use crate::interrupt;
use crate::lab::{self, Lab, STANDBY, VIP};
use crate::process;
use crate::product;

/// Time that two nodes have to find each other.
const SYNC_TIMEOUT: Duration = Duration::from_secs(15);
const SYNC_INTERVAL: Duration = Duration::from_millis(50);
const NODES: [&str; 2] = ["node-a", "node-b"];

/// Section `ha` of a node, which has the addresses once that is reported to it.
fn section(lab: &Lab, node: usize, is_replicated: bool) -> Result<String> {
    let (name, [a, b]) = (NODES[node], STANDBY);
    let sources: Vec<_> = (1..)
        .zip(lab::HOSTS)
        .map(|(i, host)| format!("\"{}/24@host{i}\"", lab::gateway(host)))
        .collect();
    let sync = if is_replicated {
        // Each has to know the other's certificate when it starts.
        for name in NODES {
            if !lab.dir().join(format!("{name}.pem")).exists() {
                router::certificate(lab.dir(), name, &[name])?;
            }
        }
        let (pem, ca) = (lab.dir().join(format!("{name}.pem")), lab.dir().join("ca.pem"));
        let pem = pem.display();
        format!(
            "  sync: {{ listen: \"{}:8090\", cert: {pem}, key: {pem}, ca: {} }}\n",
            STANDBY[node],
            ca.display()
        )
    } else {
        String::new()
    };
    Ok(format!(
        "ha:
  mode: external
  node: {name}
  nodes:
    - {{ name: {}, address: {a} }}
    - {{ name: {}, address: {b} }}
  interface: client
  groups:
    - {{ name: g1, prefer: {}, vips: [\"{VIP}\"], sources: [{}] }}
{sync}",
        NODES[0],
        NODES[1],
        NODES[0],
        sources.join(", ")
    ))
}

impl Setup {
    /// Command of the node that is measured.
    pub(super) fn node(&self, lab: &Lab, is_replicated: bool) -> Result<Command> {
        let body = self.default_body(lab)? + &section(lab, 0, is_replicated)?;
        let mut command = product::run(lab, &self.signalbox, &body)?;
        command.args(["--workers", &self.threads.to_string()]);
        Ok(command)
    }

    /// Starts the second node.
    pub(super) fn standby(&self, lab: &Lab) -> Result<process::Running> {
        let dir = standby_dir(lab);
        std::fs::create_dir_all(&dir)?;
        let body = self.default_body(lab)? + &section(lab, 1, true)?;
        let command = product::run_in(&lab.standby, &dir, &self.signalbox, &body)?;
        Ok(process::Running {
            process: Some(process::start("standby", command, lab.dir())?),
            after: Some(product::detach(&lab.standby, &self.signalbox)),
        })
    }
}

/// Tells a node, once it answers, whether it has the group.
fn report(dir: &Path, state: &str, mut death: impl FnMut() -> Option<String>) -> Result<()> {
    let limit = Instant::now() + SYNC_TIMEOUT;
    let request = &format!("{{\"state\":\"{state}\",\"priority\":100}}");
    loop {
        interrupt::check()?;
        match product::ask(dir, "PUT", "/api/v1/ha/groups/g1", request) {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > limit => return Err(error),
            Err(_) => {}
        }
        if let Some(words) = death() {
            bail!("it ended: {words}");
        }
        std::thread::sleep(SYNC_INTERVAL);
    }
}

/// Gives the group to the measured node, and reports to the second one, if there is one, that it does not have it.
pub(super) fn give(lab: &Lab, is_replicated: bool, mut death: impl FnMut() -> Option<String>) -> Result<()> {
    report(lab.dir(), "master", &mut death)?;
    if is_replicated {
        report(&standby_dir(lab), "backup", &mut death)?;
    }
    Ok(())
}

fn standby_dir(lab: &Lab) -> PathBuf {
    lab.dir().join("standby")
}

/// Waits until each node has the flows of the other.
pub(super) fn wait_synced(lab: &Lab, mut death: impl FnMut() -> Option<String>) -> Result<()> {
    let limit = Instant::now() + SYNC_TIMEOUT;
    loop {
        interrupt::check()?;
        let answer = product::ask(lab.dir(), "GET", "/api/v1/ha", "")?;
        let view: serde_json::Value = serde_json::from_str(&answer).context("/api/v1/ha")?;
        let peer = &view["sync"]["peers"][0];
        if peer["sending"] == true && peer["complete"] == true {
            return Ok(());
        }
        if Instant::now() > limit {
            bail!("the second node does not get the flows: {peer}");
        }
        if let Some(words) = death() {
            bail!("it ended: {words}");
        }
        std::thread::sleep(SYNC_INTERVAL);
    }
}

//! Change of a contender's routes while it serves, each in the product's own way.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::configuration::put;
use super::rival::Rival;
use super::{Contender, RunningContender};
use crate::lab::Lab;
use crate::scenario::Scenario;

impl RunningContender {
    /// Gives the contender further names, and returns when it could know of them.
    pub(crate) fn change(&self, lab: &Lab, scenario: &Scenario, routes: &[String]) -> Result<Instant> {
        let files = self.setup.files(lab, scenario, routes)?;
        let began = Instant::now();
        files.iter().try_for_each(|(name, text)| put(lab.dir(), name, text))?;
        let signal = |signal: Signal| {
            let process = self.running.process.as_ref().context("it is no process")?;
            kill(Pid::from_raw(process.pid().cast_signed()), signal).context("the process is gone")
        };
        let asked = match &self.setup.contender {
            Contender::Direct | Contender::Node { .. } => bail!("its routes do not change"),
            Contender::Signalbox { .. } | Contender::Other => signal(Signal::SIGHUP),
            Contender::Rival(rival) => match rival {
                // The master starts a new process, and the old one ends when its connections have ended.
                Rival::Haproxy | Rival::Haproxy30 | Rival::HaproxySplice | Rival::HaproxyRouter => {
                    signal(Signal::SIGUSR2)
                }
                Rival::Nginx | Rival::NginxWheel => signal(Signal::SIGHUP),
                // Envoy and Traefik watch their files.
                Rival::Envoy | Rival::Traefik => Ok(()),
                Rival::Caddy => reload_caddy(lab),
                Rival::Sozu => bail!("there is no configuration of Sōzu for it"),
            },
        };
        asked.map(|()| began)
    }
}

fn reload_caddy(lab: &Lab) -> Result<()> {
    let mut command = Rival::Caddy.place()?.command(lab, "caddy");
    command
        .args(["reload", "--adapter", "caddyfile", "--config"])
        .arg(lab.dir().join("caddy.caddyfile"))
        .arg("--address")
        .arg(format!("unix//{}/caddy.sock", lab.dir().display()));
    let output = command.env("HOME", lab.dir()).output()?;
    ensure!(
        output.status.success(),
        "caddy reload: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

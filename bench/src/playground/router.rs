//! Router hosts: a HAProxy in each, and an application behind it that says which host it is on.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;

use anyhow::Result;

use super::app;
use super::network::{HOSTS, Network};
use super::site::Site;
use crate::lab::Ns;
use crate::process::Process;

/// A router host.
pub(super) struct Router {
    name: &'static str,
    ns: Ns,
    dir: PathBuf,
    haproxy: Option<Process>,
}

impl Router {
    /// Starts all router hosts.
    pub(super) fn all(site: &Site, network: &Network) -> Result<Vec<Self>> {
        certificate(site)?;
        let hosts = network.hosts.iter().zip(HOSTS);
        hosts.map(|(ns, (name, _))| Self::new(site, ns, name)).collect()
    }

    fn new(site: &Site, ns: &Ns, name: &'static str) -> Result<Self> {
        app::start(ns, name)?;
        let mut router = Self {
            name,
            ns: ns.clone(),
            dir: site.dir().to_owned(),
            haproxy: None,
        };
        let text = include_str!("haproxy.cfg")
            .replace("@DIR@", &site.dir().display().to_string())
            .replace("@APP@", &app::AT.to_string());
        std::fs::write(router.config(), text)?;
        router.start()?;
        Ok(router)
    }

    fn config(&self) -> PathBuf {
        self.dir.join(format!("{}.cfg", self.name))
    }

    /// Starts HAProxy where it does not run.
    pub(super) fn start(&mut self) -> Result<()> {
        if self.haproxy.is_none() {
            let mut command = self.ns.command("haproxy");
            // A Ctrl-C is for us: what it ends is ours to end, in our order.
            command.arg("-db").arg("-f").arg(self.config()).process_group(0);
            self.haproxy = Some(Process::start(self.name, command, &self.dir)?);
        }
        Ok(())
    }

    /// Message if the host's HAProxy has ended since the last call, and how.
    pub(super) fn news(&mut self) -> Option<String> {
        let process = self.haproxy.as_mut()?;
        let (how, pid, words) = (process.ended()?, process.pid(), process.last_words());
        self.haproxy = None;
        let name = self.name;
        Some(format!(
            "HAProxy of {name}, process {pid}, has ended: {how}. {words}\nEnter starts it again."
        ))
    }
}

/// Makes one certificate for all hosts and names, which is its own authority.
fn certificate(site: &Site) -> Result<()> {
    let names = ["north", "south", "app"].map(|name| format!("{name}.lab.example"));
    let made = rcgen::generate_simple_self_signed(names)?;
    let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    std::fs::write(site.path("ca.pem"), &cert)?;
    std::fs::write(site.path("router.pem"), cert + &key)?;
    Ok(())
}

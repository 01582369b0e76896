//! Router hosts: a HAProxy in each that says which host it is on, and an application for downloads that it proxies.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;

use anyhow::Result;
use signalbox_lab::{Ns, Proc, Server, router};

use super::app;
use super::network::{HOSTS, Network};
use super::site::Site;
use crate::process;

/// Names that the certificates of all hosts are for.
const NAMES: [&str; 4] = [
    "north.lab.example",
    "south.lab.example",
    "app.lab.example",
    "reencrypt.lab.example",
];

/// A router host.
pub(super) struct Router {
    name: &'static str,
    ns: Ns,
    dir: PathBuf,
    haproxy: Option<Proc>,
    _app: Server,
}

impl Router {
    /// Starts all router hosts.
    pub(super) fn all(site: &Site, network: &Network) -> Result<Vec<Self>> {
        let hosts = network.hosts.iter().zip(HOSTS);
        hosts.map(|(ns, (name, _))| Self::new(site, ns, name)).collect()
    }

    fn new(site: &Site, ns: &Ns, name: &'static str) -> Result<Self> {
        let mut host = Self {
            name,
            ns: ns.clone(),
            dir: site.dir().to_owned(),
            haproxy: None,
            _app: app::start(ns),
        };
        let pem = router::certificate(site.dir(), name, &NAMES)?;
        std::fs::write(host.config(), router::haproxy(pem.display(), "", &web(name)))?;
        host.start()?;
        Ok(host)
    }

    fn config(&self) -> PathBuf {
        self.dir.join(format!("{}.cfg", self.name))
    }

    /// Starts HAProxy where it does not run.
    pub(super) fn start(&mut self) -> Result<()> {
        if self.haproxy.is_none() {
            let mut command = process::command(&self.ns, "haproxy");
            // A Ctrl-C is for the lab, which ends its processes itself, in its own order.
            command.arg("-db").arg("-f").arg(self.config()).process_group(0);
            self.haproxy = Some(process::start(self.name, command, &self.dir)?);
        }
        Ok(())
    }

    /// Message if the host's HAProxy has ended since the last call, and how.
    pub(super) fn news(&mut self) -> Option<String> {
        let process = self.haproxy.as_mut()?;
        let (how, pid, words) = (process.ended()?, process.pid(), process::last_words(process));
        self.haproxy = None;
        let name = self.name;
        Some(format!(
            "HAProxy of {name}, process {pid}, has ended: {how}. {words}\nEnter starts it again."
        ))
    }
}

/// Lines of HAProxy's frontend: a host says its name, and leaves downloads to the application.
fn web(name: &str) -> String {
    let say = |scheme: &str, when: &str| {
        format!(
            "  http-request return status 200 content-type text/plain lf-string \"{name} answers for %[req.hdr(host)] \
             over {scheme}\\n\" {when}\n"
        )
    };
    format!(
        "  acl download path_beg {BYTES}\n{}{}  default_backend app\nbackend app\n  server app {AT}\n",
        say("https", "if !download { ssl_fc }"),
        say("http", "if !download"),
        BYTES = app::BYTES,
        AT = app::AT,
    )
}

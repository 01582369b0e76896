//! The router hosts: nginx for HTTP, and a sink for bulk streams, in a namespace each.

use anyhow::{Context, Result};

use crate::lab::{HOSTS, Lab};
use crate::load::bulk::Sink;
use crate::process::Process;

/// What is asked for in the Host header; the balancers know no other.
pub(crate) const NAME: &str = "app.bench.example";
/// The large answer.
pub(crate) const LARGE: usize = 1 << 20;

/// All of them, until dropped.
pub(crate) struct Hosts {
    servers: Vec<Process>,
    /// Where bulk streams end.
    pub(crate) sinks: Vec<Sink>,
}

impl Hosts {
    /// Starts them.
    pub(crate) fn start(lab: &Lab) -> Result<Self> {
        std::fs::write(lab.dir().join("1m"), vec![b'x'; LARGE])?;
        let mut hosts = Self {
            servers: Vec::new(),
            sinks: Vec::new(),
        };
        for (number, ns) in (1..).zip(&lab.hosts) {
            let config = lab.dir().join(format!("host{number}.conf"));
            std::fs::write(&config, config_text(lab, number)?)?;
            let mut command = ns.command("nginx");
            command.arg("-c").arg(&config);
            hosts
                .servers
                .push(Process::start(&format!("host{number}"), command, lab.dir())?);
            hosts.sinks.push(Sink::start(ns, HOSTS[number - 1])?);
        }
        Ok(hosts)
    }

    /// The pids of all.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.servers.iter().flat_map(Process::pids).collect()
    }
}

/// One process for each host: it is the work of both together that the machine's CPUs must carry.
fn config_text(lab: &Lab, number: usize) -> Result<String> {
    let dir = lab
        .dir()
        .to_str()
        .context("the temporary directory's name is not UTF-8")?;
    Ok(format!(
        r#"daemon off;
master_process off;
user root;
pid {dir}/host{number}.pid;
error_log stderr error;
events {{ worker_connections 16384; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_timeout 1h;
  keepalive_requests 1000000000;
  open_file_cache max=16 inactive=1h;
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fastcgi;
  uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
  server {{
    listen 80 backlog=16384;
    root {dir};
    location = / {{ default_type text/plain; return 200 "hello from host {number}\n"; }}
    location = /1m {{ }}
  }}
}}
"#
    ))
}

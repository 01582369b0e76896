//! The router hosts: nginx for HTTP with and without TLS, and a sink for bulk streams, in a namespace each.

use anyhow::{Context, Result};

use crate::lab::{HOSTS, Lab};
use crate::load::bulk::Sink;
use crate::load::tls;
use crate::process::Process;

/// Name in the Host header of all requests; the balancers know no other.
pub(crate) const NAME: &str = "app.bench.example";
/// Length of the large answer, in bytes.
pub(crate) const LARGE: usize = 1 << 20;

/// Router hosts, running until dropped.
pub(crate) struct Hosts {
    servers: Vec<Process>,
    /// Sinks of bulk streams.
    pub(crate) sinks: Vec<Sink>,
    /// TLS client that trusts the hosts' certificate.
    pub(crate) tls: tls::Client,
}

impl Hosts {
    /// Starts the hosts in the lab.
    pub(crate) fn start(lab: &Lab) -> Result<Self> {
        std::fs::write(lab.dir().join("1m"), vec![b'x'; LARGE])?;
        let mut hosts = Self {
            servers: Vec::new(),
            sinks: Vec::new(),
            tls: certificate(lab)?,
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

    /// Pids of all hosts' processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.servers.iter().flat_map(Process::pids).collect()
    }
}

/// Makes one certificate for all hosts, ECDSA with P-256 as is common, and the client that trusts it.
fn certificate(lab: &Lab) -> Result<tls::Client> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    std::fs::write(lab.dir().join("cert.pem"), made.cert.pem())?;
    std::fs::write(lab.dir().join("key.pem"), made.signing_key.serialize_pem())?;
    tls::Client::new(NAME, made.cert.der().clone())
}

/// nginx' configuration. Every handshake is a full one. One process for each host: the machine's CPUs must carry both.
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
    listen 443 ssl backlog=16384;
    ssl_certificate {dir}/cert.pem;
    ssl_certificate_key {dir}/key.pem;
    ssl_protocols TLSv1.3;
    ssl_session_cache off;
    ssl_session_tickets off;
    root {dir};
    location = / {{ default_type text/plain; return 200 "hello from host {number}\n"; }}
    location = /1m {{ }}
  }}
}}
"#
    ))
}

//! The router hosts: nginx for HTTP with and without TLS, and a sink for bulk streams, in a namespace each.

use std::fmt::Display;

use anyhow::Result;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use signalbox_lab::{Proc, router};

use crate::lab::{HOSTS, Lab};
use crate::load::bulk::Sink;
use crate::load::echo::EchoServer;
use crate::load::tls;
use crate::process;

/// Name in the Host header of all requests; the balancers know no other.
pub(crate) const NAME: &str = "app.bench.example";
/// Name that the hosts serve with their own TLS where a balancer re-encrypts.
pub(crate) const REENCRYPTED_NAME: &str = "tls.bench.example";
/// Name that balancers show an RSA certificate for; plain HTTP goes to the hosts.
pub(crate) const RSA_NAME: &str = "rsa.bench.example";
/// File of the RSA certificate and its key, in the run's directory.
pub(crate) const RSA_CERTIFICATE: &str = "rsa.pem";
/// Path of WebSockets, which go to echo servers at another port of the hosts.
pub(crate) const WEBSOCKET_PATH: &str = "/socket";
/// File of the certificate and key of both names, in the run's directory.
pub(crate) const CERTIFICATE: &str = "hosts.pem";
/// Port at which a PROXY header is expected.
const PROXY_PORT: u16 = 81;
/// Length of the large answer, in bytes.
pub(crate) const LARGE: usize = 1 << 20;
/// Length of the huge answer, in bytes.
pub(crate) const HUGE: usize = 64 << 20;

/// Router hosts, running until dropped.
pub(crate) struct Hosts {
    servers: Vec<Proc>,
    /// Sinks of bulk streams.
    pub(crate) sinks: Vec<Sink>,
    /// Certificate of the hosts, and of balancers that end TLS.
    certificate: CertificateDer<'static>,
    /// RSA certificate of balancers.
    rsa_certificate: CertificateDer<'static>,
    /// Echo servers of WebSockets, running as long as the hosts.
    echoes: Vec<EchoServer>,
}

impl Hosts {
    /// Starts the hosts in the lab, with one certificate for all of them.
    pub(crate) fn start(lab: &Lab) -> Result<Self> {
        std::fs::write(lab.dir().join("1m"), vec![b'x'; LARGE])?;
        std::fs::write(lab.dir().join("64m"), vec![b'x'; HUGE])?;
        let pem = router::certificate(lab.dir(), "hosts", &[NAME, REENCRYPTED_NAME])?;
        let rsa = router::rsa_certificate(lab.dir(), "rsa", &[RSA_NAME])?;
        let mut hosts = Self {
            servers: Vec::new(),
            sinks: Vec::new(),
            certificate: CertificateDer::from_pem_file(&pem)?,
            rsa_certificate: CertificateDer::from_pem_file(rsa)?,
            echoes: Vec::new(),
        };
        for (number, ns) in (1..).zip(&lab.hosts) {
            let name = format!("host{number}");
            let config = lab.dir().join(format!("{name}.conf"));
            let dir = lab.dir().display();
            let text = router::nginx(&dir, &name, pem.display(), &http(&dir, number));
            let command = process::with_config(ns, &["nginx", "-c"], &config, &text)?;
            hosts.servers.push(process::start(&name, command, lab.dir())?);
            hosts.sinks.push(Sink::start(ns, HOSTS[number - 1]));
            hosts.echoes.push(EchoServer::start(ns, HOSTS[number - 1]));
        }
        Ok(hosts)
    }

    /// TLS client for a name that accepts only the name's certificate.
    pub(crate) fn tls(&self, name: &str, resumes: bool) -> Result<tls::Client> {
        let certificate = match name {
            RSA_NAME => &self.rsa_certificate,
            _ => &self.certificate,
        };
        tls::Client::new(name, certificate.clone(), resumes)
    }

    /// Pids of all hosts' processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.servers.iter().flat_map(process::family).collect()
    }
}

/// The server of a host. Every handshake is a full one. One process for each host: the machine's CPUs must carry both.
fn http(dir: impl Display, number: usize) -> String {
    format!(
        "  sendfile on;
  tcp_nopush on;
  open_file_cache max=16 inactive=1h;
  server {{
    listen 80 backlog=16384;
    listen {PROXY_PORT} proxy_protocol backlog=16384;
    listen 443 ssl backlog=16384;
    ssl_protocols TLSv1.3;
    ssl_session_cache off;
    ssl_session_tickets off;
    root {dir};
    location = / {{ default_type text/plain; return 200 \"hello from host {number}\\n\"; }}
    location = /1m {{ }}
    location = /64m {{ }}
  }}
"
    )
}

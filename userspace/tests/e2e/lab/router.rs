//! Real router hosts: HAProxy as OpenShift runs it, and nginx.

use std::path::{Path, PathBuf};

use super::namespace::Ns;
use super::process::Proc;
use super::topology::Lab;
use super::{SOON, eventually};

/// A router host that serves :80 and :443 and answers health checks on :1936. Each answer is one line
/// `host=<itself> name=<Host> sni=<SNI> client=<address>`.
pub(crate) struct Router {
    name: String,
    ns: Ns,
    config: PathBuf,
    dir: PathBuf,
    /// The HAProxy or nginx.
    pub(crate) proc: Proc,
}

impl Router {
    /// HAProxy.
    pub(crate) fn start(lab: &Lab, name: &str) -> Self {
        Self::haproxy(lab, name, "")
    }

    /// HAProxy that demands a PROXY header on :80 and :443, and believes it.
    pub(crate) fn accept_proxy(lab: &Lab, name: &str) -> Self {
        Self::haproxy(lab, name, "accept-proxy")
    }

    /// Starts all the given hosts.
    pub(crate) fn start_all(lab: &Lab, names: &[&str]) -> Vec<Self> {
        names.iter().map(|name| Self::start(lab, name)).collect()
    }

    fn haproxy(lab: &Lab, name: &str, bind: &str) -> Self {
        let pem = certificate(lab.dir(), name);
        // Timeouts of an hour: connections that tests hold are not this host's to end. HTTP/2 with prior knowledge
        // needs no option: HAProxy knows the preface.
        let text = format!(
            r#"global
  nbthread 1
  maxconn 6000
defaults
  mode http
  timeout client 1h
  timeout server 1h
  timeout connect 5s
  timeout http-keep-alive 1h
  timeout http-request 1h
frontend web
  bind :::80 v4v6 {bind}
  bind :::443 v4v6 {bind} ssl crt {pem} alpn h2,http/1.1
  http-request return status 200 content-type text/plain lf-string "host={name} name=%[req.hdr(host)] sni=%[ssl_fc_sni] client=%[src]\n"
frontend health
  bind :::1936 v4v6
  monitor-uri /healthz
"#,
            pem = pem.display()
        );
        Self::launch(lab, name, "haproxy", &text)
    }

    /// nginx, for what is to be seen by a second implementation.
    pub(crate) fn nginx(lab: &Lab, name: &str) -> Self {
        let pem = certificate(lab.dir(), name);
        let text = format!(
            r#"daemon off;
master_process off;
pid {dir}/{name}.nginx.pid;
error_log stderr;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  keepalive_timeout 1h;
  keepalive_requests 1000000;
  client_body_temp_path {dir}/{name}.body; proxy_temp_path {dir}/{name}.proxy; fastcgi_temp_path {dir}/{name}.fastcgi;
  uwsgi_temp_path {dir}/{name}.uwsgi; scgi_temp_path {dir}/{name}.scgi;
  server {{
    listen [::]:80 ipv6only=off;
    listen [::]:443 ipv6only=off ssl http2;
    listen [::]:1936 ipv6only=off;
    ssl_certificate {pem}; ssl_certificate_key {pem};
    location / {{ return 200 "host={name} name=$host sni=$ssl_server_name client=$remote_addr\n"; }}
  }}
}}
"#,
            dir = lab.dir().display(),
            pem = pem.display()
        );
        Self::launch(lab, name, "nginx", &text)
    }

    fn launch(lab: &Lab, name: &str, program: &str, text: &str) -> Self {
        let config = lab.dir().join(format!("{name}.{program}"));
        std::fs::write(&config, text).unwrap();
        let ns = lab.host(name).clone();
        let proc = run(&ns, name, &config, lab.dir());
        let router = Self {
            name: name.into(),
            ns,
            config,
            dir: lab.dir().into(),
            proc,
        };
        router.wait();
        router
    }

    /// The host's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// SIGKILL: the host's kernel answers with RST from now on.
    pub(crate) fn kill(&mut self) {
        self.proc.kill();
    }

    /// Starts it again.
    pub(crate) fn restart(&mut self) {
        self.proc.kill();
        self.proc = run(&self.ns, &self.name, &self.config, &self.dir);
        self.wait();
    }

    fn wait(&self) {
        let up = eventually(SOON, || {
            self.ns.run(|| std::net::TcpStream::connect("127.0.0.1:1936").is_ok())
        });
        assert!(up, "{} does not listen: {}", self.name, self.proc.log());
    }
}

fn run(ns: &Ns, name: &str, config: &Path, dir: &Path) -> Proc {
    let nginx = config.extension().is_some_and(|e| e == "nginx");
    let mut command = ns.command(if nginx { "nginx" } else { "haproxy" });
    if nginx {
        command.arg("-c").arg(config);
    } else {
        command.arg("-db").arg("-f").arg(config);
    }
    Proc::spawn(name, command, dir)
}

/// A self-signed certificate whose common name is the host's, good for all names of the tests. Added to `ca.pem`, so
/// that a client can check that it ends TLS at a router host and nowhere else.
fn certificate(dir: &Path, name: &str) -> PathBuf {
    // A wildcard directly under a top-level name counts for no client, hence `a.test` in full.
    let names = ["*.example.com", "*.apps.example.com", "a.test"].map(String::from);
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(names).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let cert = params.self_signed(&key).unwrap().pem();
    let pem = dir.join(format!("{name}.pem"));
    std::fs::write(&pem, format!("{cert}{}", key.serialize_pem())).unwrap();
    let ca = dir.join("ca.pem");
    let known = std::fs::read_to_string(&ca).unwrap_or_default();
    std::fs::write(&ca, known + &cert).unwrap();
    pem
}

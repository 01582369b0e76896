//! Real router hosts: HAProxy as OpenShift runs it, and nginx.

use std::path::{Path, PathBuf};

use signalbox_lab::router;

use super::{Lab, Ns, Proc, SOON, eventually};

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

    /// HAProxy with further rules in front of its answer, and a certificate for these names alone.
    pub(crate) fn with_rules(lab: &Lab, name: &str, rules: &str, certified: &[&str]) -> Self {
        let pem = router::certificate(lab.dir(), &format!("{name}-own"), certified).unwrap();
        let web = format!(
            "{rules}\n  http-request return status 200 content-type text/plain lf-string \"host={name} \
             name=%[req.hdr(host)] sni=%[ssl_fc_sni] client=%[src]\\n\"\n"
        );
        let text = router::haproxy(pem.display(), "", &web);
        Self::launch(lab, name, "haproxy", &text)
    }

    /// HAProxy that demands a PROXY header on :80 and :443, and trusts it. Its answers also have ` to=` with the
    /// header's destination address, ` port=` with X-Forwarded-Port, and ` authority=` and ` id=` of the header's TLVs.
    pub(crate) fn accept_proxy(lab: &Lab, name: &str) -> Self {
        Self::haproxy(lab, name, "accept-proxy")
    }

    /// Starts all the given hosts.
    pub(crate) fn start_all(lab: &Lab, names: &[&str]) -> Vec<Self> {
        names.iter().map(|name| Self::start(lab, name)).collect()
    }

    fn haproxy(lab: &Lab, name: &str, bind: &str) -> Self {
        let more = match bind {
            "" => "",
            _ => {
                " to=%[dst]:%[dst_port] port=%[req.hdr(x-forwarded-port)] authority=%[fc_pp_authority] id=%[fc_pp_unique_id]"
            }
        };
        let web = format!(
            "  http-request return status 200 content-type text/plain lf-string \"host={name} name=%[req.hdr(host)] \
             sni=%[ssl_fc_sni] client=%[src]{more}\\n\"\n"
        );
        let text = router::haproxy(certificate(lab.dir(), name).display(), bind, &web);
        Self::launch(lab, name, "haproxy", &text)
    }

    /// nginx, for tests that need a second implementation.
    pub(crate) fn nginx(lab: &Lab, name: &str) -> Self {
        Self::nginx_with(lab, name, " http2", "")
    }

    /// nginx with further words for its TLS port and further lines for its server.
    pub(crate) fn nginx_with(lab: &Lab, name: &str, tls: &str, lines: &str) -> Self {
        let http = format!(
            "  server {{
    listen [::]:80 ipv6only=off;
    listen [::]:443 ipv6only=off ssl{tls};
    {lines}
    listen [::]:1936 ipv6only=off;
    location / {{ return 200 \"host={name} name=$host sni=$ssl_server_name client=$remote_addr\\n\"; }}
  }}
"
        );
        let pem = certificate(lab.dir(), name);
        let text = router::nginx(lab.dir().display(), name, pem.display(), &http);
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

/// Makes a certificate whose common name is the host's, good for all names of the tests.
fn certificate(dir: &Path, name: &str) -> PathBuf {
    // A wildcard directly under a top-level name counts for no client, so `a.test` is written in full.
    router::certificate(dir, name, &["*.example.com", "*.apps.example.com", "a.test"]).unwrap()
}

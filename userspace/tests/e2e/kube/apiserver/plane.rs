//! etcd and kube-apiserver on a host of the lab, which tests ask as the administrator, kill, back up and restore.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::sys::signal::Signal;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use super::objects::{collection, path};
use crate::lab::{Lab, Ns, Proc, eventually};

const HOST: &str = "west-2";
/// Address at which the balancer finds the server.
const SERVER: &str = "10.3.0.3:6443";
/// Address of etcd, for the server alone: on the host's loopback.
const ETCD: &str = "http://127.0.0.1:2379";
const ADMIN: &str = "administrator-of-the-lab";
/// Two programs of some 100 MB start on a machine whose processors others use too.
const START_TIMEOUT: Duration = Duration::from_secs(180);

pub(super) struct Plane {
    ns: Ns,
    dir: PathBuf,
    program: PathBuf,
    etcd: Option<Proc>,
    server: Option<Proc>,
}

impl Plane {
    pub(super) fn start(lab: &Lab, program: PathBuf) -> Self {
        let dir = lab.dir().join("kubernetes");
        std::fs::create_dir(&dir).unwrap();
        write_certificates(&dir);
        std::fs::write(
            dir.join("tokens.csv"),
            format!("{ADMIN},admin,admin,\"system:masters\"\n"),
        )
        .unwrap();
        let mut plane = Self {
            ns: lab.host(HOST).clone(),
            dir,
            program,
            etcd: None,
            server: None,
        };
        plane.start_etcd();
        plane.start_server();
        plane
    }

    pub(super) fn url() -> String {
        format!("https://{SERVER}")
    }

    pub(super) fn authority(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    pub(super) fn start_etcd(&mut self) {
        let mut command = self.ns.command("etcd");
        command.args(["--name", "one", "--data-dir"]).arg(self.data());
        command.args(["--listen-client-urls", ETCD, "--advertise-client-urls", ETCD]);
        command.args(["--listen-peer-urls", "http://127.0.0.1:2380"]);
        // On architectures that etcd does not call supported it must be allowed explicitly.
        command.env(
            "ETCD_UNSUPPORTED_ARCH",
            std::env::consts::ARCH.replace("aarch64", "arm64"),
        );
        let etcd = self.etcd.insert(Proc::spawn("etcd", command, &self.dir));
        let health = format!("{ETCD}/health");
        let up = || self.ns.output(&["curl", "-sf", &health]).status.success();
        assert!(eventually(START_TIMEOUT, up), "{}", etcd.log());
    }

    /// Returns when the server says that it is ready.
    pub(super) fn start_server(&mut self) {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let mut command = self.ns.command(&self.program);
        command.arg(format!("--etcd-servers={ETCD}"));
        command.args(["--bind-address=0.0.0.0", "--secure-port=6443"]);
        command.arg(format!("--advertise-address={}", address()));
        command.arg(format!("--tls-cert-file={}", file("server.pem")));
        command.arg(format!("--tls-private-key-file={}", file("server.key")));
        command.arg(format!("--service-account-key-file={}", file("accounts.pub")));
        command.arg(format!("--service-account-signing-key-file={}", file("accounts.key")));
        command.args(["--service-account-issuer=https://kubernetes.default.svc"]);
        command.arg(format!("--token-auth-file={}", file("tokens.csv")));
        command.args(["--authorization-mode=RBAC", "--service-cluster-ip-range=10.254.0.0/24"]);
        // Pods would wait for an account that a controller makes, and there are no controllers.
        command.arg("--disable-admission-plugins=ServiceAccount");
        let server = self.server.insert(Proc::spawn("kube-apiserver", command, &self.dir));
        let mut ended = None;
        let up = eventually(START_TIMEOUT, || {
            ended = server.wait_exit(Duration::ZERO);
            ended.is_some() || ask(&self.ns, &self.dir, "GET", "/readyz", None).0 == 200
        });
        assert!(
            up && ended.is_none(),
            "kube-apiserver is not ready, {ended:?}: {}",
            server.log()
        );
    }

    /// SIGKILL.
    pub(super) fn kill_server(&mut self) {
        self.server.take().unwrap().kill();
    }

    /// SIGKILL.
    pub(super) fn kill_etcd(&mut self) {
        self.etcd.take().unwrap().kill();
    }

    /// Keeps etcd's data on its disk at one moment, from which it starts as after a power cut.
    pub(super) fn back_up(&self) {
        let etcd = self.etcd.as_ref().unwrap();
        etcd.signal(Signal::SIGSTOP);
        copy(&self.data(), &self.dir.join("backup"));
        etcd.signal(Signal::SIGCONT);
    }

    /// The backup replaces etcd's data; etcd must not run.
    pub(super) fn restore(&self) {
        std::fs::remove_dir_all(self.data()).unwrap();
        copy(&self.dir.join("backup"), &self.data());
    }

    /// Deletes keys behind the server's back, and has etcd forget its history.
    pub(super) fn delete_and_compact(&self, key: &str) {
        let ask = |path: &str, body: &Value| -> Value {
            let (url, body) = (format!("{ETCD}/v3/kv/{path}"), body.to_string());
            serde_json::from_str(&self.ns.must(&["curl", "-sSf", "-d", &body, &url])).unwrap()
        };
        let deleted = ask("deleterange", &json!({ "key": STANDARD.encode(key) }));
        assert_eq!(deleted["deleted"], "1", "{deleted}");
        let revision = &deleted["header"]["revision"];
        ask("compaction", &json!({ "revision": revision, "physical": true }));
    }

    /// Makes an object; an existing one is updated.
    pub(super) fn put(&self, object: &Value) {
        let (status, answer) = ask(&self.ns, &self.dir, "POST", &collection(object), Some(object));
        if status == 409 {
            self.must("PATCH", &path(object), Some(object));
        } else {
            assert!(matches!(status, 200..300), "{status} {answer}");
        }
    }

    pub(super) fn delete(&self, object: &Value) {
        self.must("DELETE", &path(object), None);
    }

    /// Waits until the server has a resource.
    pub(super) fn has(&self, collection: &str) {
        let there = || ask(&self.ns, &self.dir, "GET", collection, None).0 == 200;
        assert!(eventually(START_TIMEOUT, there), "the server has no {collection}");
    }

    /// A request that must succeed, as the administrator.
    pub(super) fn must(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let (status, answer) = ask(&self.ns, &self.dir, method, path, body);
        assert!(matches!(status, 200..300), "{method} {path}: {status} {answer}");
        answer
    }

    fn data(&self) -> PathBuf {
        self.dir.join("etcd")
    }
}

/// Status and answer; 0 where there is none.
fn ask(ns: &Ns, dir: &Path, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
    let kind = if method == "PATCH" { "merge-patch+json" } else { "json" };
    let mut command = ns.command("curl");
    command.args(["-sS", "-w", "\n%{http_code}", "-X", method, "--cacert"]);
    command.arg(dir.join("ca.pem"));
    command.args(["-H", &format!("Authorization: Bearer {ADMIN}")]);
    command.args(["-H", &format!("Content-Type: application/{kind}")]);
    if let Some(body) = body {
        command.args(["-d", &body.to_string()]);
    }
    let output = command.arg(format!("https://{SERVER}{path}")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let (answer, status) = text.rsplit_once('\n').unwrap_or_default();
    // `/readyz` answers in plain text.
    let answer = serde_json::from_str(answer).unwrap_or_else(|_| answer.into());
    (status.parse().unwrap_or(0), answer)
}

fn address() -> &'static str {
    SERVER.split(':').next().unwrap_or_default()
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success(), "{} is not copied", from.display());
}

/// An authority, the server's certificate, and the key that tokens of accounts are signed with.
fn write_certificates(dir: &Path) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // A different name: with that of its certificates the authority would be taken for one of them.
    params.distinguished_name.push(DnType::CommonName, "authority");
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec![address().to_owned()]).unwrap();
    let server = server.signed_by(&key, &issuer).unwrap().pem();
    let accounts = KeyPair::generate().unwrap();
    for (name, text) in [
        ("ca.pem", authority),
        ("server.pem", server),
        ("server.key", key.serialize_pem()),
        ("accounts.key", accounts.serialize_pem()),
        ("accounts.pub", accounts.public_key_pem()),
    ] {
        std::fs::write(dir.join(name), text).unwrap();
    }
}

//! Virtual addresses of several nodes, which keep their flows: the overlay `plain-ha`.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::Value;

use super::{Cluster, ingress};
use crate::lab::{SOON, eventually};

/// The virtual address of each node.
const VIPS: [&str; 2] = ["10.77.0.201", "10.77.0.202"];
/// Connections that are kept to each of them.
const KEPT: u32 = 4;
/// Upgrades of all nodes, one after the other.
const UPGRADES: u32 = 3;
/// How long a request may take until it counts as failed. The first packet of a new owner may have to wait for ARP.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: web.test\r\n\r\n";

const CONFIGURATION: &str = r#"
version: 1
admin: { listen: "0.0.0.0:8089" }
listeners:
  - { name: http, protocol: http, listen: ["10.77.0.201:80", "10.77.0.202:80"] }
clusters:
  - name: here
    kubernetes:
      in_cluster: true
      routers: { namespace: ingress, labels: app=router }
ha:
  name: lab
  interface: eth0
  nodes:
    - { name: n1, address: 10.77.0.11 }
    - { name: n2, address: 10.77.0.12 }
  groups:
    - { name: g1, vips: 10.77.0.201, prefer: n1 }
    - { name: g2, vips: 10.77.0.202, prefer: n2 }
  sync:
    listen: "0.0.0.0:8090"
    cert: /etc/signalbox-sync/tls.crt
    key: /etc/signalbox-sync/tls.key
    ca: /etc/signalbox-sync/ca.crt
"#;

mod share_12 {
    use super::*;

    #[test]
    fn upgrades_refuse_nobody_and_a_dead_node_loses_no_flow() {
        const NAME: &str = "upgrades_refuse_nobody_and_a_dead_node_loses_no_flow";
        let Some(cluster) = Cluster::start(NAME, "ha", 3) else {
            return;
        };
        start(&cluster);
        let (clients, in_cluster) = (VIPS.map(Clients::of), &cluster);
        std::thread::scope(|scope| {
            for clients in &clients {
                for _ in 0..KEPT {
                    scope.spawn(|| clients.keep(in_cluster));
                }
                scope.spawn(|| clients.ask(in_cluster));
            }
            let _stop = Stop(&clients);
            progress(&clients);
            for _ in 0..UPGRADES {
                cluster.kubectl(&["-n", "signalbox", "rollout", "restart", "daemonset/signalbox"]);
                cluster.await_rollout("daemonset/signalbox");
                await_synced(&cluster);
            }
            progress(&clients);
            for clients in &clients {
                clients.has_failed_at_most(0);
            }

            cluster.must(&["kill", "n1"]);
            progress(&clients);
            for clients in &clients {
                // The request that was under way at that moment.
                clients.has_failed_at_most(1);
            }
        });
        cluster.end();
    }
}

/// Waits until new and kept connections of both addresses have got more answers.
#[track_caller]
fn progress(clients: &[Clients; 2]) {
    let counts = || {
        clients
            .each_ref()
            .map(|clients| (clients.asked.load(Relaxed), clients.kept.load(Relaxed)))
    };
    let before = counts();
    let is_more = |((asked, kept), (asked_before, kept_before)): ((u32, u32), (u32, u32))| {
        asked > asked_before + 20 && kept > kept_before + 5 * KEPT
    };
    let is_on = eventually(SOON, || counts().into_iter().zip(before).all(is_more));
    assert!(is_on, "{before:?}, then {:?}: {clients:#?}", counts());
}

/// Applies the overlay, and waits until both nodes have their addresses and each other's flows.
fn start(cluster: &Cluster) {
    let overlay = cluster.configured("plain-ha", CONFIGURATION);
    cluster.kubectl(&["create", "namespace", "signalbox"]);
    write_certificates(&cluster.dir);
    let file = |key: &str, name: &str| format!("--from-file={key}={}", cluster.dir.join(name).display());
    let (cert, key, ca) = (
        file("tls.crt", "leaf.pem"),
        file("tls.key", "leaf.key"),
        file("ca.crt", "ca.pem"),
    );
    cluster.kubectl(&[
        "-n",
        "signalbox",
        "create",
        "secret",
        "generic",
        "signalbox-sync",
        &cert,
        &key,
        &ca,
    ]);
    cluster.must(&["apply", &overlay]);
    cluster.await_rollout("daemonset/signalbox");
    cluster.kubectl(&["create", "namespace", "shop"]);
    cluster.apply_text(&ingress("web", "web.test"));
    for vip in VIPS {
        cluster.serves(vip, "web.test");
    }
    await_synced(cluster);
}

/// Waits until each node sends its flows to the other one, and has its flows.
#[track_caller]
pub(super) fn await_synced(cluster: &Cluster) {
    let mut said = Vec::new();
    let synced = eventually(SOON * 3, || {
        let pods = cluster.pods();
        said = pods
            .iter()
            .map(|pod| cluster.signalbox(pod, &["ha", "sync", "-o", "json"]))
            .collect();
        said.len() == 2 && said.iter().all(|said| is_synced(said))
    });
    assert!(synced, "{said:?}");
}

fn is_synced(said: &str) -> bool {
    let said: Value = serde_json::from_str(said).unwrap_or_default();
    let mut peers = said["peers"].as_array().into_iter().flatten().peekable();
    peers.peek().is_some() && peers.all(|peer| ["sending", "receiving", "complete"].iter().all(|key| peer[key] == true))
}

/// An authority, and one certificate with the names of both nodes.
fn write_certificates(dir: &Path) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "nodes");
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["n1".to_owned(), "n2".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap().pem();
    for (name, text) in [
        ("ca.pem", authority),
        ("leaf.pem", leaf),
        ("leaf.key", key.serialize_pem()),
    ] {
        std::fs::write(dir.join(name), text).unwrap();
    }
}

/// Clients of an address: new connections, and connections that are kept.
#[derive(Debug)]
struct Clients {
    vip: &'static str,
    is_over: AtomicBool,
    /// Answers to new connections, and to kept ones.
    asked: AtomicU32,
    kept: AtomicU32,
    /// New connections that got no answer.
    failed: AtomicU32,
    /// Kept connections that ended.
    ended: AtomicU32,
}

impl Clients {
    fn of(vip: &'static str) -> Self {
        Self {
            vip,
            is_over: AtomicBool::default(),
            asked: AtomicU32::default(),
            kept: AtomicU32::default(),
            failed: AtomicU32::default(),
            ended: AtomicU32::default(),
        }
    }

    /// Opens a connection for each request, one after the other.
    fn ask(&self, cluster: &Cluster) {
        cluster.ns("client").run(|| {
            while !self.is_over.load(Relaxed) {
                let asked = connect(self.vip).and_then(|mut client| exchange(&mut client));
                self.note(asked, &self.asked, &self.failed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
    }

    /// Asks again and again by one connection.
    fn keep(&self, cluster: &Cluster) {
        cluster.ns("client").run(|| {
            let mut client = connect(self.vip).unwrap();
            while !self.is_over.load(Relaxed) && self.note(exchange(&mut client), &self.kept, &self.ended) {
                std::thread::sleep(Duration::from_millis(100));
            }
        });
    }

    fn note(&self, asked: std::io::Result<()>, right: &AtomicU32, wrong: &AtomicU32) -> bool {
        let is_right = asked.is_ok();
        let counter = if is_right { right } else { wrong };
        counter.fetch_add(1, Relaxed);
        if let Err(why) = asked {
            println!("{}: {why}", self.vip);
        }
        is_right
    }

    #[track_caller]
    fn has_failed_at_most(&self, failed: u32) {
        println!("{self:?}");
        assert!(
            self.failed.load(Relaxed) <= failed && self.ended.load(Relaxed) == 0,
            "{self:?}"
        );
    }
}

/// Ends the clients, also where the test fails.
struct Stop<'t>(&'t [Clients; 2]);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        for clients in self.0 {
            clients.is_over.store(true, Relaxed);
        }
    }
}

fn connect(vip: &str) -> std::io::Result<TcpStream> {
    let client = TcpStream::connect_timeout(&format!("{vip}:80").parse().unwrap(), ANSWER_TIMEOUT)?;
    client.set_read_timeout(Some(ANSWER_TIMEOUT * 2))?;
    Ok(client)
}

/// Sends a request, and reads the whole answer.
fn exchange(client: &mut TcpStream) -> std::io::Result<()> {
    const END: &str = "n3 web.test\n";
    client.write_all(REQUEST)?;
    let (mut answer, mut piece, start) = (String::new(), [0; 1024], Instant::now());
    while !answer.ends_with(END) {
        let length = client.read(&mut piece)?;
        if length == 0 || answer.len() > 1000 {
            return Err(std::io::Error::other(format!(
                "after {:?}: {answer:?}",
                start.elapsed()
            )));
        }
        answer += &String::from_utf8_lossy(&piece[..length]);
    }
    Ok(())
}

//! Planned moves: connections that cannot move along stay at their former node until the drain is over.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::Signal;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use sha2::{Digest, Sha256};
use signalbox_lab::router;

use super::config::{BY_TEST, Settings};
use super::keepalived::FAST;
use super::pair::Pair;
use crate::lab::exchange::Noise;
use crate::lab::signalbox::binary;
use crate::lab::{Ns, SOON, Server, eventually};
use crate::life::upgrades::other_version;

/// Bytes of a download, and of a part of it.
const DOWNLOAD_BYTES: usize = 8 << 20;
const CHUNK_BYTES: usize = 64 << 10;
/// Pause between two parts: a download is on its way all the time.
const CHUNK_INTERVAL: Duration = Duration::from_millis(5);

/// Listeners whose connections are not cut, one of them over TLS that ends there.
const LISTENERS: &str =
    "  - { name: spliced4, protocol: tcp, listen: [\"10.1.0.10:7001\"], cluster: v4, datapath: { tier: splice } }
  - { name: copied4, protocol: tcp, listen: [\"10.1.0.10:7002\"], cluster: v4, datapath: { tier: copy } }
  - { name: spliced6, protocol: tcp, listen: [\"[fd00:1::10]:7001\"], cluster: v6, datapath: { tier: splice } }
  - { name: copied6, protocol: tcp, listen: [\"[fd00:1::10]:7002\"], cluster: v6, datapath: { tier: copy } }
  - { name: edge, protocol: https, listen: [\"10.1.0.10:7443\", \"[fd00:1::10]:7443\"], termination: edge }
";
const PLAIN: [&str; 4] = [
    "10.1.0.10:7001",
    "10.1.0.10:7002",
    "[fd00:1::10]:7001",
    "[fd00:1::10]:7002",
];
const TLS: [&str; 2] = ["10.1.0.10:7443", "[fd00:1::10]:7443"];

/// Sends a download; its second half when the test allows it.
fn send_download(mut to: &TcpStream, may_go_on: &AtomicBool) -> std::io::Result<()> {
    let (mut noise, mut chunk) = (Noise::new(7), vec![0; CHUNK_BYTES]);
    for sent in (0..DOWNLOAD_BYTES).step_by(CHUNK_BYTES) {
        while sent >= DOWNLOAD_BYTES / 2 && !may_go_on.load(SeqCst) {
            std::thread::sleep(CHUNK_INTERVAL);
        }
        noise.fill(&mut chunk);
        to.write_all(&chunk)?;
        std::thread::sleep(CHUNK_INTERVAL);
    }
    Ok(())
}

fn expected_digest() -> [u8; 32] {
    let (mut noise, mut chunk, mut hash) = (Noise::new(7), vec![0; CHUNK_BYTES], Sha256::new());
    for _ in 0..DOWNLOAD_BYTES / CHUNK_BYTES {
        noise.fill(&mut chunk);
        hash.update(&chunk);
    }
    hash.finalize().into()
}

/// The host's servers: at port 3306 a byte is answered with a download, at port 80 a request.
fn servers(host: &Ns, may_go_on: &Arc<AtomicBool>) -> [Server; 2] {
    let (plain, http) = (Arc::clone(may_go_on), Arc::clone(may_go_on));
    let plain = Server::start(host, "[::]:3306", move |stream| {
        if (&*stream).read_exact(&mut [0]).is_ok() {
            let _ = send_download(&stream, &plain);
        }
    });
    let http = Server::start(host, "[::]:80", move |stream| {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            if (&*stream).read_exact(&mut byte).is_err() {
                return;
            }
            head.push(byte[0]);
        }
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {DOWNLOAD_BYTES}\r\nConnection: close\r\n\r\n");
        if (&*stream).write_all(answer.as_bytes()).is_ok() {
            let _ = send_download(&stream, &http);
        }
    });
    [plain, http]
}

fn connect(client: &Ns, at: &str) -> TcpStream {
    let stream = client.connect(at);
    stream.set_read_timeout(Some(3 * SOON)).unwrap();
    stream
}

/// Shakes hands with the listener that ends TLS.
fn shake_hands(pair: &Pair, mut stream: TcpStream) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_file_iter(pair.dir().join("edge/ca.pem")).unwrap() {
        roots.add(authority.unwrap()).unwrap();
    }
    let settings = ClientConfig::builder_with_provider(signalbox_tls::provider::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("a.test").unwrap();
    let mut session = ClientConnection::new(Arc::new(settings), name).unwrap();
    while session.is_handshaking() {
        session.complete_io(&mut stream).unwrap();
    }
    StreamOwned::new(session, stream)
}

/// Downloads that have begun, by their doors.
struct Downloads(Vec<(String, JoinHandle<std::io::Result<[u8; 32]>>)>);

impl Downloads {
    /// Begins one at each door. Returns when bytes have come over each.
    fn begin(pair: &Pair) -> Self {
        let plain = PLAIN.map(|at| {
            let mut stream = connect(&pair.client, at);
            stream.write_all(b"!").unwrap();
            Self::receive(at, stream, Vec::new())
        });
        let tls = TLS.map(|at| {
            let mut stream = shake_hands(pair, connect(&pair.client, at));
            stream
                .write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
                .unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
            Self::receive(at, stream, Vec::new())
        });
        Self(plain.into_iter().chain(tls).collect())
    }

    fn receive(
        at: &str,
        mut from: impl Read + Send + 'static,
        mut received: Vec<u8>,
    ) -> (String, JoinHandle<std::io::Result<[u8; 32]>>) {
        received.resize(CHUNK_BYTES, 0);
        from.read_exact(&mut received).unwrap();
        let rest = std::thread::spawn(move || {
            let mut hash = Sha256::new_with_prefix(&received);
            let mut left = DOWNLOAD_BYTES - received.len();
            while left > 0 {
                let count = from.read(&mut received)?;
                if count == 0 {
                    return Err(std::io::Error::other(format!("it ends {left} bytes before its end")));
                }
                hash.update(&received[..count]);
                left -= count;
            }
            Ok(hash.finalize().into())
        });
        (at.to_owned(), rest)
    }

    /// Waits for all; each must be whole.
    fn finish(self) {
        let expected = expected_digest();
        for (at, download) in self.0 {
            let outcome = download.join().unwrap();
            assert_eq!(outcome.map_err(|error| error.to_string()), Ok(expected), "{at}");
        }
    }
}

/// Builds a pair with keepalived, listeners that do not cut, and servers whose downloads wait in the middle.
fn begin(test: &str, lines: &'static str) -> Option<(Pair, Arc<AtomicBool>, [Server; 2])> {
    begin_moved_by(test, lines, FAST)
}

/// Likewise, with addresses that keepalived moves, or the test.
fn begin_moved_by(
    test: &str,
    lines: &'static str,
    mover: &'static str,
) -> Option<(Pair, Arc<AtomicBool>, [Server; 2])> {
    let settings = Settings {
        listeners: LISTENERS,
        lines,
        ..Settings::moved_by(mover)
    };
    let may_go_on = Arc::<AtomicBool>::default();
    let mut servers_of_host = None;
    let prepare = |pair: &mut Pair| {
        let dir = pair.dir().join("edge");
        std::fs::create_dir_all(&dir).unwrap();
        let cert = router::certificate(&dir, "edge", &["a.test"]).unwrap();
        pair.settings.certificates = format!("certificates: [{{ cert: {} }}]\n", cert.display());
        servers_of_host = Some(servers(&pair.host, &may_go_on));
    };
    let pair = if mover == BY_TEST {
        Pair::begin_prepared(test, settings, prepare)
    } else {
        Pair::begin_keepalived_prepared(test, settings, prepare)
    }?;
    Some((pair, may_go_on, servers_of_host.unwrap()))
}

/// Local routes of a node for addresses that it has given up.
fn routes(pair: &Pair, node: usize) -> String {
    let routes = |family| pair.nodes[node].must(&["ip", family, "route", "show", "table", "local", "proto", "91"]);
    routes("-4") + &routes("-6")
}

fn wait_without_routes(pair: &Pair, node: usize) {
    let is = eventually(2 * SOON, || routes(pair, node).is_empty());
    assert!(is, "{}\n{}", routes(pair, node), pair.logs());
}

/// Packets that a node has sent to a former owner.
fn chained(pair: &Pair, node: usize) -> f64 {
    pair.balancer(node)
        .metric("signalbox_bpf_exits_total{program=\"cut_in\",reason=\"chained\"}")
}

/// Connections that a node's listeners have taken.
fn taken(pair: &Pair, node: usize) -> f64 {
    let names = ["spliced4", "copied4", "spliced6", "copied6", "edge"];
    let one = |name| {
        let metric = format!("signalbox_listener_connections_total{{listener=\"{name}\"}}");
        pair.balancer(node).metric(&metric)
    };
    names.map(one).iter().sum()
}

/// New connections are the new node's, also where it answers their SYNs with cookies.
fn expect_new_connections(pair: &Pair, node: usize) {
    let before = taken(pair, node);
    pair.nodes[node].sysctl(&["net.ipv4.tcp_syncookies=2"]).unwrap();
    Downloads::begin(pair).finish();
    assert_eq!(taken(pair, node) - before, 6.0, "{}", pair.logs());
}

#[test]
fn no_download_is_lost_by_a_release() {
    let Some((pair, may_go_on, _servers)) = begin("no_download_is_lost_by_a_release", "timeouts: { drain: 10m }")
    else {
        return;
    };
    let downloads = Downloads::begin(&pair);
    pair.ha(0, "release");
    pair.wait_owner(1);
    let draining = || pair.balancer(0).metric("signalbox_ha_draining_connections");
    assert!(eventually(SOON, || draining() == 6.0), "{}", draining());
    may_go_on.store(true, SeqCst);
    downloads.finish();
    assert!(chained(&pair, 1) > 0.0);
    assert_eq!(chained(&pair, 0), 0.0);
    expect_new_connections(&pair, 1);
    assert!(eventually(SOON, || draining() == 0.0), "{}", draining());
    // The addresses come back before the drain is over.
    let downloads = Downloads::begin(&pair);
    pair.ha(0, "reclaim");
    pair.wait_owner(0);
    wait_without_routes(&pair, 0);
    drop(downloads);
}

/// The addresses come back while connections of both nodes are under way: those that drain at the node that takes them,
/// and those of the node that gives them up.
#[test]
fn no_download_is_lost_when_the_addresses_are_reclaimed() {
    let test = "no_download_is_lost_when_the_addresses_are_reclaimed";
    let Some((pair, may_go_on, _servers)) = begin(test, "timeouts: { drain: 10m }") else {
        return;
    };
    let mut downloads = vec![Downloads::begin(&pair)];
    for _ in 0..3 {
        pair.ha(0, "release");
        pair.wait_owner(1);
        downloads.push(Downloads::begin(&pair));
        pair.ha(0, "reclaim");
        pair.wait_sole_owner(0);
        downloads.push(Downloads::begin(&pair));
    }
    let draining = |node: usize| pair.balancer(node).metric("signalbox_ha_draining_connections");
    assert!(
        eventually(SOON, || [draining(0), draining(1)] == [0.0, 18.0]),
        "{:?}\n{}",
        [draining(0), draining(1)],
        pair.logs()
    );
    assert_eq!(routes(&pair, 0), "");
    may_go_on.store(true, SeqCst);
    downloads.into_iter().for_each(Downloads::finish);
    assert!(eventually(SOON, || draining(1) == 0.0), "{}", draining(1));
}

/// The operator's program moves addresses, and has the node that takes them ask for them first.
#[test]
fn no_download_is_lost_when_a_program_reclaims_the_addresses() {
    let test = "no_download_is_lost_when_a_program_reclaims_the_addresses";
    let Some((pair, may_go_on, _servers)) = begin_moved_by(test, "timeouts: { drain: 10m }", BY_TEST) else {
        return;
    };
    let downloads = Downloads::begin(&pair);
    let answer = pair
        .balancer(1)
        .unix("POST", "/api/v1/ha/reclaim", r#"{ "groups": ["g1"] }"#);
    assert!(
        answer.status == 200 && answer.body.contains("\"node-a\""),
        "{}",
        answer.body
    );
    assert_ne!(routes(&pair, 0), "");
    pair.give(1);
    may_go_on.store(true, SeqCst);
    downloads.finish();
    assert!(chained(&pair, 1) > 0.0);
    let mistake = pair.balancer(1).unix("POST", "/api/v1/ha/reclaim", "{}");
    assert_eq!(mistake.status, 400, "{}", mistake.body);
}

/// A preferred node comes back and takes its addresses: the other one hands them over by plan.
#[test]
fn no_download_is_lost_when_a_node_comes_back() {
    let Some((mut pair, may_go_on, _servers)) =
        begin("no_download_is_lost_when_a_node_comes_back", "timeouts: { drain: 10m }")
    else {
        return;
    };
    pair.stop(0);
    pair.wait_owner(1);
    let downloads = Downloads::begin(&pair);
    pair.start(0);
    pair.wait_sole_owner(0);
    may_go_on.store(true, SeqCst);
    downloads.finish();
    assert!(chained(&pair, 0) > 0.0);
    expect_new_connections(&pair, 0);
}

/// Only the supervisor is stopped, and comes back.
#[test]
fn no_download_is_lost_when_the_supervisor_is_told_to_stop() {
    let test = "no_download_is_lost_when_the_supervisor_is_told_to_stop";
    let Some((mut pair, may_go_on, _servers)) = begin(test, "timeouts: { drain: 10m }") else {
        return;
    };
    let mut downloads = vec![Downloads::begin(&pair)];
    let mut supervisor = pair.supervisors[0].take().unwrap();
    supervisor.signal(Signal::SIGTERM);
    assert_eq!(supervisor.exit_code(2 * SOON), 0);
    pair.wait_owner(1);
    downloads.push(Downloads::begin(&pair));
    pair.supervise(0);
    pair.wait_sole_owner(0);
    may_go_on.store(true, SeqCst);
    downloads.into_iter().for_each(Downloads::finish);
}

/// A new process takes over in the middle of a drain: the one before serves its connections to their ends.
fn replace_in_a_drain(test: &str, program: &Path) {
    let Some((mut pair, may_go_on, _servers)) = begin(test, "timeouts: { drain: 60s, shutdown: 60s }") else {
        return;
    };
    let downloads = Downloads::begin(&pair);
    pair.ha(0, "release");
    pair.wait_owner(1);
    let mut before = pair.balancers[0].as_mut().unwrap().be_followed_by(program, "successor");
    pair.wait_synced();
    assert_ne!(routes(&pair, 0), "");
    may_go_on.store(true, SeqCst);
    downloads.finish();
    assert_eq!(before.exit_code(2 * SOON), 0);
    let draining = || pair.balancer(0).metric("signalbox_ha_draining_connections");
    assert!(eventually(SOON, || draining() == 0.0), "{}", draining());
    pair.ha(0, "reclaim");
    pair.wait_owner(0);
    wait_without_routes(&pair, 0);
    expect_new_connections(&pair, 0);
}

#[test]
fn no_download_is_lost_when_signalbox_is_told_to_stop() {
    let test = "no_download_is_lost_when_signalbox_is_told_to_stop";
    let Some((mut pair, may_go_on, _servers)) = begin(test, "timeouts: { shutdown: 60s }") else {
        return;
    };
    let downloads = Downloads::begin(&pair);
    let mut stopping = pair.balancers[0].take().unwrap();
    stopping.proc.signal(Signal::SIGTERM);
    pair.wait_owner(1);
    may_go_on.store(true, SeqCst);
    downloads.finish();
    assert_eq!(stopping.proc.exit_code(2 * SOON), 0);
    assert_eq!(routes(&pair, 0), "");
    expect_new_connections(&pair, 1);
}

mod share_10 {
    use super::*;

    /// A node that is killed in a drain leaves its routes. They mislead no client, and its next process removes them.
    #[test]
    fn a_node_that_dies_in_a_drain_misleads_nobody() {
        let test = "a_node_that_dies_in_a_drain_misleads_nobody";
        let Some((mut pair, may_go_on, _servers)) = begin(test, "timeouts: { drain: 10s }") else {
            return;
        };
        may_go_on.store(true, SeqCst);
        pair.ha(0, "release");
        pair.wait_owner(1);
        pair.stop(0);
        assert_ne!(routes(&pair, 0), "");
        for address in ["10.1.0.10", "fd00:1::10"] {
            pair.client.must(&["ip", "neigh", "flush", "to", address]);
        }
        expect_new_connections(&pair, 1);
        pair.start(0);
        wait_without_routes(&pair, 0);
        expect_new_connections(&pair, 1);
    }

    #[test]
    fn no_download_is_lost_when_a_process_is_replaced_in_a_drain() {
        let test = "no_download_is_lost_when_a_process_is_replaced_in_a_drain";
        replace_in_a_drain(test, binary().as_ref());
    }

    #[test]
    fn no_download_is_lost_if_another_version_takes_over_in_a_drain() {
        let test = "no_download_is_lost_if_another_version_takes_over_in_a_drain";
        if let Some(next) = other_version(test) {
            replace_in_a_drain(test, &next);
        }
    }

    #[test]
    fn connections_left_at_the_end_of_a_drain_are_reset() {
        let test = "connections_left_at_the_end_of_a_drain_are_reset";
        let Some((pair, _, _servers)) = begin(test, "timeouts: { drain: 3s }") else {
            return;
        };
        let downloads = Downloads::begin(&pair);
        pair.ha(0, "release");
        pair.wait_owner(1);
        for (at, download) in downloads.0 {
            let outcome = download.join().unwrap();
            assert!(
                matches!(&outcome, Err(error) if error.kind() == ErrorKind::ConnectionReset),
                "{at}: {outcome:?}\n{}",
                pair.logs()
            );
        }
        wait_without_routes(&pair, 0);
    }
}

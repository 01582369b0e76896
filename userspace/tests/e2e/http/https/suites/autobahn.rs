//! The cases of Autobahn's fuzzing client for WebSockets, driven by kosoku (Autobahn's own program is one of Python 2):
//! a host of the crate tungstenite gives the same results through the balancer as without it, whether the process or
//! the kernel carries its bytes.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio_rustls::TlsConnector;

use super::program;
use crate::http::https::scene::{HTTPS, body, certificate, certificates, trusting};
use crate::http::https::websocket::{HOST, UPGRADE, late_cuts, serve, tokio_stream};
use crate::http::request::scene::{HTTP, field, websocket_accept};
use crate::lab::{Lab, Ns, SOON, Server, Signalbox, cut, eventually, privileged, servers};

const PROGRAM: &str = "SIGNALBOX_AUTOBAHN";

/// Verdicts of Autobahn on a case that its peer has passed, or that has no right answer.
const GOOD: [&str; 4] = ["OK", "NON-STRICT", "INFORMATIONAL", "UNIMPLEMENTED"];

/// Most times that a case is run.
const MAX_ROUNDS: usize = 6;

/// Requests of this name are counted for as long as they are open, and so stay in the process.
const COUNTED: &str = "{ host: b.test, clusters: { east-1: 1 }, limits: { concurrent: 1000 } }";
const ROUTE: &str = "{ host: a.test, clusters: { east-1: 1 }, tls: { termination: edge, insecure: allow } }";

/// Way of the suite's bytes to the host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The process carries them.
    Plain,
    /// The kernel carries them from the host's 101 on.
    Cut,
    /// TLS ends at the balancer.
    Edge,
}

mod share_5 {
    use super::*;

    #[test]
    fn autobahn_finds_a_host_as_good_as_without_the_balancer() {
        const TEST: &str = "autobahn_finds_a_host_as_good_as_without_the_balancer";
        if !privileged(TEST) {
            return;
        }
        let Some(program) = program(TEST, PROGRAM) else { return };
        let lab = cut::lab();
        let ns = lab.host("east-1");
        let _health = servers::healthy(ns);
        let _server = Server::start(ns, "[::]:80", |stream| serve(&stream));
        let pem = certificate(&lab, "lb", &["a.test"]);
        let text = body("", &certificates(&pem), &[("east-1", "")], &[ROUTE, COUNTED]);
        let sb = Signalbox::start(&lab, &text);
        sb.wait_healthy(&["east-1"]);
        let dir = lab.dir();
        let direct = master("direct", |cases| verdicts(&lab.lb, &program, HOST, dir, cases));
        assert!(direct > 250, "{direct} cases");
        for (name, way) in [("plain", Way::Plain), ("cut", Way::Cut), ("edge", Way::Edge)] {
            if way == Way::Cut && cut::lenient() {
                continue;
            }
            let count = master(name, |cases| {
                let count = if cases.is_empty() { direct } else { cases.len() };
                let ready = if way == Way::Cut {
                    cut_ahead(&lab, &sb, count)
                } else {
                    Vec::new()
                };
                through(&lab, way, ready, |at| verdicts(&lab.client, &program, at, dir, cases))
            });
            assert_eq!(count, direct, "{name}");
        }
    }
}

/// Has the host pass all cases; returns how many there are. Failed ones are run again: the suite's patience is half a
/// second, which a busy machine may use up itself.
fn master(name: &str, mut run: impl FnMut(&[String]) -> BTreeMap<String, String>) -> usize {
    let (mut cases, mut count) = (Vec::new(), 0);
    for round in 0..MAX_ROUNDS {
        let said = run(&cases);
        if round == 0 {
            count = said.len();
        }
        let bad: Vec<_> = said
            .iter()
            .filter(|(_, verdict)| !GOOD.contains(&verdict.as_str()))
            .collect();
        if bad.is_empty() {
            return count;
        }
        println!("{name}, round {round}: {bad:?}");
        cases = bad.into_iter().map(|(case, _)| case.clone()).collect();
    }
    panic!("{name}: these fail again and again: {cases:?}");
}

/// Runs cases of the suite; none named: all but those of compression, which the host does not speak. Returns its verdicts.
fn verdicts(ns: &Ns, program: &Path, at: &str, dir: &Path, cases: &[String]) -> BTreeMap<String, String> {
    let reports = dir.join("autobahn");
    let _ = std::fs::remove_dir_all(&reports);
    let mut command = ns.command(program);
    command.arg("-o").arg(&reports);
    if cases.is_empty() {
        command.args(["-x", "12.*", "-x", "13.*"]);
    }
    for case in cases {
        command.args(["-i", case]);
    }
    command.arg(at);
    let said = command.output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
    let index = std::fs::read(reports.join("index.json")).unwrap_or_else(|error| panic!("{error}: {text}"));
    let index: Value = serde_json::from_slice(&index).unwrap();
    let agents = index.as_object().unwrap().values();
    let cases = agents.flat_map(|cases| cases.as_object().unwrap());
    let verdict = |case: &Value| match (case["behavior"].as_str(), case["behaviorClose"].as_str()) {
        (Some(kept), Some(closed)) if GOOD.contains(&kept) && !GOOD.contains(&closed) => {
            format!("{kept}, close {closed}")
        }
        (kept, _) => kept.unwrap_or("none").to_owned(),
    };
    cases.map(|(case, what)| (case.clone(), verdict(what))).collect()
}

/// Opens `count` WebSockets, and waits until the kernel carries them: the suite's own patience is half a second, in
/// which an acknowledgement that its client delays would keep one from being cut.
fn cut_ahead(lab: &Lab, sb: &Signalbox, count: usize) -> Vec<TcpStream> {
    let open = |_| {
        let mut stream = lab.client.connect(HTTP);
        stream.write_all(UPGRADE.as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        stream
    };
    let before = late_cuts(sb);
    let all: Vec<_> = (0..count).map(open).collect();
    let are_cut = || late_cuts(sb) - before >= count as f64;
    assert!(
        eventually(SOON, are_cut),
        "{} of {count} are cut",
        late_cuts(sb) - before
    );
    all
}

/// Has connections to an address of the client's machine go this way to the host while `work` lasts.
fn through<T>(lab: &Lab, way: Way, ready: Vec<TcpStream>, work: impl FnOnce(&str) -> T) -> T {
    let listener = lab.client.run(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let at = listener.local_addr().unwrap().to_string();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let is_done = &is_done;
        scope.spawn(move || {
            let mut ready = ready.into_iter();
            for client in listener.incoming() {
                if is_done.load(Ordering::SeqCst) {
                    break;
                }
                let client = client.unwrap();
                let cut = (way == Way::Cut).then(|| ready.next().expect("as many as there are cases"));
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                    // A case may end by a reset.
                    let _ = runtime.unwrap().block_on(relay(lab, way, client, cut));
                });
            }
        });
        let stop = StopOnDrop(is_done, lab, &at);
        let done = work(&at);
        drop(stop);
        done
    })
}

/// Ends the loop that accepts, though `work` has panicked.
struct StopOnDrop<'a>(&'a AtomicBool, &'a Lab, &'a str);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
        drop(self.1.client.connect(self.2));
    }
}

async fn relay(lab: &Lab, way: Way, client: TcpStream, cut: Option<TcpStream>) -> std::io::Result<()> {
    let mut client = tokio_stream(client);
    if let Some(cut) = cut {
        // The balancer and the host have agreed already: the suite gets the answer to its own key.
        let head = read_head(&mut client).await?;
        let key = field(&head, "sec-websocket-key").unwrap_or_default();
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket";
        let answer = format!("{answer}\r\nSec-WebSocket-Accept: {}\r\n\r\n", websocket_accept(key));
        client.write_all(answer.as_bytes()).await?;
        return copy_bidirectional(&mut client, &mut tokio_stream(cut)).await.map(drop);
    }
    let to = if way == Way::Edge { HTTPS } else { HTTP };
    let stream = tokio_stream(lab.client.connect(to));
    if way == Way::Edge {
        let connector = TlsConnector::from(Arc::new(trusting(lab)));
        let name = ServerName::try_from("a.test").unwrap();
        return carry(&mut client, connector.connect(name, stream).await?, "a.test").await;
    }
    carry(&mut client, stream, "b.test").await
}

/// Passes on a request under a name of the balancer's, and the bytes after it.
async fn carry(
    client: &mut tokio::net::TcpStream,
    mut far: impl AsyncRead + AsyncWrite + Unpin,
    name: &str,
) -> std::io::Result<()> {
    let head = read_head(client).await?;
    let own = |line: &str| line.to_ascii_lowercase().starts_with("host:");
    let lines = head.split_inclusive("\r\n");
    let head: String = lines
        .map(|line| {
            if own(line) {
                format!("Host: {name}\r\n")
            } else {
                line.to_owned()
            }
        })
        .collect();
    far.write_all(head.as_bytes()).await?;
    far.flush().await?;
    copy_bidirectional(client, &mut far).await.map(drop)
}

async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

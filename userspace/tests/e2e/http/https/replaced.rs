//! Kept connections while their process is replaced or killed, plain, in TLS and in HTTP/2: a successor costs no
//! request. A kill costs the request that is in flight on a connection of the killed process; no request fails on a
//! connection that was opened afterwards.

use std::io::{Error, ErrorKind, Result};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use h2::client::SendRequest;
use hyper::body::Bytes;
use rustls::ClientConfig;
use tokio::time::timeout;

use super::scene::{HTTPS, TlsClient, body, certificate, certificates, shake_hands, trusting};
use crate::http::request::scene::{Client, HTTP, WebHost, field, noise_digest};
use crate::lab::{Lab, SOON, Signalbox, eventually, lab_test};

const ROUTE: &str = "{ host: a.test, clusters: { east-1: 1 }, tls: { termination: edge, insecure: allow } }";

/// Clients of each kind.
const CLIENTS: usize = 3;

/// Time after which a request that is not answered is lost.
const LOST_TIMEOUT: Duration = Duration::from_secs(30);

/// Load of all clients, and their observations.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    /// Whether the process has been killed.
    is_killed: AtomicBool,
    /// Paths of requests that GOAWAY has met on their way, which their clients have sent again elsewhere.
    crossed: Mutex<Vec<String>>,
    /// Requests of each client that were answered.
    served: Vec<AtomicUsize>,
}

/// A client that keeps its connection.
trait Visitor {
    /// Sends a request, on a new connection where none is kept. `Ok(false)`: nothing listens.
    fn ask(&mut self) -> Result<bool>;

    fn is_connected(&self) -> bool;
}

/// A failed request.
#[derive(Debug)]
struct Failure {
    #[expect(dead_code, reason = "shown by a test that fails")]
    error: String,
    /// Whether its connection was opened after the kill.
    is_behind_kill: bool,
}

/// Connects, if a process listens.
fn try_connect(lab: &Lab, at: &str) -> Result<Option<TcpStream>> {
    match lab.client.try_connect(at) {
        Ok(stream) => {
            stream.set_read_timeout(Some(LOST_TIMEOUT))?;
            Ok(Some(stream))
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sends a request on a kept connection; forgets a connection that must be closed.
fn ask_on<S: std::io::Read + std::io::Write>(kept: &mut Option<Client<S>>) -> Result<bool> {
    let mut client = kept.take().unwrap();
    let answer = client.try_get("a.test", "/")?;
    if answer.status != 200 {
        return Err(Error::other(format!("status {}", answer.status)));
    }
    *kept = (field(&answer.head, "connection") != Some("close")).then_some(client);
    Ok(true)
}

struct Plain<'a>(&'a Lab, Option<Client>);

impl Visitor for Plain<'_> {
    fn ask(&mut self) -> Result<bool> {
        if self.1.is_none() {
            self.1 = try_connect(self.0, HTTP)?.map(Client::on);
        }
        if self.1.is_none() {
            Ok(false)
        } else {
            ask_on(&mut self.1)
        }
    }

    fn is_connected(&self) -> bool {
        self.1.is_some()
    }
}

struct Tls<'a>(&'a Lab, Arc<ClientConfig>, Option<TlsClient>);

impl Visitor for Tls<'_> {
    fn ask(&mut self) -> Result<bool> {
        if self.2.is_none() {
            let Some(stream) = try_connect(self.0, HTTPS)? else {
                return Ok(false);
            };
            self.2 = Some(shake_hands(stream, "a.test", Arc::clone(&self.1))?);
        }
        ask_on(&mut self.2)
    }

    fn is_connected(&self) -> bool {
        self.2.is_some()
    }
}

/// A client of HTTP/2, which leaves a connection when GOAWAY announces its end.
struct Http2<'a> {
    lab: &'a Lab,
    load: &'a Load,
    runtime: tokio::runtime::Runtime,
    kept: Option<SendRequest<Bytes>>,
    /// Name of the client, and number of its requests.
    requests: (usize, usize),
}

impl<'a> Http2<'a> {
    fn new(lab: &'a Lab, load: &'a Load, client: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Self {
            lab,
            load,
            runtime: runtime.unwrap(),
            kept: None,
            requests: (client, 0),
        }
    }
}

impl Visitor for Http2<'_> {
    fn ask(&mut self) -> Result<bool> {
        if self.kept.is_none() {
            let Some(stream) = try_connect(self.lab, HTTP)? else {
                return Ok(false);
            };
            stream.set_nonblocking(true)?;
            self.kept = Some(self.runtime.block_on(async {
                let stream = tokio::net::TcpStream::from_std(stream)?;
                let (sender, connection) = h2::client::handshake(stream).await.map_err(Error::other)?;
                tokio::spawn(connection);
                Ok::<_, Error>(sender)
            })?);
        }
        let sender = self.kept.take().unwrap();
        self.requests.1 += 1;
        let path = format!("/{}-{}", self.requests.0, self.requests.1);
        let asked = self
            .runtime
            .block_on(async { timeout(LOST_TIMEOUT, ask_stream(sender, &path)).await });
        match asked?? {
            Asked::Answered(sender) => {
                self.kept = Some(sender);
                return Ok(true);
            }
            Asked::Closing => {}
            Asked::Crossed => self.load.crossed.lock().unwrap().push(path),
        }
        Ok(false)
    }

    fn is_connected(&self) -> bool {
        self.kept.is_some()
    }
}

/// Outcome of a request in HTTP/2.
enum Asked {
    Answered(SendRequest<Bytes>),
    /// The connection takes no more requests.
    Closing,
    /// GOAWAY says that the request was not processed.
    Crossed,
}

async fn ask_stream(sender: SendRequest<Bytes>, path: &str) -> Result<Asked> {
    let is_good_bye = |error: &h2::Error| error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
    let mut sender = match sender.ready().await {
        Ok(sender) => sender,
        Err(error) if is_good_bye(&error) => return Ok(Asked::Closing),
        Err(error) => return Err(Error::other(error)),
    };
    let request = http::Request::builder().uri(format!("http://a.test{path}")).body(());
    let (answer, _) = match sender.send_request(request.unwrap(), true) {
        Ok(sent) => sent,
        Err(error) if is_good_bye(&error) => return Ok(Asked::Closing),
        Err(error) => return Err(Error::other(error)),
    };
    let answer = match answer.await {
        Ok(answer) => answer,
        Err(error) if is_good_bye(&error) => return Ok(Asked::Crossed),
        Err(error) => return Err(Error::other(error)),
    };
    if answer.status() != 200 {
        return Err(Error::other(format!("status {}", answer.status())));
    }
    let mut body = answer.into_body();
    while let Some(data) = body.data().await {
        let data = data.map_err(Error::other)?;
        let _ = body.flow_control().release_capacity(data.len());
    }
    Ok(Asked::Answered(sender))
}

/// Sends one request after the other until stopped; returns the failed ones.
fn visit(load: &Load, number: usize, visitor: &mut dyn Visitor) -> Vec<Failure> {
    let mut failures = Vec::new();
    let mut is_behind_kill = false;
    while !load.stop.load(Ordering::SeqCst) {
        if !visitor.is_connected() {
            is_behind_kill = load.is_killed.load(Ordering::SeqCst);
        }
        match visitor.ask() {
            Ok(true) => {
                load.served[number].fetch_add(1, Ordering::SeqCst);
            }
            Ok(false) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => failures.push(Failure {
                error: format!("client {number}: {error}"),
                is_behind_kill,
            }),
        }
    }
    failures
}

/// Runs clients of each kind during a change; returns the requests that failed. A request that GOAWAY has met, and that
/// is therefore sent again, must not have reached the host.
fn under_load(lab: &Lab, east: &WebHost, change: impl FnOnce(&Load)) -> Vec<Failure> {
    let load = Load {
        served: (0..3 * CLIENTS).map(|_| AtomicUsize::new(0)).collect(),
        ..Load::default()
    };
    let settings = Arc::new(trusting(lab));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3 * CLIENTS)
            .map(|number| {
                let (load, settings) = (&load, Arc::clone(&settings));
                scope.spawn(move || match number % 3 {
                    0 => visit(load, number, &mut Plain(lab, None)),
                    1 => visit(load, number, &mut Tls(lab, settings, None)),
                    _ => visit(load, number, &mut Http2::new(lab, load, number)),
                })
            })
            .collect();
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| change(&load)));
        load.stop.store(true, Ordering::SeqCst);
        let failures = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        changed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let asked = east.take();
        for path in &*load.crossed.lock().unwrap() {
            let is_it = |head: &String| head.starts_with(&format!("GET {path} "));
            assert!(!asked.iter().any(is_it), "{path} was processed, and is said not to be");
        }
        failures
    })
}

impl Load {
    /// Waits until each client has been served `requests` more times.
    fn more(&self, requests: usize) {
        let before: Vec<_> = self.served.iter().map(|count| count.load(Ordering::SeqCst)).collect();
        let has_more = || {
            let mut both = self.served.iter().zip(&before);
            both.all(|(count, before)| count.load(Ordering::SeqCst) >= before + requests)
        };
        assert!(eventually(SOON, has_more), "a client is not served");
    }
}

fn start(lab: &Lab) -> (WebHost, Signalbox) {
    let east = WebHost::start(lab, "east-1");
    let pem = certificate(lab, "lb", &["a.test"]);
    let sb = Signalbox::start(lab, &body("", &certificates(&pem), &[("east-1", "")], &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    (east, sb)
}

fn is_answering(sb: &Signalbox) -> bool {
    let status = sb.try_get("/api/v1/status").ok().map(|answer| answer.body);
    let status = status.and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
    status.is_some_and(|status| status["pid"] == sb.proc.pid())
}

#[lab_test]
fn a_successor_costs_no_request_of_a_kept_connection() {
    let lab = Lab::new();
    let (east, mut sb) = start(&lab);
    let config = lab.dir().join("signalbox.yaml");
    // An answer is on its way all the time.
    const LENGTH: u64 = 8 << 20;
    let mut slow = Client::connect(&lab);
    slow.send(&format!("GET /bytes/{LENGTH} HTTP/1.1\r\nHost: a.test\r\n\r\n"));
    let mut replaced = Vec::new();
    let failures = under_load(&lab, &east, |load| {
        for round in 0..2 {
            load.more(50);
            let name = format!("successor-{round}");
            let next = Signalbox::spawn_file(&lab, &name, &config, &["--takeover"]);
            assert!(
                eventually(SOON, || is_answering(&next)),
                "the successor answers: {}",
                next.proc.log()
            );
            // After the grace period of the predecessor all clients have moved over.
            load.more(50);
            let kept = || next.metric("signalbox_listener_connections_active");
            assert!(eventually(SOON, || kept() >= 3.0 * CLIENTS as f64), "{}", kept());
            load.more(50);
            replaced.push(std::mem::replace(&mut sb, next));
        }
    });
    assert!(failures.is_empty(), "{} failed: {failures:?}", failures.len());
    let answer = slow.answer("GET");
    assert_eq!(answer.body.hex(), noise_digest(LENGTH));
    drop(slow);
    for mut old in replaced {
        assert_eq!(old.proc.exit_code(SOON), 0, "a predecessor ends with its last request");
    }
}

#[lab_test]
fn a_kill_costs_requests_in_flight_but_none_on_new_connections() {
    let lab = Lab::new();
    let (east, mut sb) = start(&lab);
    let config = lab.dir().join("signalbox.yaml");
    for round in 0..2 {
        let failures = under_load(&lab, &east, |load| {
            load.more(50);
            sb.kill9();
            load.is_killed.store(true, Ordering::SeqCst);
            sb = Signalbox::start_file(&lab, &format!("restarted-{round}"), &config, &[]);
            // Clients that try again are served as soon as the process listens.
            load.more(50);
        });
        let behind: Vec<_> = failures.iter().filter(|failure| failure.is_behind_kill).collect();
        assert!(behind.is_empty(), "{behind:?}");
        // One request is in flight on a connection; and while a process dies it may still take another connection.
        assert!(failures.len() <= 2 * 3 * CLIENTS, "{failures:?}");
    }
}

//! HTTP/2 from clients, stream by stream: trailers, answers that are cut off, flow control, resets, drain.

use std::future::poll_fn;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use hyper::body::Bytes;
use tokio::time::timeout;

use crate::http::request::scene::{HTTP, ROUTE, WebHost, config_of, one_host};
use crate::lab::{Lab, Server, Signalbox, lab_test, servers};

type Sender = SendRequest<Bytes>;

/// Runs a client on a separate connection.
fn visit<T>(lab: &Lab, act: impl AsyncFnOnce(Sender) -> T) -> T {
    let stream = lab.client.connect(HTTP);
    run(async { act(greet(stream).await).await })
}

fn run<T>(act: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { timeout(Duration::from_secs(60), act).await.expect("no end in time") })
}

async fn greet(stream: TcpStream) -> Sender {
    stream.set_nonblocking(true).unwrap();
    let stream = tokio::net::TcpStream::from_std(stream).unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    sender
}

/// Sends the head of a request.
async fn send(sender: &Sender, method: &str, path: &str, is_ended: bool) -> (ResponseFuture, SendStream<Bytes>) {
    let request = Request::builder()
        .method(method)
        .uri(format!("http://a.test{path}"))
        .header("te", "trailers");
    let mut ready = sender.clone().ready().await.unwrap();
    ready.send_request(request.body(()).unwrap(), is_ended).unwrap()
}

/// Reads a body and its trailers.
async fn read(answer: Response<RecvStream>) -> Result<(Vec<u8>, Option<HeaderMap>), h2::Error> {
    let (mut body, mut bytes) = (answer.into_body(), Vec::new());
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok((bytes, body.trailers().await?))
}

fn resident(sb: &Signalbox) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", sb.proc.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[lab_test]
fn trailers_pass_both_ways() {
    let lab = Lab::new();
    let (_east, _sb) = one_host(&lab);
    visit(&lab, async |sender| {
        let (answer, _) = send(&sender, "GET", "/chunked/100000", true).await;
        let (bytes, trailers) = read(answer.await.unwrap()).await.unwrap();
        assert_eq!(bytes.len(), 100_000);
        assert_eq!(trailers.unwrap()["x-sum"], "1");
        let (answer, mut body) = send(&sender, "POST", "/digest", false).await;
        body.send_data(Bytes::from_static(b"hello"), false).unwrap();
        let mut sums = HeaderMap::new();
        sums.insert("x-sum", "2".parse().unwrap());
        body.send_trailers(sums).unwrap();
        let (bytes, _) = read(answer.await.unwrap()).await.unwrap();
        assert!(bytes.starts_with(b"5 "), "{bytes:?}");
    });
}

#[lab_test]
fn streams_share_connections_to_a_host_and_end_well() {
    let lab = Lab::new();
    let (east, sb) = one_host(&lab);
    visit(&lab, async |sender| {
        for (method, path) in [
            ("GET", "/"),
            ("HEAD", "/"),
            ("GET", "/status/204"),
            ("GET", "/bytes/0"),
            ("GET", "/bytes/200000"),
            ("GET", "/chunked/200000"),
            ("POST", "/digest"),
        ] {
            let (answer, _) = send(&sender, method, path, true).await;
            read(answer.await.unwrap()).await.unwrap();
            // The host's connection is kept after the answer's end.
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(sb.host("east-1")["total_connections"], 1, "{method} {path}");
        }
    });
    assert_eq!(east.take().len(), 7);
    let failed = sb.metric("signalbox_request_refused_total{listener=\"http\",reason=\"client_gone\"}");
    assert!(failed < 0.5, "{failed}");
}

#[lab_test]
fn an_answer_that_is_cut_off_has_no_clean_end() {
    let lab = Lab::new();
    let ns = lab.host("east-1");
    let _health = servers::healthy(ns);
    let _server = Server::start(ns, "[::]:80", |stream| {
        let mut stream = &*stream;
        let mut head = [0; 4096];
        let n = stream.read(&mut head).unwrap_or_default();
        let framing: &[u8] = if head[..n].starts_with(b"GET /chunked") {
            b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
        } else {
            b"Content-Length: 10\r\n\r\nhello"
        };
        let _ = stream.write_all(&[b"HTTP/1.1 200 OK\r\n", framing].concat());
    });
    let sb = Signalbox::start(&lab, &config_of("", &["east-1"], &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    visit(&lab, async |sender| {
        for path in ["/chunked", "/known"] {
            let (answer, _) = send(&sender, "GET", path, true).await;
            let error = read(answer.await.unwrap()).await.unwrap_err();
            assert!(error.is_reset(), "{path}: {error}");
        }
    });
}

#[lab_test]
fn a_body_that_is_reset_does_not_look_whole_to_the_host() {
    let lab = Lab::new();
    let ns = lab.host("east-1");
    let _health = servers::healthy(ns);
    let (seen, bodies) = std::sync::mpsc::channel();
    let seen = std::sync::Mutex::new(seen);
    let _server = Server::start(ns, "[::]:80", move |stream| {
        let mut stream = &*stream;
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        let _ = seen.lock().unwrap().send(all);
    });
    let sb = Signalbox::start(&lab, &config_of("", &["east-1"], &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    visit(&lab, async |sender| {
        for reason in [Reason::NO_ERROR, Reason::CANCEL] {
            let (answer, mut body) = send(&sender, "POST", "/", false).await;
            body.send_data(Bytes::from_static(b"hello"), false).unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
            body.send_reset(reason);
            assert!(answer.await.is_err());
            let all = loop {
                match bodies.try_recv() {
                    Ok(all) => break all,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            };
            let all = String::from_utf8_lossy(&all).into_owned();
            assert!(
                all.contains("5\r\nhello") && !all.contains("0\r\n\r\n"),
                "{reason:?} {all}"
            );
        }
    });
}

#[lab_test]
fn an_early_answer_lets_the_client_send_the_rest_of_its_body() {
    let lab = Lab::new();
    let (_east, _sb) = one_host(&lab);
    visit(&lab, async |sender| {
        // The host answers before it has read; then the balancer, which has no such route.
        for (host, status, length) in [("a.test", 413, 600_000), ("a.test", 413, 1), ("b.test", 404, 600_000)] {
            let request = Request::post(format!("http://{host}/early")).body(()).unwrap();
            let mut ready = sender.clone().ready().await.unwrap();
            let (answer, mut body) = ready.send_request(request, false).unwrap();
            let answer = answer.await.unwrap();
            assert_eq!(answer.status(), status);
            let (text, _) = read(answer).await.unwrap();
            assert!(!text.is_empty());
            // curl before 8 fails where a reset comes before it has sent its body.
            tokio::time::sleep(Duration::from_millis(300)).await;
            // The stream's window is less than the longer bodies.
            let mut left = length;
            while left > 0 {
                body.reserve_capacity(left);
                let room = poll_fn(|cx| body.poll_capacity(cx)).await.expect("the stream is reset");
                let sent = left.min(room.unwrap());
                left -= sent;
                body.send_data(Bytes::from(vec![b'x'; sent]), left == 0).unwrap();
            }
        }
    });
}

#[lab_test]
fn readers_and_senders_that_stall_cost_little_memory() {
    let lab = Lab::new();
    let (_east, sb) = one_host(&lab);
    let before = resident(&sb);
    visit(&lab, async |sender| {
        let mut answers = Vec::new();
        for _ in 0..30 {
            let (answer, _) = send(&sender, "GET", "/bytes/268435456", true).await;
            answers.push(answer.await.unwrap());
        }
        for _ in 0..30 {
            answers.push({
                // The host answers before it has read, and the rest of the body is never taken.
                let (answer, mut body) = send(&sender, "POST", "/early", false).await;
                body.send_data(Bytes::from(vec![0; 1 << 20]), false).unwrap();
                answer.await.unwrap()
            });
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let grown = resident(&sb).saturating_sub(before);
        assert!(grown < 24 * 1024, "{grown} KiB");
    });
}

#[lab_test]
fn a_listener_that_goes_ends_its_connections_and_no_stream() {
    let lab = Lab::new();
    let (_east, sb) = one_host(&lab);
    let without = config_of("", &["east-1"], &[ROUTE]).replace("10.1.0.1:80", "10.1.0.1:81");
    visit(&lab, async |sender| {
        let (answer, mut body) = send(&sender, "POST", "/digest", false).await;
        body.send_data(Bytes::from_static(b"hello"), false).unwrap();
        sb.reload(&without);
        let refuses = async {
            // Each of these is answered until the GOAWAY comes.
            while let Ok(mut ready) = sender.clone().ready().await {
                let request = Request::get("http://a.test/").body(()).unwrap();
                match ready.send_request(request, true) {
                    Ok((answer, _)) => drop(answer.await),
                    Err(_) => return,
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(Duration::from_secs(10), refuses).await.expect("no GOAWAY");
        body.send_data(Bytes::from_static(b"world"), true).unwrap();
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), 200);
        let (bytes, _) = read(answer).await.unwrap();
        assert!(bytes.starts_with(b"10 "), "{bytes:?}");
    });
}

#[lab_test]
fn an_idle_connection_ends() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let sb = Signalbox::start(&lab, &config_of("timeouts: { keep_alive: 1s }", &["east-1"], &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    visit(&lab, async |sender| {
        let (answer, _) = send(&sender, "GET", "/", true).await;
        read(answer.await.unwrap()).await.unwrap();
        let ends = async {
            while sender.clone().ready().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(Duration::from_secs(10), ends)
            .await
            .expect("the connection stays");
    });
}

#[lab_test]
fn resets_and_floods_harm_nobody_else() {
    let lab = Lab::new();
    let (_east, sb) = one_host(&lab);
    let before = resident(&sb);
    // Streams that are opened and reset at once, until the balancer ends the connection.
    let mut resets = raw(&lab);
    let mut frames = Vec::new();
    for stream in (1..20_000_u32).step_by(2) {
        frames.extend(frame(1, 5, stream, b"\x82\x86\x84\x41\x06a.test"));
        frames.extend(frame(3, 0, stream, &[0, 0, 0, 8]));
    }
    let _ = resets.write_all(&frames);
    assert!(goaway(resets).is_some(), "ENHANCE_YOUR_CALM");
    // Field blocks that do not end.
    let mut flood = raw(&lab);
    let _ = flood.write_all(&frame(1, 0, 1, b"\x82\x86\x84\x41\x06a.test"));
    for _ in 0..2000 {
        if flood.write_all(&frame(9, 0, 1, &[0x88; 1000])).is_err() {
            break;
        }
    }
    assert!(goaway(flood).is_some());
    visit(&lab, async |sender| {
        // A list of fields beyond the limit, and too many fields.
        for (count, length) in [(40, 1000), (200, 1)] {
            let mut request = Request::get("http://a.test/").body(()).unwrap();
            for n in 0..count {
                let name: http::HeaderName = format!("x-{n}").parse().unwrap();
                request.headers_mut().insert(name, "y".repeat(length).parse().unwrap());
            }
            let mut ready = sender.clone().ready().await.unwrap();
            let (answer, _) = ready.send_request(request, true).unwrap();
            assert_eq!(answer.await.unwrap().status(), 431, "{count} {length}");
        }
        let (answer, _) = send(&sender, "GET", "/", true).await;
        assert_eq!(answer.await.unwrap().status(), 200);
    });
    let grown = resident(&sb).saturating_sub(before);
    assert!(grown < 24 * 1024, "{grown} KiB");
}

fn raw(lab: &Lab) -> TcpStream {
    let mut stream = lab.client.connect(HTTP);
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&frame(4, 0, 0, &[])).unwrap();
    stream
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Error code of the GOAWAY that ends a connection; 0 where the connection was reset before it could be read.
fn goaway(mut stream: TcpStream) -> Option<u32> {
    loop {
        let mut header = [0; 9];
        if let Err(error) = stream.read_exact(&mut header) {
            return (error.kind() == std::io::ErrorKind::ConnectionReset).then_some(0);
        }
        let mut payload = vec![0; u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize];
        stream.read_exact(&mut payload).ok()?;
        if header[3] == 7 {
            return Some(u32::from_be_bytes([payload[4], payload[5], payload[6], payload[7]]));
        }
    }
}

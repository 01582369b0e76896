use std::io::{Read as _, Write as _};
use std::net::SocketAddr;

use super::*;
use crate::admin::body;
use crate::state::Shared;

/// Generous, because an event must happen before it. Tests that nothing happens use no time limit.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Long enough for a busy machine to deliver a request that is sent at once.
const SHORT_TIMEOUT: Duration = Duration::from_secs(2);

const CONFIG: &str = r#"
version: 1
listeners: [{ name: tcp, protocol: tcp, listen: ["127.0.0.1:9"], cluster: east }]
clusters: [{ name: east, hosts: [{ name: east-1, address: 127.0.0.1, tcp: 9 }] }]
"#;

struct Api {
    at: SocketAddr,
    shared: Arc<Shared>,
    _runtime: tokio::runtime::Runtime,
}

/// Starts a server with short time limits and few permits.
fn api() -> Api {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let shared = Arc::new(Shared::new(&crate::config::parse(CONFIG).unwrap().model));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let at = listener.local_addr().unwrap();
    let patience = body::BodyLimits {
        shared: Arc::clone(&shared),
        body_timeout: SHORT_TIMEOUT,
    };
    let router = Router::new()
        .route(
            "/",
            axum::routing::get(async || "here\n").post(async |body: String| body),
        )
        .route("/stream", axum::routing::get(stream))
        .layer(axum::middleware::from_fn_with_state(patience, body::read_whole));
    let counts = Arc::clone(&shared);
    let limiter = ConnectionLimiter::new(8, move |comes| {
        let gauge = &counts.admin.tcp;
        if comes { gauge.enter() } else { gauge.leave() }
    });
    let mut server = Server::new(router, limiter, &shared);
    server.head_timeout = SHORT_TIMEOUT;
    let _in = runtime.enter();
    let listener = TcpListener::from_std(listener).unwrap();
    runtime.spawn(server.tcp(listener, None));
    Api {
        at,
        shared,
        _runtime: runtime,
    }
}

/// Sends 20 events in 5 s: longer than the time limits.
async fn stream() -> axum::response::Response {
    let (sender, receiver) = tokio::sync::broadcast::channel(4);
    tokio::spawn(async move {
        for n in 0..20 {
            tokio::time::sleep(Duration::from_millis(250)).await;
            let _ = sender.send(format!("{n};"));
        }
    });
    let stream = tokio_stream::wrappers::BroadcastStream::new(receiver);
    axum::response::Response::new(Body::from_stream(stream))
}

impl Api {
    fn connect(&self) -> std::net::TcpStream {
        let stream = std::net::TcpStream::connect(self.at).unwrap();
        stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
        stream
    }

    /// Sends a request. Returns everything until the server closes the connection.
    fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        rest(&mut stream)
    }

    fn refused(&self, limit: &str) -> u64 {
        let all = self.shared.admin.refused.get();
        all.iter().find(|(label, _)| *label == limit).map_or(0, |(_, n)| *n)
    }
}

fn eventually(condition: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !condition() && began.elapsed() < READ_TIMEOUT {
        std::thread::sleep(Duration::from_millis(10));
    }
    condition()
}

/// Reads until the end; a reset is an end too.
fn rest(stream: &mut std::net::TcpStream) -> String {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => panic!("{error}"),
        _ => String::from_utf8(all).unwrap(),
    }
}

#[test]
fn idle_and_half_sent_admin_connections_are_closed_and_counted() {
    let api = api();
    assert_eq!(api.ask(""), "");
    assert_eq!(api.ask("GET / HTTP/1.1\r\nHo"), "");
    // A refusal is counted once the connection is closed.
    assert!(eventually(|| api.refused("head_timeout") == 2));
    let answered = api.ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answered.ends_with("here\n"), "{answered}");
}

#[test]
fn half_a_body_is_answered_with_408_and_a_whole_one_is_taken() {
    let api = api();
    let late = api.ask("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf");
    assert!(
        late.starts_with("HTTP/1.1 408 ") && late.contains("took too long"),
        "{late}"
    );
    assert_eq!(api.refused("body_timeout"), 1);
    let long = api.ask("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n");
    assert!(long.starts_with("HTTP/1.1 413 ") && long.contains("too long"), "{long}");
    assert_eq!(
        api.refused("body_timeout"),
        1,
        "nobody waits for a body that will be refused"
    );
    let whole = api.ask("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 5\r\n\r\nwhole");
    assert!(
        whole.starts_with("HTTP/1.1 200 ") && whole.ends_with("whole"),
        "{whole}"
    );
}

#[test]
fn a_stream_has_no_time_limit_but_holds_a_permit_until_it_ends() {
    let api = api();
    let mut streams: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = api.connect();
            stream
                .write_all(b"GET /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                .unwrap();
            let mut first = [0; 12];
            stream.read_exact(&mut first).unwrap();
            stream
        })
        .collect();
    // One address can take at most half of the permits.
    assert_eq!(api.ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "");
    assert_eq!((api.refused("max_per_source"), api.shared.admin.tcp.get()), (1, 4));
    for stream in &mut streams {
        assert!(rest(stream).contains("19;"), "the stream was cut short");
    }
    drop(streams);
    assert!(eventually(|| api.shared.admin.tcp.get() == 0));
    assert!(
        api.ask("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .ends_with("here\n")
    );
    assert_eq!(api.refused("head_timeout"), 0);
}

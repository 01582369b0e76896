//! A balancer that routes requests, in front of hosts that answer requests for a WebSocket with 101 and hand the tunnel
//! to the test, or serve it.

use std::io::{Read, Result, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use crate::lab::cut::{self, CutLab};
use crate::lab::{Lab, Server, Signalbox, config, eventually, exchange, servers};
use crate::lab::{SOON, privileged};

/// Addresses of the listener, the name that leads to a host of the same family, and that host.
pub(super) const DOORS: [(&str, &str, &str); 2] = [
    ("10.1.0.1:80", "a.test", "east-1"),
    ("[fd00:1::1]:80", "b.test", "west-1"),
];

/// Treatment of a tunnel by its host.
type Tunnel = dyn Fn(Arc<TcpStream>) + Send + Sync;

pub(super) struct Scene {
    pub(super) lab: CutLab,
    pub(super) sb: Signalbox,
    tunnels: Vec<(&'static str, Receiver<Arc<TcpStream>>)>,
    body: String,
    _servers: Vec<Server>,
}

impl Scene {
    /// Begins a test whose hosts hand their tunnels over. `top` are further top-level lines, `route` further keys of
    /// both routes.
    pub(super) fn begin(test: &str, top: &str, route: &str) -> Option<Self> {
        if !privileged(test) || cut::lenient() {
            return None;
        }
        let lab = cut::lab();
        let (mut all, mut tunnels) = (Vec::new(), Vec::new());
        for (_, _, host) in DOORS {
            let (sender, receiver) = mpsc::channel();
            all.push(serve(
                &lab,
                host,
                &[],
                Arc::new(move |tunnel| drop(sender.send(tunnel))),
            ));
            tunnels.push((host, receiver));
        }
        Some(Self::start(lab, all, tunnels, body(top, route)))
    }

    /// Begins a test whose hosts send bytes in one go with their 101, and then end.
    pub(super) fn begin_sending(test: &str, bytes: &'static [u8]) -> Option<Self> {
        if !privileged(test) || cut::lenient() {
            return None;
        }
        let lab = cut::lab();
        let all = DOORS.map(|(_, _, host)| {
            let wait_for_end: Arc<Tunnel> = Arc::new(|tunnel| drop((&*tunnel).read(&mut [0])));
            serve(&lab, host, bytes, wait_for_end)
        });
        Some(Self::start(lab, all.into(), Vec::new(), body("", "")))
    }

    /// Begins a test whose hosts exchange bytes with the client in each tunnel, and check them.
    pub(super) fn begin_exchanging(test: &str) -> Option<Self> {
        if !privileged(test) || cut::lenient() {
            return None;
        }
        let lab = cut::lab();
        let exchange: Arc<Tunnel> = Arc::new(|tunnel| drop(exchange::serve(&tunnel)));
        let all = DOORS.map(|(_, _, host)| serve(&lab, host, &[], Arc::clone(&exchange)));
        Some(Self::start(lab, all.into(), Vec::new(), body("", "")))
    }

    fn start(
        lab: CutLab,
        mut all: Vec<Server>,
        tunnels: Vec<(&'static str, Receiver<Arc<TcpStream>>)>,
        body: String,
    ) -> Self {
        all.extend(DOORS.map(|(_, _, host)| servers::healthy(lab.host(host))));
        let sb = Signalbox::start(&lab, &body);
        sb.wait_healthy(&DOORS.map(|(_, _, host)| host));
        Self {
            lab,
            sb,
            tunnels,
            body,
            _servers: all,
        }
    }

    /// Starts a successor of a process that has been killed.
    pub(super) fn restart(&mut self) {
        self.sb = Signalbox::start(&self.lab, &self.body);
        self.sb.wait_healthy(&DOORS.map(|(_, _, host)| host));
    }

    /// Opens a WebSocket; returns its ends.
    pub(super) fn open(&self, (at, name, host): (&str, &str, &str)) -> (TcpStream, Arc<TcpStream>) {
        let client = self.lab.client.connect(at);
        client.set_nodelay(true).unwrap();
        upgrade(&client, name).unwrap_or_else(|e| panic!("WebSocket for {name} at {at}: {e}"));
        let (_, tunnels) = self.tunnels.iter().find(|(of, _)| *of == host).unwrap();
        let host = tunnels
            .recv_timeout(SOON)
            .unwrap_or_else(|e| panic!("no tunnel for {host}: {e}"));
        (client, host)
    }

    /// Count of WebSockets by the result of their late cut.
    pub(super) fn counted(&self, result: &str) -> f64 {
        self.sb
            .metric(&format!("signalbox_late_cut_total{{result=\"{result}\"}}"))
    }

    /// Waits until `count` WebSockets have been counted with this result.
    pub(super) fn expect_counted(&self, result: &str, count: f64) {
        let is = eventually(SOON, || self.counted(result) >= count);
        assert!(is, "{} of {count} have ended as {result}", self.counted(result));
    }
}

fn body(top: &str, route: &str) -> String {
    let [health, ejection] = cut::PATIENT;
    let keys = [health, ejection];
    let comma = if route.is_empty() { "" } else { ", " };
    format!(
        "{top}\nlisteners:\n  - {{ name: http, protocol: http, routing: request, listen: [\"{}\", \"{}\"] }}\n\
         clusters:\n{}{}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }}{comma}{route} }}\n  \
         - {{ host: b.test, clusters: {{ west: 1 }}{comma}{route} }}\n",
        DOORS[0].0,
        DOORS[1].0,
        config::cluster("east", &keys, &["east-1"]),
        config::cluster("west", &keys, &["west-1"]),
    )
}

/// A host that answers each request, and has a tunnel treated after its 101 and these bytes.
fn serve(lab: &Lab, host: &str, bytes: &'static [u8], treat: Arc<Tunnel>) -> Server {
    Server::start(lab.host(host), "[::]:80", move |stream| {
        while let Ok(head) = read_head(&stream) {
            if !head.to_ascii_lowercase().contains("\r\nupgrade: websocket\r\n") {
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                if (&*stream).write_all(answer).is_err() {
                    return;
                }
                continue;
            }
            let _ = stream.set_nodelay(true);
            let answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
            if (&*stream).write_all(&[answer, bytes].concat()).is_ok() {
                treat(stream);
            }
            return;
        }
    })
}

/// Reads a head, and no byte after it.
pub(crate) fn read_head(mut stream: &TcpStream) -> Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Asks for a WebSocket, after a request of another kind on the same connection.
pub(super) fn upgrade(mut client: &TcpStream, name: &str) -> Result<()> {
    write!(client, "GET / HTTP/1.1\r\nHost: {name}\r\n\r\n")?;
    read_head(client)?;
    client.read_exact(&mut [0; 2])?;
    write!(
        client,
        "GET /ws HTTP/1.1\r\nHost: {name}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )?;
    let head = read_head(client)?;
    if head.starts_with("HTTP/1.1 101 ") {
        Ok(())
    } else {
        Err(std::io::Error::other(head))
    }
}

//! A balancer that routes requests, in front of hosts whose connections the test controls.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use crate::http::late_cut::read_head;
use crate::http::request::scene::field;
use crate::lab::cut::{self, CutLab, Hosts};
use crate::lab::{SOON, Server, Signalbox, config, eventually, privileged, servers};

/// Addresses of the listener, the name that leads to a host of the same family, and that host.
pub(super) const DOORS: [(&str, &str, &str); 2] = [
    ("10.1.0.1:80", "a.test", "east-1"),
    ("[fd00:1::1]:80", "b.test", "west-1"),
];

/// Top-level lines that have last requests cut.
pub(super) const ON: &str = "datapath: { last_requests: on }";

pub(super) struct Scene {
    pub(super) lab: CutLab,
    pub(super) sb: Signalbox,
    hosts: Hosts,
    body: String,
    _health: Vec<Server>,
}

impl Scene {
    /// Begins a test. `top` are further top-level lines, `route` further keys of both routes.
    pub(super) fn begin(test: &str, top: &str, route: &str) -> Option<Self> {
        if !privileged(test) || cut::lenient() {
            return None;
        }
        let lab = cut::lab();
        let hosts = Hosts::start(&lab);
        let health = DOORS.map(|(_, _, host)| servers::healthy(lab.host(host)));
        let body = body(top, route);
        let sb = Signalbox::start(&lab, &body);
        sb.wait_healthy(&DOORS.map(|(_, _, host)| host));
        Some(Self {
            lab,
            sb,
            hosts,
            body,
            _health: health.into(),
        })
    }

    /// Puts further top-level lines into force.
    pub(super) fn reload(&mut self, top: &str, route: &str) {
        self.body = body(top, route);
        self.sb.reload(&self.body);
    }

    /// Starts a successor of a process that has been killed.
    pub(super) fn restart(&mut self) {
        self.sb = Signalbox::start(&self.lab, &self.body);
        self.sb.wait_healthy(&DOORS.map(|(_, _, host)| host));
    }

    /// Connects and sends these bytes at once.
    pub(super) fn send(&self, door: (&str, &str, &str), text: &str) -> TcpStream {
        let client = self.lab.client.connect(door.0);
        client.set_nodelay(true).unwrap();
        client.set_read_timeout(Some(4 * SOON)).unwrap();
        (&client).write_all(text.as_bytes()).unwrap();
        client
    }

    /// The host's end of the next connection.
    pub(super) fn accept(&self, door: (&str, &str, &str)) -> Arc<TcpStream> {
        let host = self.hosts.accept(door.2, 80);
        host.set_read_timeout(Some(4 * SOON)).unwrap();
        host
    }

    /// Sends a request; returns both ends, and everything that the host got of it.
    pub(super) fn ask(&self, door: (&str, &str, &str), text: &str) -> (TcpStream, Arc<TcpStream>, String) {
        let client = self.send(door, text);
        let host = self.accept(door);
        let got = read_request(&host);
        (client, host, got)
    }

    /// Asks as [`Self::ask`] does; returns once the kernel alone carries the flow.
    pub(super) fn ask_cut(&self, door: (&str, &str, &str), text: &str) -> (TcpStream, Arc<TcpStream>) {
        let (client, host, _) = self.ask(door, text);
        let flow = cut::expect_cut(&self.sb, &client);
        assert_eq!(flow["tier_reason"], "last request", "{flow}");
        (client, host)
    }

    /// Requests that were cut, at both hosts.
    pub(super) fn cut(&self) -> f64 {
        self.sb.metric("signalbox_requests_total{code=\"cut\"}")
    }

    /// Connections that were not cut for a reason.
    pub(super) fn not_cut(&self, why: &str) -> f64 {
        self.sb.metric(&format!("signalbox_not_cut_total{{reason=\"{why}\"}}"))
    }

    /// Waits until no flow and no count of one is left.
    pub(super) fn expect_nothing_left(&self) {
        cut::expect_none(&self.sb);
        let count = |host: &str| self.sb.host(host)["active_connections"].as_u64().unwrap();
        let is_idle = || DOORS.iter().all(|(_, _, host)| count(host) == 0);
        assert!(
            eventually(SOON, is_idle),
            "hosts have {:?} connections",
            DOORS.map(|door| count(door.2))
        );
        let is_none = || {
            self.sb
                .metric("signalbox_listener_connections_active{listener=\"http\"}")
                == 0.0
        };
        assert!(eventually(SOON, is_none), "connections of the listener are left");
    }
}

fn body(top: &str, route: &str) -> String {
    let [health, ejection] = cut::PATIENT;
    let keys = ["balance: least-connections", health, ejection];
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

/// Reads a request with its body of known length, and nothing after it.
pub(super) fn read_request(mut host: &TcpStream) -> String {
    let mut all = read_head(host).unwrap();
    let length = field(&all, "content-length").map_or(0, |n| n.parse().unwrap());
    let mut body = vec![0; length];
    host.read_exact(&mut body).unwrap();
    all.push_str(&String::from_utf8(body).unwrap());
    all
}

/// Answers with a body of this text and ends.
pub(super) fn answer_and_end(mut host: &TcpStream, text: &str) {
    let answer = format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    );
    host.write_all(answer.as_bytes()).unwrap();
    // A balancer that has the whole answer may have reset the connection.
    let _ = host.shutdown(std::net::Shutdown::Write);
}

/// Reads up to the end of the connection.
pub(super) fn read_to_end(mut client: &TcpStream) -> String {
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    text
}

/// Whether nothing has come that was not read.
pub(super) fn has_nothing(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let read = stream.read(&mut [0; 64]);
    stream.set_nonblocking(false).unwrap();
    match read {
        Ok(n) => n == 0,
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}

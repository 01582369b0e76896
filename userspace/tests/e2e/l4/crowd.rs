//! Twenty thousand flows of layer-4 services at once, while hosts are added, drained, killed and brought back.

use crate::lab;

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use lab::services::{Answerer, echo, greeter, greeting};
use lab::{Lab, SOON, Server, Signalbox, eventually, lab_test};
use serde_json::json;

const HOSTS: [(&str, &str); 3] = [("east-1", "10.2.0.2"), ("east-2", "10.2.0.3"), ("east-3", "10.2.0.4")];
const SOCKETS: usize = 160;
const PORTS: u16 = 100;
const CONNECTIONS: usize = 4000;

fn body(hosts: &[&str]) -> String {
    let chosen = HOSTS.iter().filter(|(name, _)| hosts.contains(name));
    let list: String = chosen
        .map(|(name, v4)| format!("      - {{ name: {name}, address: {v4}, ports: {{ game: 7000 }} }}\n"))
        .collect();
    format!(
        r#"services:
  - {{ name: db, protocol: tcp, listen: ["10.1.0.1:3306"], cluster: east }}
  - {{ name: game, protocol: udp, listen: ["10.1.0.1:7000-7099"], cluster: east, idle: 120s }}
timeouts: {{ drain: 300s }}
clusters:
  - name: east
    health: {{ tcp: {{ port: 3306 }}, interval: 1s, fast_interval: 300ms, timeout: 1s, rise: 1, fall: 2 }}
    hosts:
{list}"#
    )
}

/// Flows of the crowd, and the host of each.
struct Crowd {
    sockets: Vec<UdpSocket>,
    homes: HashMap<(usize, u16), String>,
    connections: Vec<(TcpStream, String)>,
}

impl Crowd {
    fn gather(lab: &Lab) -> Self {
        let sockets: Vec<UdpSocket> = lab
            .client
            .run(|| (0..SOCKETS).map(|_| UdpSocket::bind("10.1.0.2:0").unwrap()).collect());
        for socket in &sockets {
            socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        }
        let mut crowd = Self {
            sockets,
            homes: HashMap::new(),
            connections: Vec::new(),
        };
        for _ in 0..CONNECTIONS {
            let stream = lab.client.connect("10.1.0.1:3306");
            let home = greeting(&stream);
            crowd.connections.push((stream, home));
        }
        // Repeated, so that each has heard its host and spoken again, though a port may have gone to another in
        // between.
        for _ in 0..3 {
            crowd.speak();
        }
        assert_eq!(crowd.homes.len(), SOCKETS * usize::from(PORTS));
        crowd
    }

    /// Every session asks, and is answered by the host that it has.
    fn speak(&mut self) {
        let mut lost = 0;
        for at in 0..self.sockets.len() {
            let mut waiting: Vec<u16> = (0..PORTS).collect();
            // Repeated, because a queue may have dropped a question, or a host have died.
            for _ in 0..5 {
                if waiting.is_empty() {
                    break;
                }
                waiting = self.ask(at, &waiting);
                lost += waiting.len();
            }
            assert!(
                waiting.is_empty(),
                "{} sessions of a socket get no answer",
                waiting.len()
            );
        }
        assert!(lost < 200, "{lost} datagrams were lost");
    }

    /// Asks for these ports; those that were not answered.
    fn ask(&mut self, at: usize, ports: &[u16]) -> Vec<u16> {
        let socket = &self.sockets[at];
        for port in ports {
            let to = SocketAddr::from(([10, 1, 0, 1], 7000 + port));
            socket.send_to(&port.to_be_bytes(), to).unwrap();
        }
        let mut waiting = ports.to_vec();
        let mut buffer = [0; 256];
        while !waiting.is_empty() {
            let Ok((n, from)) = socket.recv_from(&mut buffer) else {
                break;
            };
            let colon = buffer.iter().position(|b| *b == b':').unwrap();
            let home = String::from_utf8(buffer[..colon].to_vec()).unwrap();
            let port = from.port() - 7000;
            assert_eq!(
                buffer[colon + 1..n],
                port.to_be_bytes(),
                "the answer to another question"
            );
            let known = self.homes.entry((at, port)).or_insert_with(|| home.clone());
            assert_eq!(*known, home, "a session has moved to another host");
            waiting.retain(|other| *other != port);
        }
        waiting
    }

    /// Every connection sends, and gets its bytes back.
    fn echo(&self, dead: &[&str]) {
        for (stream, home) in self
            .connections
            .iter()
            .filter(|(_, home)| !dead.contains(&home.as_str()))
        {
            echo(stream, home.as_bytes()).unwrap();
        }
    }
}

fn share(sb: &Signalbox, host: &str) -> f64 {
    let answer = sb.json("/api/v1/services");
    lab::signalbox::find(&answer["services"][0]["hosts"], "name", host)["share"]
        .as_f64()
        .unwrap_or(0.0)
}

#[lab_test]
fn no_flow_to_a_living_host_breaks_or_moves() {
    let lab = Lab::new();
    let mut tcp: HashMap<&str, Server> = HashMap::new();
    let mut udp: HashMap<&str, Answerer> = HashMap::new();
    for (name, _) in HOSTS {
        tcp.insert(name, greeter(lab.host(name), "0.0.0.0:3306", name));
        udp.insert(name, Answerer::start(lab.host(name), "0.0.0.0:7000", name));
    }
    let sb = Signalbox::start(&lab, &body(&["east-1", "east-2"]));
    sb.wait_healthy(&["east-1", "east-2"]);
    assert!(eventually(SOON, || share(&sb, "east-1") > 49.0 && share(&sb, "east-2") > 49.0));

    let began = Instant::now();
    let mut crowd = Crowd::gather(&lab);
    println!(
        "{} flows in {:?}",
        crowd.homes.len() + crowd.connections.len(),
        began.elapsed()
    );
    let known = || {
        (sb.metric("signalbox_service_flows{service=\"game\"}") + sb.metric("signalbox_service_flows{service=\"db\"}"))
            as usize
    };
    let all = SOCKETS * usize::from(PORTS) + CONNECTIONS;
    assert!(eventually(SOON, || known() == all), "{} of {all}", known());

    // A host is added.
    sb.reload(&body(&["east-1", "east-2", "east-3"]));
    assert!(eventually(SOON, || share(&sb, "east-3") > 33.0));
    crowd.speak();
    crowd.echo(&[]);
    // A host is drained.
    let out = json!({ "action": "out", "names": ["east-1"], "timeout": 300.0 });
    let response = sb.unix("POST", "/api/v1/rotations", &out.to_string());
    assert!(response.status == 200 || response.status == 202, "{}", response.body);
    assert!(eventually(SOON, || share(&sb, "east-1") == 0.0));
    crowd.speak();
    crowd.echo(&[]);
    // A host is killed: flows of the others continue.
    drop((tcp.remove("east-2"), udp.remove("east-2")));
    assert!(eventually(SOON, || share(&sb, "east-2") == 0.0 && share(&sb, "east-3") > 99.0));
    crowd.echo(&["east-2"]);
    // Its sessions of UDP find another, and have that from then on.
    crowd.homes.retain(|_, home| home != "east-2");
    crowd.speak();
    // The host is back.
    udp.insert("east-2", Answerer::start(lab.host("east-2"), "0.0.0.0:7000", "east-2"));
    tcp.insert("east-2", greeter(lab.host("east-2"), "0.0.0.0:3306", "east-2"));
    assert!(eventually(SOON, || share(&sb, "east-2") > 49.0));
    crowd.speak();
    crowd.echo(&["east-2"]);
    assert!(eventually(SOON, || known() >= all - CONNECTIONS), "{}", known());
}

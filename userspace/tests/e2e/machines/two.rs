//! Two machines and real (emulated) network cards: `l4_xdp` in the driver of virtio-net with several queues.
//!
//! The balancer's machine runs signalbox on `eth0` (10.1.0.1) and `eth1` (10.2.0.1), as the runner of machines has set
//! it up. This test runs on the other one, whose two cards are a client's and a host's, each in a namespace.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::Value;

use crate::lab::namespace::{Ns, connect_here, ip};
use crate::lab::services::{Answerer, ask, echo, greeter, greeting};
use crate::lab::{SOON, eventually, http, lab_test};

const BALANCER: &str = "10.1.0.1:8089";

/// Returns an answer of the balancer's machine.
fn json(client: &Ns, path: &str) -> Option<Value> {
    let stream = client.try_connect(BALANCER).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let response = http::request(stream, &request).ok()?;
    serde_json::from_str(&response.body).ok()
}

fn place(name: &str, card: &str, address: &str, gateway: &str) -> Ns {
    let ns = Ns::create(name);
    ip(&["link", "set", card, "netns", name]);
    for words in [
        format!("ip link set {card} name eth0"),
        "ip link set lo up".into(),
        format!("ip addr add {address} dev eth0"),
        "ip link set eth0 up".into(),
        format!("ip route add default via {gateway}"),
    ] {
        ns.must(&words.split(' ').collect::<Vec<_>>());
    }
    ns
}

#[lab_test]
fn services_and_shield_run_in_the_driver_of_a_multi_queue_card() {
    let client = place("sbm-client", "eth0", "10.1.0.2/24", "10.1.0.1");
    let host = place("sbm-host", "eth1", "10.2.0.2/24", "10.2.0.1");
    client.must(&["ip", "addr", "add", "10.1.0.3/24", "dev", "eth0"]);
    let _server = greeter(&host, "0.0.0.0:3306", "host");
    let _answerer = Answerer::start(&host, "0.0.0.0:53", "host");

    let hooks = || {
        json(&client, "/api/v1/shield")
            .map(|shield| shield["hooks"].clone())
            .unwrap_or_default()
    };
    let in_drivers = || {
        let hooks = hooks();
        let all = hooks.as_array().cloned().unwrap_or_default();
        all.len() == 2 && all.iter().all(|hook| hook["hook"] == "xdp")
    };
    assert!(eventually(3 * SOON, in_drivers), "{}", hooks());

    let mut ports = BTreeMap::new();
    let served = || client.try_connect("10.1.0.1:3306").is_ok();
    assert!(eventually(SOON, served), "{:?}", json(&client, "/api/v1/services"));
    for n in 0..60 {
        let stream = client.run(|| connect_here("10.1.0.1:3306").unwrap());
        assert_eq!(greeting(&stream), "host");
        echo(&stream, &vec![n; 20_000]).unwrap();
        *ports.entry(stream.local_addr().unwrap().port()).or_insert(0) += 1;
    }
    assert!(ports.len() > 50, "{ports:?}");
    let socket = client.run(|| std::net::UdpSocket::bind("0.0.0.0:0").unwrap());
    socket.connect("10.1.0.1:53".parse::<SocketAddr>().unwrap()).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    for length in [0, 1, 500, 1400] {
        assert!(ask(&socket, &vec![b'q'; length]).is_some(), "{length} bytes");
    }
    let denied = client.run(|| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket
            .bind(&"10.1.0.3:0".parse::<SocketAddr>().unwrap().into())
            .unwrap();
        let to = "10.1.0.1:3306".parse::<SocketAddr>().unwrap().into();
        socket.connect_timeout(&to, std::time::Duration::from_millis(900))
    });
    assert_eq!(denied.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    let drops = json(&client, "/api/v1/shield").unwrap();
    let denied = drops["guards"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|guard| guard["decisions"]["denied"].as_u64());
    assert!(denied.sum::<u64>() > 0, "{drops}");
}

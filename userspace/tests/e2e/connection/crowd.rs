//! Many connections at once through one process.

use crate::lab;

use std::net::TcpStream;

use lab::namespace::connect_here;
use lab::{Lab, Router, SOON, Signalbox, config, eventually, http, lab_test};

const HTTP: &str = "10.1.0.1:80";
const THREADS: usize = 9;
const EACH: usize = 1000;

/// Nine thousand, because a process here may have 20 000 descriptors and a flow takes two of signalbox. The clients'
/// ends are in this process, the servers' in two HAProxies.
#[lab_test]
fn nine_thousand_connections_at_once_all_answer() {
    let lab = Lab::new();
    let hosts = ["east-1", "east-2"];
    let _routers = Router::start_all(&lab, &hosts);
    let east = config::cluster("east", &["balance: least-connections"], &hosts);
    let body = format!(
        "datapath: {{ cut: off }}\n{}clusters:\n{east}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::WEB_LISTENERS
    );
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&hosts);
    // A first round, so that memory allocated once is not counted against the connections.
    for _ in 0..100 {
        assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200);
    }
    let before = sb.proc.resident();
    let mut held: Vec<Vec<TcpStream>> = (0..THREADS).map(|_| Vec::new()).collect();
    std::thread::scope(|scope| {
        for streams in &mut held {
            let client = &lab.client;
            scope.spawn(move || {
                client.run(|| {
                    for _ in 0..EACH {
                        let stream = connect_here(HTTP).unwrap();
                        answer(&stream);
                        streams.push(stream);
                    }
                });
            });
        }
    });
    let count = THREADS * EACH;
    let status = sb.json("/api/v1/status");
    assert_eq!(status["connections"]["active"], count, "{status}");
    assert_eq!(sb.flow_count(), count as u64);
    let after = sb.proc.resident();
    println!(
        "{count} connections: {} KiB resident, {} bytes for each",
        after / 1024,
        after.saturating_sub(before) / count as u64
    );
    for host in hosts {
        assert_eq!(
            sb.host(host)["active_connections"],
            count / 2,
            "least connections shares out evenly"
        );
    }
    // In two rounds: bytes that a faster tier carried in the first must still count in the second.
    for _ in 0..2 {
        std::thread::scope(|scope| {
            for streams in &held {
                scope.spawn(|| streams.iter().for_each(answer));
            }
        });
    }
    drop(held);
    assert!(
        eventually(SOON * 3, || sb.flow_count() == 0),
        "{} flows are left",
        sb.flow_count()
    );
    assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200);
    let kept = sb.proc.resident().saturating_sub(before);
    println!("{} KiB more resident than before, after all have gone", kept / 1024);
}

fn answer(stream: &TcpStream) {
    let response = http::get(stream, "a.test", "/").unwrap();
    assert_eq!(response.status, 200);
}

//! Faults by peers and operators that a balancer must survive; each once broke it.

use crate::lab;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use lab::exchange::Noise;
use lab::{Lab, Router, SOON, Server, Signalbox, config, eventually, http, lab_test, servers};

const HTTP: &str = "10.1.0.1:80";

#[lab_test]
fn an_answer_arrives_although_its_sender_reset_an_unread_upload() {
    let lab = Lab::new();
    // Answers at once and closes with the rest of the upload unread: its kernel sends a reset after the answer.
    let mut answer = vec![0; 60_000];
    Noise::new(5).fill(&mut answer);
    let sent = answer.clone();
    let _server = Server::start(lab.host("east-1"), "[::]:3306", move |stream| {
        let _ = (&*stream).read(&mut [0; 10]);
        let _ = (&*stream).write_all(&sent);
        std::thread::sleep(Duration::from_millis(50));
    });
    let _health = servers::healthy(lab.host("east-1"));
    let sb = Signalbox::start(&lab, &config::tcp("datapath: { tier: copy }", &["east-1"]));
    sb.wait_healthy(&["east-1"]);
    for round in 0..10 {
        let mut client = lab.client.connect("10.1.0.1:3306");
        client.set_read_timeout(Some(SOON)).unwrap();
        client.write_all(&[7; 4000]).unwrap();
        std::thread::sleep(Duration::from_millis(150));
        let mut received = Vec::new();
        // A reset may follow the answer; it must not replace it.
        let _ = client.read_to_end(&mut received);
        assert_eq!(received.len(), answer.len(), "round {round}");
        assert!(received == answer);
    }
    assert!(eventually(SOON, || sb.flow_count() == 0));
}

#[lab_test]
fn urgent_data_does_not_stop_a_spliced_flow() {
    let lab = Lab::new();
    let (_server, backends) = servers::hand_over(lab.host("east-1"), "[::]:3306");
    let _health = servers::healthy(lab.host("east-1"));
    let sb = Signalbox::start(&lab, &config::tcp("datapath: { tier: splice }", &["east-1"]));
    sb.wait_healthy(&["east-1"]);
    let mut client = lab.client.connect("10.1.0.1:3306");
    let host = backends.recv_timeout(SOON).unwrap();
    client.write_all(&[1; 300_000]).unwrap();
    // SAFETY: one byte of a live buffer, on a socket that is open.
    let sent = unsafe { libc::send(client.as_raw_fd(), [9u8].as_ptr().cast(), 1, libc::MSG_OOB) };
    assert_eq!(sent, 1);
    client.write_all(&[2; 1000]).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    host.set_read_timeout(Some(SOON)).unwrap();
    let mut received = Vec::new();
    (&*host).read_to_end(&mut received).unwrap();
    // The urgent byte itself travels out of band and is not carried.
    assert_eq!(received.iter().filter(|&&b| b == 2).count(), 1000);
    assert_eq!(received.iter().filter(|&&b| b == 1).count(), 300_000);
}

#[lab_test]
fn the_connection_limit_stops_accepts_and_blames_no_host() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    let limit = "limits: { max_connections: 10 }\n";
    let sb = Signalbox::start(
        &lab,
        &format!("{limit}{}", config::web(&["{ host: a.test, clusters: { east: 1 } }"])),
    );
    sb.wait_healthy(&["east-1"]);
    // The beginning of a request: the kernel leaves the connection to a worker.
    let begin = || {
        let mut stream = lab.client.connect(HTTP);
        stream.write_all(b"GET ").unwrap();
        stream
    };
    let silent: Vec<TcpStream> = (0..60).map(|_| begin()).collect();
    let active = || sb.metric("signalbox_connections_current");
    assert!(eventually(SOON, || active() == 10.0), "{} connections", active());
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(active(), 10.0);
    assert_eq!(sb.host("east-1")["health"], "healthy");
    drop(silent);
    assert!(eventually(SOON, || http::ask(&lab, HTTP, "a.test").status == 200));
}

#[lab_test]
fn a_successor_with_other_worker_counts_accepts_on_all_sockets() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    for (steering, before, after) in [("bind", "4", "2"), ("bind", "1", "3"), ("sk-lookup", "4", "1")] {
        let old = Signalbox::start_with(
            &lab,
            &config::web(&["{ host: a.test, clusters: { east: 1 } }"]),
            &["--steering", steering, "--workers", before],
        );
        old.wait_healthy(&["east-1"]);
        let file = lab.dir().join("signalbox.yaml");
        let new = Signalbox::spawn_file(&lab, "successor", &file, &["--takeover", "--workers", after]);
        let pid = || {
            new.try_get("/api/v1/status")
                .ok()
                .map(|r| r.body.contains(&format!("\"pid\":{}", new.proc.pid())))
        };
        assert!(eventually(SOON, || pid() == Some(true)), "{}", new.proc.log());
        for _ in 0..40 {
            assert_eq!(
                http::ask(&lab, HTTP, "a.test").status,
                200,
                "{steering} {before} -> {after}"
            );
        }
    }
}

#[lab_test]
fn a_full_house_with_a_full_queue_is_still_handed_over() {
    let lab = Lab::new();
    let _router = Router::start(&lab, "east-1");
    let body = format!(
        "limits: {{ max_connections: 10 }}\n{}",
        config::web(&["{ host: a.test, clusters: { east: 1 } }"])
    );
    let old = Signalbox::start(&lab, &body);
    old.wait_healthy(&["east-1"]);
    let waiting: Vec<TcpStream> = (0..300).map(|_| lab.client.connect(HTTP)).collect();
    let file = lab.dir().join("signalbox.yaml");
    let new = Signalbox::spawn_file(&lab, "successor", &file, &["--takeover"]);
    let pid = || {
        new.try_get("/api/v1/status")
            .ok()
            .map(|r| r.body.contains(&format!("\"pid\":{}", new.proc.pid())))
    };
    assert!(eventually(SOON, || pid() == Some(true)), "{}", new.proc.log());
    drop(waiting);
    assert!(eventually(SOON, || http::ask(&lab, HTTP, "a.test").status == 200));
}

#[lab_test]
fn unmatched_names_go_to_every_host_in_turn() {
    let lab = Lab::new();
    let _routers = Router::start_all(&lab, &["east-1", "east-2"]);
    let any = config::web(&["{ host: a.test, clusters: { east: 1 } }"]).replace("unmatched: reject", "");
    let sb = Signalbox::start(&lab, &format!("{any}unmatched: any\n"));
    sb.wait_healthy(&["east-1", "east-2"]);
    for _ in 0..20 {
        assert_eq!(http::ask(&lab, HTTP, "elsewhere.test").status, 200);
    }
    let hosts = sb.json("/api/v1/hosts");
    let total = |name: &str| {
        lab::signalbox::find(&hosts["hosts"], "name", name)["total_connections"]
            .as_u64()
            .unwrap()
    };
    assert!(total("east-1") >= 5 && total("east-2") >= 5, "{hosts}");
}

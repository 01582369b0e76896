//! A cut request's answer outlives the process, and its flow ends in every way in which a flow can end.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use super::scene::{DOORS, ON, Scene, answer_and_end, read_to_end};
use crate::http::request::scene::{Digested, noise_digest, send_noise};
use crate::lab::cut::{self, expect_cut};
use crate::lab::{SOON, config, eventually};

const BODY_BYTES: u64 = 16 << 20;

fn close_request(name: &str) -> String {
    format!("GET /big HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n")
}

/// Reads an answer up to its end, and compares it with the host's.
fn expect_big_answer(mut client: &TcpStream) {
    let head = crate::http::late_cut::read_head(client).unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let mut body = Digested::default();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match client.read(&mut buffer).unwrap() {
            0 => break,
            n => body.add(&buffer[..n]),
        }
    }
    assert_eq!((body.length, body.hex()), (BODY_BYTES, noise_digest(BODY_BYTES)));
}

/// Answers with `BODY_BYTES` bytes: with a length, or in a body that ends with the connection.
fn big_answer(mut host: &TcpStream, has_length: bool) {
    let length = format!("Content-Length: {BODY_BYTES}\r\n");
    let head = format!("HTTP/1.1 200 OK\r\n{}\r\n", if has_length { &length } else { "" });
    host.write_all(head.as_bytes()).unwrap();
    send_noise(host, BODY_BYTES, false).unwrap();
    host.shutdown(Shutdown::Write).unwrap();
}

#[test]
fn an_answer_outlives_the_process() {
    let Some(mut scene) = Scene::begin("an_answer_outlives_the_process", ON, "") else {
        return;
    };
    let flows = DOORS.map(|door| scene.ask_cut(door, &close_request(door.1)));
    std::thread::scope(|scope| {
        // Neither client reads yet: buffers are full when the process is killed.
        for ((_, host), has_length) in flows.iter().zip([true, false]) {
            scope.spawn(move || big_answer(host, has_length));
        }
        let is_under_way = |client: &TcpStream| {
            let flow = cut::shown(&scene.sb, client.local_addr().unwrap());
            flow["bytes_out"].as_u64().is_some_and(|bytes| bytes > 10_000)
        };
        assert!(eventually(SOON, || flows
            .iter()
            .all(|(client, _)| is_under_way(client))));
        scene.sb.kill9();
        for (client, _) in &flows {
            expect_big_answer(client);
        }
    });
    drop(flows);
    scene.restart();
    scene.expect_nothing_left();
    // Flows that were cut before count as adopted ones; new ones are cut.
    let (client, host) = scene.ask_cut(DOORS[0], &close_request("a.test"));
    answer_and_end(&host, "answer");
    assert!(read_to_end(&client).ends_with("answer"));
}

#[test]
fn a_cut_answer_survives_a_takeover_and_the_successor_counts_it() {
    let test = "a_cut_answer_survives_a_takeover_and_the_successor_counts_it";
    let Some(mut scene) = Scene::begin(test, ON, "") else {
        return;
    };
    let flows = DOORS.map(|door| scene.ask_cut(door, &close_request(door.1)));
    scene.sb.be_replaced("successor");
    for (client, host) in &flows {
        let flow = expect_cut(&scene.sb, client);
        assert_eq!(flow["tier_reason"], "last request", "{flow}");
        answer_and_end(host, "answer");
        assert!(read_to_end(client).ends_with("answer"));
    }
    drop(flows);
    scene.expect_nothing_left();
}

#[test]
fn a_flow_counts_for_its_host_until_it_ends_whoever_ends_it() {
    let test = "a_flow_counts_for_its_host_until_it_ends_whoever_ends_it";
    let Some(scene) = Scene::begin(test, ON, "") else {
        return;
    };
    let is_reset = |stream: &TcpStream| {
        let mut rest = Vec::new();
        let read = (&*stream).read_to_end(&mut rest);
        assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
    };
    for door in DOORS {
        let request = close_request(door.1);
        let active = || scene.sb.host(door.2)["active_connections"].as_u64().unwrap();
        // The client closes first, after an answer of known length, and the host when it sees that.
        let (client, host) = scene.ask_cut(door, &request);
        assert_eq!(active(), 1);
        (&*host)
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .unwrap();
        crate::http::late_cut::read_head(&client).unwrap();
        (&client).read_exact(&mut [0; 2]).unwrap();
        drop(client);
        assert_eq!((&*host).read(&mut [0; 8]).unwrap(), 0);
        drop(host);
        scene.expect_nothing_left();
        // The client half-closes while it waits: its end reaches the host, and the answer the client.
        let (client, host) = scene.ask_cut(door, &request);
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!((&*host).read(&mut [0; 8]).unwrap(), 0);
        answer_and_end(&host, "answer");
        assert!(read_to_end(&client).ends_with("answer"));
        scene.expect_nothing_left();
        // The client aborts.
        let (client, host) = scene.ask_cut(door, &request);
        crate::connection::access_log::reset(&client);
        drop(client);
        is_reset(&host);
        scene.expect_nothing_left();
        // The host aborts, before and within its answer.
        for said in ["", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"] {
            let (client, host) = scene.ask_cut(door, &request);
            (&*host).write_all(said.as_bytes()).unwrap();
            if !said.is_empty() {
                crate::http::late_cut::read_head(&client).unwrap();
                (&client).read_exact(&mut [0; 3]).unwrap();
            }
            crate::connection::access_log::reset(&host);
            drop(host);
            is_reset(&client);
            scene.expect_nothing_left();
        }
    }
    let closed = |reason: &str| {
        scene
            .sb
            .metric(&format!("signalbox_connections_closed_total{{reason=\"{reason}\"}}"))
    };
    assert_eq!(
        (closed("finished"), closed("client_reset"), closed("host_reset")),
        (4.0, 2.0, 4.0)
    );
    assert_eq!(scene.cut(), 10.0);
}

/// A silent host gets as much time as one whose answer userspace passes on.
#[test]
fn a_host_that_does_not_answer_in_time_is_given_up() {
    let top = format!("{ON}\ntimeouts: {{ answer: 2s, body: 3s }}");
    let Some(scene) = Scene::begin("a_host_that_does_not_answer_in_time_is_given_up", &top, "") else {
        return;
    };
    for (door, said) in DOORS
        .into_iter()
        .zip(["", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"])
    {
        let (client, host) = scene.ask_cut(door, &close_request(door.1));
        (&*host).write_all(said.as_bytes()).unwrap();
        let mut got = Vec::new();
        let error = (&client).read_to_end(&mut got).unwrap_err();
        assert_eq!(
            (error.kind(), got.as_slice()),
            (ErrorKind::ConnectionReset, said.as_bytes())
        );
        let error = (&*host).read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    scene.expect_nothing_left();
    // A flow is counted after its resets.
    let closed = || {
        scene
            .sb
            .metric("signalbox_connections_closed_total{reason=\"idle_timeout\"}")
    };
    assert!(eventually(SOON, || closed() == 2.0), "{}", closed());
}

#[test]
fn a_request_goes_to_another_host_if_the_first_refuses() {
    let test = "a_request_goes_to_another_host_if_the_first_refuses";
    let Some(scene) = Scene::begin(test, ON, "") else {
        return;
    };
    let [health, ejection] = cut::PATIENT;
    // Its health check is answered, and nothing listens at the port of its web server.
    let _health = crate::lab::servers::healthy(scene.lab.host("east-2"));
    let cluster = config::cluster("east", &[health, ejection], &["east-2", "east-1"]);
    let body = format!(
        "{ON}\nlisteners:\n  - {{ name: http, protocol: http, routing: request, listen: [\"{}\"] }}\nclusters:\n{cluster}\
         routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        DOORS[0].0
    );
    scene.sb.reload(&body);
    scene.sb.wait_healthy(&["east-1", "east-2"]);
    for _ in 0..4 {
        let (client, host) = scene.ask_cut(DOORS[0], &close_request("a.test"));
        answer_and_end(&host, "answer");
        assert!(read_to_end(&client).ends_with("answer"));
    }
    let failed = scene.sb.metric("signalbox_connect_failures_total{reason=\"refused\"}");
    assert!(failed >= 1.0, "{failed}");
    assert_eq!(scene.cut(), 4.0);
    cut::expect_none(&scene.sb);
    for host in ["east-1", "east-2"] {
        assert_eq!(scene.sb.host(host)["active_connections"], 0);
    }
}

#[test]
fn a_cut_request_ends_when_its_hosts_drain_time_is_over() {
    let top = format!("{ON}\ntimeouts: {{ drain: 1s }}");
    let Some(scene) = Scene::begin("a_cut_request_ends_when_its_hosts_drain_time_is_over", &top, "") else {
        return;
    };
    let (client, host) = scene.ask_cut(DOORS[0], &close_request("a.test"));
    let out = scene.sb.cli(&["rotate", "out", "east", "--force", "--no-wait"]);
    assert!(out.status.success(), "{out:?}");
    let error = (&client).read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!((&*host).read(&mut [0; 8]).is_err());
    let drained = || {
        scene
            .sb
            .metric("signalbox_connections_closed_total{reason=\"drained\"}")
    };
    assert!(eventually(SOON, || drained() == 1.0), "{}", drained());
    cut::expect_none(&scene.sb);
}

//! The rest of a long answer is cut on a connection that its client wanted to keep: also after earlier requests, and
//! without any of the bytes that the client sends after its request.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::scene::{DOORS, Scene, answer_and_end, has_nothing, read_request};
use crate::connection::tiers::queue;
use crate::http::late_cut::read_head;
use crate::http::request::scene::{Digested, field, noise_digest, send_noise};
use crate::lab::cut::{self, expect_cut};
use crate::lab::load::time_waits;
use crate::lab::{SOON, eventually};

/// Top-level lines that have the rest of long answers cut.
const ON: &str = "datapath: { long_answers: on }";

/// More than all buffers between a host and a client that does not read.
const BODY_BYTES: u64 = 48 << 20;

/// Least length of an answer that counts as long.
const LEAST_LONG_BYTES: u64 = 8 << 20;

/// Length of an answer that stays in userspace though it is long.
const LONG_BYTES: u64 = 9 << 20;

fn request(name: &str, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {name}\r\n\r\n")
}

/// Answers with a body of `bytes` bytes, and ends as the request asked.
fn answer(mut host: &TcpStream, bytes: u64) -> std::io::Result<()> {
    write!(host, "HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n")?;
    send_noise(host, bytes, false)?;
    match host.shutdown(Shutdown::Write) {
        // The balancer resets the connection of a whole answer, which may be before the host's end of it.
        Err(error) if error.kind() == std::io::ErrorKind::NotConnected => Ok(()),
        done => done,
    }
}

/// Reads `bytes` bytes of a body.
fn read_body(mut client: &TcpStream, body: &mut Digested, bytes: u64) {
    let mut buffer = vec![0; 64 * 1024];
    let end = body.length + bytes;
    while body.length < end {
        let room = buffer.len().min((end - body.length) as usize);
        let read = client.read(&mut buffer[..room]).unwrap();
        assert!(read > 0, "the answer ends after {} bytes", body.length);
        body.add(&buffer[..read]);
    }
}

/// Waits until leg A's socket has everything that its client has sent.
fn expect_acknowledged(client: &TcpStream) {
    assert!(eventually(SOON, || queue(client, libc::TIOCOUTQ) == 0));
}

/// Reads a body until its flow is cut: a client that does not read may keep an answer in userspace.
fn read_until_cut(scene: &Scene, client: &TcpStream, body: &mut Digested) {
    let address = client.local_addr().unwrap();
    while cut::shown(&scene.sb, address)["tier"] != "cut" {
        assert!(
            body.length < BODY_BYTES / 2,
            "never quiet: {}",
            late(scene, "never_quiet")
        );
        read_body(client, body, 128 << 10);
    }
    let flow = expect_cut(&scene.sb, client);
    assert_eq!(flow["tier_reason"], "long answer", "{flow}");
}

fn late(scene: &Scene, result: &str) -> f64 {
    scene
        .sb
        .metric(&format!("signalbox_late_cut_total{{result=\"{result}\"}}"))
}

/// Two requests on each connection: a short answer, which is not cut, and a long one, which is, outlives the process,
/// and ends with its host.
#[test]
fn a_long_answer_after_a_short_one_is_cut_and_outlives_a_kill() {
    let test = "a_long_answer_after_a_short_one_is_cut_and_outlives_a_kill";
    let Some(mut scene) = Scene::begin(test, ON, "") else {
        return;
    };
    let clients = DOORS.map(|door| {
        let (mut client, host, got) = scene.ask(door, &request(door.1, "/short"));
        assert!(got.contains("\r\nConnection: close\r\n"), "{got}");
        answer_and_end(&host, "short");
        let head = read_head(&client).unwrap();
        assert_eq!(
            field(&head, "connection"),
            None,
            "the client's connection is kept: {head}"
        );
        client.read_exact(&mut [0; 5]).unwrap();
        assert_eq!(late(&scene, "cut"), 0.0);
        client
    });
    std::thread::scope(|scope| {
        let mut bodies = Vec::new();
        for (client, door) in clients.iter().zip(DOORS) {
            (&*client).write_all(request(door.1, "/long").as_bytes()).unwrap();
            let host = scene.accept(door);
            assert!(read_request(&host).starts_with("GET /long "));
            scope.spawn(move || answer(&host, BODY_BYTES).unwrap());
            let head = read_head(client).unwrap();
            assert_eq!(field(&head, "connection"), Some("close"), "{head}");
            let mut body = Digested::default();
            read_until_cut(&scene, client, &mut body);
            bodies.push(body);
        }
        // A flow is shown as cut a moment before it is counted.
        let requests = || scene.sb.metric("signalbox_requests_total{code=\"2xx\"}");
        assert!(eventually(SOON, || late(&scene, "cut") == 2.0 && requests() == 4.0));
        scene.sb.kill9();
        for (mut body, client) in bodies.into_iter().zip(&clients) {
            let left = BODY_BYTES - body.length;
            read_body(client, &mut body, left);
            assert_eq!(body.hex(), noise_digest(BODY_BYTES));
            assert_eq!((&*client).read(&mut [0]).unwrap(), 0, "the host's end");
        }
    });
    drop(clients);
    scene.restart();
    scene.expect_nothing_left();
}

#[test]
fn nothing_behind_a_long_answers_request_reaches_the_host() {
    let Some(scene) = Scene::begin("nothing_behind_a_long_answers_request_reaches_the_host", ON, "") else {
        return;
    };
    let dropped = "signalbox_bpf_exits_total{program=\"cut_in\",reason=\"behind_request\"}";
    for (door, before) in DOORS.into_iter().zip([0.0, 1.0]) {
        let (mut client, host, _) = scene.ask(door, &request(door.1, "/long"));
        std::thread::scope(|scope| {
            let host = &host;
            scope.spawn(move || answer(host, BODY_BYTES).unwrap());
            read_head(&client).unwrap();
            let mut body = Digested::default();
            read_until_cut(&scene, &client, &mut body);
            client.write_all(request(door.1, "/admin").as_bytes()).unwrap();
            assert!(eventually(SOON, || scene.sb.metric(dropped) > before));
            let left = BODY_BYTES - body.length;
            read_body(&client, &mut body, left);
            assert_eq!(body.hex(), noise_digest(BODY_BYTES));
        });
        assert!(has_nothing(&host));
    }
}

/// A client that has sent its next request ahead gets its answer from userspace, and keeps its connection.
#[test]
fn a_pipelined_request_keeps_an_answer_in_userspace() {
    let Some(scene) = Scene::begin("a_pipelined_request_keeps_an_answer_in_userspace", ON, "") else {
        return;
    };
    for door in DOORS {
        let both = request(door.1, "/long") + &request(door.1, "/next");
        let (client, host, _) = scene.ask(door, &both);
        std::thread::scope(|scope| {
            let host = &host;
            // The connection may be kept: nothing is asked of this host that it has not been asked alone.
            scope.spawn(move || answer(host, LONG_BYTES));
            let head = read_head(&client).unwrap();
            assert_eq!(field(&head, "connection"), None, "{head}");
            let mut body = Digested::default();
            read_body(&client, &mut body, LONG_BYTES);
            assert_eq!(body.hex(), noise_digest(LONG_BYTES));
        });
        let host = scene.accept(door);
        assert!(read_request(&host).starts_with("GET /next "));
        answer_and_end(&host, "next");
        assert_eq!(late(&scene, "cut"), 0.0);
    }
    assert_eq!(late(&scene, "bytes_behind_request"), 2.0);
}

/// A client that sends more, or ends its sending side, once its host has been connected: its answer is passed on at
/// full speed, and its next request is served.
#[test]
fn a_client_that_sends_more_before_its_answer_stays_connected() {
    let test = "a_client_that_sends_more_before_its_answer_stays_connected";
    let Some(scene) = Scene::begin(test, ON, "") else {
        return;
    };
    for door in DOORS {
        let (mut client, host, _) = scene.ask(door, &request(door.1, "/long"));
        client.write_all(request(door.1, "/next").as_bytes()).unwrap();
        expect_acknowledged(&client);
        std::thread::scope(|scope| {
            let host = &host;
            scope.spawn(move || answer(host, LONG_BYTES));
            let head = read_head(&client).unwrap();
            assert_eq!(field(&head, "connection"), None, "{head}");
            let mut body = Digested::default();
            read_body(&client, &mut body, LONG_BYTES);
            assert_eq!(body.hex(), noise_digest(LONG_BYTES));
        });
        let host = scene.accept(door);
        client.shutdown(Shutdown::Write).unwrap();
        expect_acknowledged(&client);
        assert!(read_request(&host).starts_with("GET /next "));
        std::thread::scope(|scope| {
            let host = &host;
            scope.spawn(move || answer(host, LONG_BYTES));
            read_head(&client).unwrap();
            read_body(&client, &mut Digested::default(), LONG_BYTES);
        });
    }
    assert_eq!(late(&scene, "bytes_behind_request"), 2.0);
    assert_eq!(late(&scene, "client_half_closed"), 2.0);
    assert_eq!(late(&scene, "cut"), 0.0);
}

/// With large buffers, window scales are large, too: leg B's must still allow a small window.
#[test]
fn a_host_pauses_where_window_scales_are_large() {
    let Some(scene) = Scene::begin("a_host_pauses_where_window_scales_are_large", ON, "") else {
        return;
    };
    for ns in [&scene.lab.lb, &scene.lab.client] {
        ns.sysctl(&["net.ipv4.tcp_rmem=4096 131072 67108864"]).unwrap();
    }
    for door in DOORS {
        let (client, host, _) = scene.ask(door, &request(door.1, "/long"));
        std::thread::scope(|scope| {
            let host = &host;
            scope.spawn(move || answer(host, BODY_BYTES).unwrap());
            read_head(&client).unwrap();
            let mut body = Digested::default();
            read_until_cut(&scene, &client, &mut body);
            let left = BODY_BYTES - body.length;
            read_body(&client, &mut body, left);
            assert_eq!(body.hex(), noise_digest(BODY_BYTES));
        });
    }
}

/// Source ports of flows that are cut are used again at once: none waits in TIME_WAIT after a short answer.
#[test]
fn short_answers_leave_no_port_behind() {
    let Some(scene) = Scene::begin("short_answers_leave_no_port_behind", ON, "") else {
        return;
    };
    let before = time_waits(&scene.lab.lb);
    for round in 0..40 {
        let door = DOORS[round % 2];
        let (mut client, host, _) = scene.ask(door, &request(door.1, "/short"));
        // The host waits for the balancer to end the connection first.
        (&*host)
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nshort")
            .unwrap();
        read_head(&client).unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
        let error = (&*host).read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        // The client is the first to end its connection.
    }
    let waiting = time_waits(&scene.lab.lb);
    assert!(waiting < before + 10, "{waiting} sockets in TIME_WAIT, {before} before");
    scene.expect_nothing_left();
}

/// A client that does not read for a while gets its answer whole, and from the kernel in the end: at once, if all bytes
/// so far fit its buffer, or when it has caught up.
#[test]
fn a_slow_clients_answer_is_cut_and_whole() {
    let Some(scene) = Scene::begin("a_slow_clients_answer_is_cut_and_whole", ON, "") else {
        return;
    };
    for (round, door) in DOORS.into_iter().enumerate() {
        let (client, host, _) = scene.ask(door, &request(door.1, "/long"));
        if round == 0 {
            socket2::SockRef::from(&client).set_recv_buffer_size(4096).unwrap();
        }
        std::thread::scope(|scope| {
            let host = &host;
            scope.spawn(move || answer(host, BODY_BYTES).unwrap());
            std::thread::sleep(Duration::from_millis(500));
            read_head(&client).unwrap();
            let mut body = Digested::default();
            read_until_cut(&scene, &client, &mut body);
            let left = BODY_BYTES - body.length;
            read_body(&client, &mut body, left);
            assert_eq!(body.hex(), noise_digest(BODY_BYTES));
        });
    }
    assert_eq!(late(&scene, "cut"), 2.0);
}

/// Answers that are not long, or of unknown length, and answers to methods except GET are not cut.
#[test]
fn other_answers_are_passed_on_by_userspace() {
    let Some(scene) = Scene::begin("other_answers_are_passed_on_by_userspace", ON, "") else {
        return;
    };
    let long = LONG_BYTES;
    for door in DOORS {
        let posted = format!("POST /long HTTP/1.1\r\nHost: {}\r\nContent-Length: 1\r\n\r\n1", door.1);
        for (text, length) in [
            (request(door.1, "/short"), Some(LEAST_LONG_BYTES - 1)),
            (request(door.1, "/unknown"), None),
            (posted, Some(long)),
        ] {
            let (client, host, _) = scene.ask(door, &text);
            std::thread::scope(|scope| {
                let mut host = &*host;
                scope.spawn(move || match length {
                    Some(bytes) => answer(host, bytes).unwrap(),
                    None => {
                        host.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").unwrap();
                        send_noise(host, long, false).unwrap();
                        host.shutdown(Shutdown::Write).unwrap();
                    }
                });
                read_head(&client).unwrap();
                let mut body = Digested::default();
                read_body(&client, &mut body, length.unwrap_or(long));
                assert_eq!(body.hex(), noise_digest(length.unwrap_or(long)), "{text}");
            });
        }
    }
    assert_eq!(late(&scene, "cut"), 0.0);
}

/// A host that aborts ends the client's connection by a reset, as userspace would: a short answer would look whole.
#[test]
fn a_cut_answer_that_breaks_off_is_reset() {
    let Some(scene) = Scene::begin("a_cut_answer_that_breaks_off_is_reset", ON, "") else {
        return;
    };
    for door in DOORS {
        let (client, host, _) = scene.ask(door, &request(door.1, "/long"));
        write!(&*host, "HTTP/1.1 200 OK\r\nContent-Length: {BODY_BYTES}\r\n\r\n").unwrap();
        (&*host).write_all(&[7; 1000]).unwrap();
        read_head(&client).unwrap();
        (&client).read_exact(&mut [0; 1000]).unwrap();
        expect_cut(&scene.sb, &client);
        socket2::SockRef::from(&*host).set_linger(Some(Duration::ZERO)).unwrap();
        drop(host);
        let error = (&client).read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    scene.expect_nothing_left();
}

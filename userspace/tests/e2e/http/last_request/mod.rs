//! A request that is its client's last is cut when its host is connected: with the head for the host, and without any
//! of the bytes that the client sends after it.

mod hosts;
mod life;
mod long_answer;
mod reasons;
mod scene;

use std::io::Write;
use std::net::Shutdown;

use crate::lab::cut::{self, expect_cut};
use crate::lab::{SOON, eventually};
use scene::{DOORS, ON, Scene, answer_and_end, has_nothing, read_to_end};

/// A request of every kind that is cut, for a name.
fn requests(name: &str) -> Vec<String> {
    let big = "x".repeat(12_000);
    vec![
        format!("GET /a%20b?c=d HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\nX-Case: Kept\r\n\r\n"),
        format!("HEAD / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"),
        format!("GET / HTTP/1.0\r\nHost: {name}\r\n\r\n"),
        format!("GET http://{name}/absolute HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {name}\r\nX-Forwarded-For: 1.2.3.4\r\nConnection: close\r\n\r\n"),
        format!("POST /p HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"),
        format!("POST /p HTTP/1.0\r\nHost: {name}\r\nContent-Length: 5\r\n\r\nhello"),
        format!("DELETE /p HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"),
        // More than a socket takes at once, and than one segment holds.
        format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\nX-Big: {big}\r\n\r\n"),
    ]
}

#[test]
fn a_last_request_is_cut_with_the_head_that_the_host_is_to_get() {
    let test = "a_last_request_is_cut_with_the_head_that_the_host_is_to_get";
    let route = "rewrite: /under, headers: { request: { set: { X-Env: prod }, remove: [X-Gone] } }";
    let Some(mut scene) = Scene::begin(test, ON, route) else {
        return;
    };
    let mut got = [Vec::new(), Vec::new()];
    for (got, settings) in got.iter_mut().zip([ON, ""]) {
        scene.reload(settings, route);
        let (cut_before, carried_before) = (scene.cut(), scene.not_cut("routed_per_request"));
        for door in DOORS {
            for request in requests(door.1) {
                let (client, host, text) = scene.ask(door, &request);
                if settings == ON {
                    let flow = expect_cut(&scene.sb, &client);
                    assert_eq!(flow["tier_reason"], "last request", "{request}: {flow}");
                    // The flow before ends when the flow GC has seen it.
                    assert!(eventually(SOON, || scene.sb.host(door.2)["active_connections"] == 1));
                }
                let answer = if request.starts_with("HEAD ") { "" } else { "answer" };
                answer_and_end(&host, answer);
                assert!(
                    read_to_end(&client).ends_with(&format!("\r\n\r\n{answer}")),
                    "{request}"
                );
                client.shutdown(Shutdown::Both).unwrap();
                got.push(text);
            }
        }
        let count = if settings == ON { got.len() as f64 } else { 0.0 };
        assert_eq!(scene.cut() - cut_before, count);
        assert_eq!(
            scene.not_cut("routed_per_request") - carried_before,
            got.len() as f64 - count
        );
        scene.expect_nothing_left();
    }
    let [cut, carried] = got;
    for (cut, carried) in cut.iter().zip(&carried) {
        let close = "\r\nConnection: close\r\n\r\n";
        assert!(cut.contains(close), "{cut}");
        // Userspace keeps the host's connection for other requests.
        let carried = carried.replace("\r\nConnection: keep-alive\r\n\r\n", "\r\n\r\n");
        assert_eq!(cut.replace(close, "\r\n\r\n"), carried, "bytes and order are the same");
    }
    let first = &cut[0];
    assert!(
        first.starts_with("GET /under/a%20b?c=d HTTP/1.1\r\nHost: a.test\r\nX-Case: Kept\r\n"),
        "{first}"
    );
    for line in [
        "X-Env: prod",
        "X-Forwarded-For: 10.1.0.2",
        "X-Forwarded-Proto: http",
        "Connection: close",
    ] {
        assert!(first.contains(&format!("\r\n{line}\r\n")), "{line}: {first}");
    }
}

#[test]
fn nothing_behind_a_cut_request_reaches_the_host() {
    let Some(scene) = Scene::begin("nothing_behind_a_cut_request_reaches_the_host", ON, "") else {
        return;
    };
    let dropped = || {
        scene
            .sb
            .metric("signalbox_bpf_exits_total{program=\"cut_in\",reason=\"behind_request\"}")
    };
    for (door, before) in DOORS.into_iter().zip([0.0, 1.0]) {
        let request = format!("GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", door.1);
        let (mut client, host) = scene.ask_cut(door, &request);
        let smuggled = format!("GET /admin HTTP/1.1\r\nHost: {}\r\n\r\n", door.1);
        client.write_all(smuggled.as_bytes()).unwrap();
        assert!(eventually(SOON, || dropped() > before), "{}", dropped());
        answer_and_end(&host, "answer");
        assert!(read_to_end(&client).ends_with("\r\n\r\nanswer"));
        assert!(has_nothing(&host));
    }
}

/// Bytes after the request come before its flow is cut, during the cut, and afterwards: in each case the host gets none
/// of them, and the client its answer.
#[test]
fn bytes_behind_a_request_reach_no_host_whenever_they_come() {
    const ROUNDS: usize = 200;
    let Some(scene) = Scene::begin("bytes_behind_a_request_reach_no_host_whenever_they_come", ON, "") else {
        return;
    };
    for round in 0..ROUNDS {
        let door = DOORS[round % 2];
        let mut client = scene.send(
            door,
            &format!("GET /{round} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", door.1),
        );
        for _ in 0..round {
            std::hint::spin_loop();
        }
        std::thread::sleep(std::time::Duration::from_micros(10 * (round as u64 % 60)));
        client
            .write_all(b"GET /admin HTTP/1.1\r\nHost: a.test\r\n\r\n")
            .unwrap();
        let host = scene.accept(door);
        let got = scene::read_request(&host);
        assert!(got.starts_with(&format!("GET /{round} ")), "{got}");
        answer_and_end(&host, "answer");
        assert!(read_to_end(&client).ends_with("\r\n\r\nanswer"), "round {round}");
        assert!(has_nothing(&host), "round {round}");
    }
    let behind = "signalbox_bytes_behind_request_total{listener=\"http\"}";
    let kernel = "signalbox_bpf_exits_total{program=\"cut_in\",reason=\"behind_request\"}";
    println!(
        "{} of {ROUNDS} cut, {} found with bytes behind, {} bytes dropped with sockets, {} packets by the program",
        scene.cut(),
        scene.not_cut("bytes_behind_request"),
        scene.sb.metric(behind),
        scene.sb.metric(kernel)
    );
    assert_eq!(
        scene.cut() + scene.not_cut("bytes_behind_request"),
        ROUNDS as f64,
        "{}",
        cut::reasons(&scene.sb)
    );
}

//! Real servers as hosts, and a real client.

use super::scene::ON;
use crate::http::request::scene::{WebHost, file_digest, noise_digest};
use crate::lab::cut::{self, expect_none};
use crate::lab::{Router, SOON, Signalbox, config, eventually, lab_test};

/// HAProxy over IPv4, nginx over IPv6, with a file to be fetched from nginx.
#[lab_test]
fn haproxy_and_nginx_answer_cut_requests() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let file = lab.dir().join("big");
    let mut bytes = std::fs::File::create(&file).unwrap();
    crate::http::request::scene::send_noise(&mut bytes, 16 << 20, false).unwrap();
    let lines = format!("location /big {{ root {}; }}", lab.dir().display());
    let _routers = [
        Router::start(&lab, "east-1"),
        Router::nginx_with(&lab, "west-1", " http2", &lines),
    ];
    let sb = Signalbox::start(&lab, &body());
    sb.wait_healthy(&["east-1", "west-1"]);
    let mut asked = 0.0;
    for (name, host, address) in [("a.test", "east-1", "10.1.0.1"), ("b.test", "west-1", "[fd00:1::1]")] {
        let url = format!("http://{address}/");
        let named = format!("Host: {name}");
        for words in [
            &["-H", "Connection: close"][..],
            &["-0"],
            &["-H", "Connection: close", "-d", "a=b"],
            &["-0", "-d", "a=b"],
        ] {
            let said = lab
                .client
                .must(&[&["curl", "-sS", "-m", "30", "-g", "-H", &named], words, &[&url]].concat());
            assert!(said.contains(&format!("host={host} name={name}")), "{words:?}: {said}");
            asked += 1.0;
        }
        let head = lab.client.must(&[
            "curl",
            "-sS",
            "-m",
            "30",
            "-g",
            "-I",
            "-H",
            &named,
            "-H",
            "Connection: close",
            &url,
        ]);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        asked += 1.0;
    }
    let got = lab.dir().join("got");
    let got_path = got.to_str().unwrap();
    lab.client.must(&[
        "curl",
        "-sS",
        "-m",
        "60",
        "-g",
        "-H",
        "Host: b.test",
        "-H",
        "Connection: close",
        "-o",
        got_path,
        "http://[fd00:1::1]/big",
    ]);
    assert_eq!(file_digest(&got), noise_digest(16 << 20));
    assert_eq!(
        sb.metric("signalbox_requests_total{code=\"cut\"}"),
        asked + 1.0,
        "{}",
        cut::reasons(&sb)
    );
    expect_none(&sb);
    let closed = || sb.metric("signalbox_connections_closed_total{reason=\"finished\"}");
    assert!(eventually(SOON, || closed() == asked + 1.0), "{} have ended", closed());
}

/// Answers of every shape, also those that only a host's end ends, and requests with bodies.
#[lab_test]
fn answers_of_every_shape_reach_clients_whole() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let _hosts = [WebHost::start(&lab, "east-1"), WebHost::start(&lab, "west-1")];
    let sb = Signalbox::start(&lab, &body());
    sb.wait_healthy(&["east-1", "west-1"]);
    for (at, name) in [("10.1.0.1:80", "a.test"), ("[fd00:1::1]:80", "b.test")] {
        for (path, length) in [
            ("/bytes/0", 0),
            ("/bytes/3000000", 3_000_000),
            ("/close/3000000", 3_000_000),
            ("/chunked/3000000", 3_000_000),
            ("/dribble/300000", 300_000),
        ] {
            let mut client = crate::http::request::scene::Client::on(lab.client.connect(at));
            client.send(&format!(
                "GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
            ));
            let answer = client.answer("GET");
            assert_eq!((answer.status, answer.body.length), (200, length), "{path}");
            assert_eq!(answer.body.hex(), noise_digest(length), "{path}");
        }
    }
    assert_eq!(
        sb.metric("signalbox_requests_total{code=\"cut\"}"),
        10.0,
        "{}",
        cut::reasons(&sb)
    );
    expect_none(&sb);
}

fn body() -> String {
    let [health, ejection] = cut::PATIENT;
    format!(
        "{ON}\nlisteners:\n  - {{ name: http, protocol: http, routing: request, listen: [\"10.1.0.1:80\", \
         \"[fd00:1::1]:80\"] }}\nclusters:\n{}{}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n  \
         - {{ host: b.test, clusters: {{ west: 1 }} }}\n",
        config::cluster("east", &[health, ejection], &["east-1"]),
        config::cluster("west", &[health, ejection], &["west-1"]),
    )
}

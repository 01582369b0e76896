//! Limits of connections that the program and workers keep together: one count, never one too many, all given back.

use crate::lab;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use lab::cut::{self, CutLab};
use lab::topology::OTHER_CLIENTS;
use lab::{SOON, Server, Signalbox, eventually, lab_test, servers};

use super::{PEEK, exits, expect_routes};

const CLIENT: &str = "10.1.0.2";
/// A request that the program routes, and one that it leaves to a worker.
const PLAIN: &str = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
const ODD: &str = "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n";

const MOST: usize = 5;
/// Top-level lines, a line of the cluster, a key of the route: each allows this client five connections.
const LIMITS: [(&str, &str, &str); 5] = [
    ("limits: { per_source: { concurrent: 5 } }", "balance: random-two", ""),
    ("limits: { max_connections: 5 }", "balance: least-connections", ""),
    ("", "max_host_connections: 5", ""),
    ("shield: { limits: { concurrent: 5 } }", "balance: round-robin", ""),
    ("", "balance: maglev", ", connections: { concurrent: 5, rate: 1000 }"),
];

/// Signalbox in front of hosts that send everything back.
fn start(lab: &CutLab, body: &str) -> (Vec<Server>, Signalbox) {
    let mut hosts = vec![servers::echo(lab.host("east-1"), "[::]:80")];
    hosts.extend(["east-1", "west-1"].map(|host| servers::healthy(lab.host(host))));
    let sb = Signalbox::start(lab, body);
    sb.wait_healthy(&["east-1", "west-1"]);
    expect_routes(&sb, 4);
    (hosts, sb)
}

/// Opens a connection that has got its answer. `None`: it was refused, or waits.
fn open(lab: &CutLab, from: &str, request: &str) -> Option<TcpStream> {
    let limit = Duration::from_millis(300) * signalbox_lab::patience();
    // The shield drops the SYNs of a source that a worker has just refused.
    let mut stream = lab.client.try_connect_from(from, "10.1.0.1:80", limit).ok()?;
    stream.set_read_timeout(Some(limit)).unwrap();
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = vec![0; request.len()];
    stream.read_exact(&mut answer).ok()?;
    if answer.starts_with(b"HTTP/1.1 429") {
        return None;
    }
    assert_eq!(answer, request.as_bytes());
    Some(stream)
}

/// Opens one more connection, as soon as that is allowed.
fn open_soon(lab: &CutLab, sb: &Signalbox, from: &str, request: &str) -> TcpStream {
    let mut opened = None;
    let is_open = eventually(SOON, || {
        opened = open(lab, from, request);
        opened.is_some()
    });
    assert!(is_open, "{request}: {}", sb.get("/metrics").1);
    opened.unwrap()
}

/// Expects that neither path lets another connection in.
fn expect_full(lab: &CutLab, case: &str) {
    for request in [PLAIN, ODD] {
        assert!(
            open(lab, CLIENT, request).is_none(),
            "{case}: one too many by {request}"
        );
    }
}

fn expect_no_connections(sb: &Signalbox) {
    cut::expect_none(sb);
    let current = || sb.metric("signalbox_connections_current");
    assert!(eventually(SOON, || current() == 0.0), "{} connections", current());
}

#[lab_test]
fn limits_count_kernel_and_worker_connections_together() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let body = |(extra, key, route): (&str, &str, &str)| {
        let whole = cut::body_with(&format!("{PEEK}\n{extra}"), key);
        whole.replace("clusters: { east: 1 }", &format!("clusters: {{ east: 1 }}{route}"))
    };
    let (_hosts, sb) = start(&lab, &body(LIMITS[0]));
    for limits in LIMITS {
        let case = format!("{limits:?}");
        sb.reload(&body(limits));
        expect_routes(&sb, 4);
        let before = exits(&sb, "routed");
        let mut held: Vec<_> = (0..MOST).map(|_| open_soon(&lab, &sb, CLIENT, PLAIN)).collect();
        assert!(
            exits(&sb, "routed") - before >= MOST as u64,
            "{case}: not routed in the kernel"
        );
        expect_full(&lab, &case);
        // Only some of these limits are those of a source.
        let is_of_source = case.contains("concurrent");
        if is_of_source {
            open_soon(&lab, &sb, OTHER_CLIENTS[0], PLAIN);
        } else {
            assert!(open(&lab, OTHER_CLIENTS[0], PLAIN).is_none(), "{case}");
        }
        held.truncate(2);
        held.extend([PLAIN, ODD, ODD].map(|request| open_soon(&lab, &sb, CLIENT, request)));
        expect_full(&lab, &case);
        drop(held);
        expect_no_connections(&sb);
    }
}

#[lab_test]
fn a_limit_holds_while_many_race_for_it_by_both_paths() {
    const MOST: usize = 50;
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let body = cut::body(&format!("{PEEK}\nlimits: {{ per_source: {{ concurrent: 50 }} }}"));
    let (_hosts, sb) = start(&lab, &body);
    for round in 0..3 {
        let race = &|request| -> Vec<_> { (0..6).filter_map(|_| open(&lab, CLIENT, request)).collect() };
        let mut held: Vec<TcpStream> = thread::scope(|scope| {
            let requests = [PLAIN, ODD].into_iter().cycle().take(16);
            let all: Vec<_> = requests.map(|request| scope.spawn(move || race(request))).collect();
            all.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert!(held.len() <= MOST, "round {round}: {} of {MOST}", held.len());
        while held.len() < MOST {
            held.push(open_soon(&lab, &sb, CLIENT, PLAIN));
        }
        expect_full(&lab, "race");
        drop(held);
        expect_no_connections(&sb);
    }
    assert!(exits(&sb, "routed") > 0);
}

#[lab_test]
fn a_rate_holds_for_the_kernel_and_workers_together() {
    const RATE: usize = 20;
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let body = cut::body(&format!("{PEEK}\nlimits: {{ per_source: {{ per_second: 20 }} }}"));
    let (_hosts, sb) = start(&lab, &body);
    thread::sleep(Duration::from_secs(1));
    let begin = Instant::now();
    let attempts = (0..4 * RATE).map(|n| open(&lab, CLIENT, if n.is_multiple_of(4) { ODD } else { PLAIN }));
    let opened = attempts.flatten().count();
    // The bucket holds one second's worth, and fills meanwhile.
    let most = RATE + (begin.elapsed().as_secs_f64() * RATE as f64) as usize + 1;
    assert!((RATE..=most).contains(&opened), "{opened} of at most {most}");
    assert!(exits(&sb, "routed") > 0);
}

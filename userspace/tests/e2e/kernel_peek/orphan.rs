//! `peek_orphan: serve`: names are routed though the process has died.

use crate::lab;

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use lab::cut::{self, CutLab};
use lab::{Router, SOON, Signalbox, eventually, http};

use super::{PEEK, exits, expect_routes, start_with};

pub(super) const SERVE: &str = "datapath: { peek: kernel, peek_orphan: serve }";
/// Clients that ask all the time.
const ASKING: usize = 6;
pub(super) const VIP: &str = "10.1.0.1:80";
/// Longer than the program answers without a heartbeat where it does not outlive its process.
pub(super) const DEAD_INTERVAL: Duration = Duration::from_secs(4);

fn ask(client: &mut TcpStream, name: &str) -> std::io::Result<u16> {
    client.write_all(format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n").as_bytes())?;
    http::read_response(client).map(|response| response.status)
}

pub(super) fn is_refused(lab: &CutLab) -> bool {
    lab.client.run(|| TcpStream::connect(VIP)).is_err()
}

/// This process does not count the orphan's answers.
pub(super) fn is_served_by(lab: &CutLab, sb: &Signalbox) -> bool {
    let delivered = exits(sb, "delivered");
    assert_eq!(http::ask(lab, VIP, "a.test").status, 200);
    exits(sb, "delivered") == delivered + 1
}

#[test]
fn names_are_served_without_a_process_and_the_next_takes_over() {
    let Some(lab) = super::lab("names_are_served_without_a_process_and_the_next_takes_over") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let mut sb = start_with(&lab, &cut::body(SERVE), 2);
    sb.wait_healthy(&["east-1"]);
    let mut before = lab.client.connect(VIP);
    assert_eq!(ask(&mut before, "a.test").unwrap(), 200);
    sb.kill9();
    std::thread::sleep(DEAD_INTERVAL);
    for _ in 0..20 {
        assert_eq!(http::ask(&lab, VIP, "a.test").status, 200);
    }
    let mut meanwhile = lab.client.connect(VIP);
    assert_eq!(ask(&mut meanwhile, "a.test").unwrap(), 200);
    // A name that userspace would have to decide about.
    let mut unknown = lab.client.connect(VIP);
    unknown.set_read_timeout(Some(SOON)).unwrap();
    let refused = ask(&mut unknown, "nobody.test").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionReset);

    sb = Signalbox::start(&lab, &cut::body(SERVE));
    expect_routes(&sb, 2);
    assert!(is_served_by(&lab, &sb), "{}", sb.get("/metrics").1);
    // Flows of its predecessor, and of the time between.
    for client in [&mut before, &mut meanwhile] {
        assert_eq!(ask(client, "a.test").unwrap(), 200);
        let from = client.local_addr().unwrap().to_string();
        let known = sb.flows("limit=1000");
        assert!(
            known.iter().any(|flow| flow["client"] == from.as_str()),
            "{from}: {known:?}"
        );
    }
    sb.wait_healthy(&["east-1"]);
    sb.term();
    assert_eq!(sb.proc.exit_code(4 * SOON), 0);
    assert!(
        is_refused(&lab),
        "the program has outlived a process that was told to end"
    );
}

/// Has clients ask for a name all the time while `change` runs: each gets an answer.
pub(super) fn while_asking(lab: &CutLab, change: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ask = || {
            lab.client.run(|| {
                let (mut count, mut lost) = (0, Vec::new());
                while !stop.load(Relaxed) {
                    if let Err(error) = http::ask_here(VIP, "a.test") {
                        lost.push(format!("request {count}: {error}"));
                    }
                    count += 1;
                    // The ports have to last until the program frees them.
                    std::thread::sleep(Duration::from_millis(2));
                }
                (count, lost)
            })
        };
        // Several: when the programs change, one of them is just waiting for its host.
        let asking: Vec<_> = (0..ASKING).map(|_| scope.spawn(ask)).collect();
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(change));
        stop.store(true, Relaxed);
        let (mut count, mut lost) = (0, Vec::new());
        for one in asking {
            let (asked, failed) = one.join().unwrap();
            count += asked;
            lost.extend(failed);
        }
        changed.unwrap();
        println!("{} of {count} requests lost: {lost:?}", lost.len());
        assert!(count > 20 && lost.is_empty(), "of {count} requests: {lost:#?}");
    });
}

#[test]
fn no_request_is_lost_when_the_process_dies_and_comes_back() {
    let Some(lab) = super::lab("no_request_is_lost_when_the_process_dies_and_comes_back") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let mut sb = start_with(&lab, &cut::body(SERVE), 2);
    sb.wait_healthy(&["east-1"]);
    while_asking(&lab, || {
        for waits in [200, 6000, 200] {
            std::thread::sleep(Duration::from_millis(200));
            sb.kill9();
            std::thread::sleep(Duration::from_millis(waits));
            sb = Signalbox::start(&lab, &cut::body(SERVE));
        }
        std::thread::sleep(Duration::from_millis(200));
    });
    assert!(is_served_by(&lab, &sb), "{}", sb.get("/metrics").1);
}

#[test]
fn a_program_that_is_not_to_outlive_its_process_does_not() {
    let Some(lab) = super::lab("a_program_that_is_not_to_outlive_its_process_does_not") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let mut sb = start_with(&lab, &cut::body(PEEK), 2);
    sb.wait_healthy(&["east-1"]);
    // Switched on and off while it serves.
    sb.reload(&cut::body(SERVE));
    std::thread::sleep(Duration::from_secs(1));
    sb.reload(&cut::body(PEEK));
    std::thread::sleep(Duration::from_secs(1));
    assert!(is_served_by(&lab, &sb));
    sb.kill9();
    assert!(is_refused(&lab));
}

#[test]
fn a_successor_decides_whether_its_own_program_outlives_it() {
    let Some(lab) = super::lab("a_successor_decides_whether_its_own_program_outlives_it") else {
        return;
    };
    let _router = Router::start(&lab, "east-1");
    let mut sb = start_with(&lab, &cut::body(SERVE), 2);
    sb.wait_healthy(&["east-1"]);
    sb.be_replaced("second");
    expect_routes(&sb, 2);
    assert!(eventually(SOON, || is_served_by(&lab, &sb)));
    sb.kill9();
    std::thread::sleep(DEAD_INTERVAL);
    assert_eq!(http::ask(&lab, VIP, "a.test").status, 200);
    // The next process does not use the kernel peek: no program runs before its sockets.
    sb = Signalbox::start(&lab, &cut::body("datapath: { peek: userspace }"));
    assert_eq!(http::ask(&lab, VIP, "a.test").status, 200);
    let mut unknown = lab.client.connect(VIP);
    unknown.set_read_timeout(Some(SOON)).unwrap();
    unknown.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    assert!(eventually(SOON, || sb.metric("signalbox_connections_current") >= 1.0));
    drop(unknown);
    sb.kill9();
    assert!(is_refused(&lab));
}

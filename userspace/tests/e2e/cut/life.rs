//! Cut flows outlive the process: after a kill, a stop or a replacement, its successor finds them and continues their
//! counts.

use crate::lab;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::Duration;

use lab::cut::{self, Hosts, doors, expect_cut, expect_none, finish, known};
use lab::tiers::ping;
use lab::{Lab, Router, SOON, Signalbox, config, eventually, exchange, http, lab_test, privileged, servers, transfers};

const MIB: u64 = 1 << 20;
const QUICK: &str = "timeouts: { shutdown: 5s }";

fn restarted(lab: &Lab, extra: &str) -> Signalbox {
    let sb = Signalbox::start(lab, &cut::body(extra));
    sb.wait_healthy(&["east-1", "west-1"]);
    sb
}

fn cut_flows(sb: &Signalbox) -> usize {
    sb.flows("tier=cut&limit=100000").len()
}

/// Two hundred transfers, in the middle of which the process goes in this way.
fn two_hundred_transfers(go: impl FnOnce(&mut Signalbox)) {
    const FLOWS: usize = 200;
    let lab = cut::lab();
    let _servers = transfers::servers(&lab);
    let (_health, mut sb) = cut::start(&lab, QUICK);
    let together = Barrier::new(FLOWS + 1);
    // A quarter of the connections waits for a successor, however long that takes to start.
    let succeeded = AtomicBool::new(false);
    let (done, outcomes) = mpsc::channel();
    std::thread::scope(|scope| {
        for n in 0..FLOWS {
            let (lab, together, succeeded, done) = (&lab, &together, &succeeded, done.clone());
            scope.spawn(move || {
                let stream = lab.client.connect(cut::TCP[n % 2].0);
                together.wait();
                while n % 8 < 2 && !succeeded.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(10));
                }
                done.send(exchange::client(&stream, n as u64, 3 * MIB, 3 * MIB))
                    .unwrap();
            });
        }
        let all = eventually(SOON, || cut_flows(&sb) == FLOWS);
        let ready = cut_flows(&sb);
        // Before the assertion: a failure must not leave the threads waiting.
        together.wait();
        succeeded.store(!all, Ordering::SeqCst);
        assert!(all, "{ready} are cut");
        std::thread::sleep(Duration::from_millis(500));
        let before: Vec<_> = outcomes.try_iter().collect();
        go(&mut sb);
        // No balancer is there for a while.
        std::thread::sleep(Duration::from_secs(1));
        let mut during: Vec<_> = outcomes.try_iter().collect();
        let started = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            Signalbox::start(&lab, &cut::body(QUICK))
        }));
        let adopted = started.as_ref().map_or(0, cut_flows);
        succeeded.store(true, Ordering::SeqCst);
        let sb = started.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // Connections that have ended while the successor started count, too: that may take a while on a busy machine.
        during.extend(outcomes.try_iter());
        let active = || ["east-1", "west-1"].map(|host| sb.host(host)["active_connections"].as_u64().unwrap());
        println!(
            "{} had finished before, {} while nobody was there, {adopted} were adopted, {:?} count as active",
            before.len(),
            during.len(),
            active()
        );
        assert!(
            adopted + before.len() + during.len() >= FLOWS && adopted > 20,
            "{adopted} were adopted"
        );
        let mut rest = FLOWS - before.len() - during.len();
        let later = std::iter::from_fn(|| {
            rest = rest.checked_sub(1)?;
            Some(
                outcomes
                    .recv_timeout(Duration::from_secs(100))
                    .expect("a transfer is stuck"),
            )
        });
        for (n, outcome) in before.into_iter().chain(during).chain(later).enumerate() {
            outcome.unwrap_or_else(|e| panic!("transfer {n}: {e}"));
        }
        expect_none(&sb);
        assert!(eventually(SOON, || active() == [0, 0]), "{:?}", active());
        let finished = sb.metric("signalbox_connections_closed_total{reason=\"finished\"}") as usize;
        assert!(
            (adopted..=FLOWS).contains(&finished),
            "{finished} ends of {adopted} adopted flows are counted"
        );
    });
}

#[lab_test]
fn no_transfer_fails_when_the_process_is_killed() {
    if !cut::lenient() {
        two_hundred_transfers(Signalbox::kill9);
    }
}

#[lab_test]
fn no_transfer_fails_when_the_process_is_stopped() {
    if !cut::lenient() {
        two_hundred_transfers(|sb| {
            sb.term();
            assert_eq!(sb.proc.exit_code(SOON), 0);
        });
    }
}

#[lab_test]
fn a_successor_knows_each_flow_as_well_as_its_predecessor_did() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, mut sb) = cut::start(&lab, "");
    let flows: Vec<_> = doors().iter().map(|door| door.enter_cut(&lab, &sb, &hosts)).collect();
    let before = known(&sb);
    assert_eq!(before.len(), 6);
    for round in 0..3 {
        sb.kill9();
        sb = restarted(&lab, "");
        assert_eq!(known(&sb), before, "round {round}");
        assert_eq!(sb.metric("signalbox_connections_active{tier=\"cut\"}"), 6.0);
        assert_eq!(sb.host("east-1")["active_connections"], 3);
    }
    for (n, (client, host)) in flows.iter().enumerate() {
        ping(client, host);
        ping(host, client);
        match n % 3 {
            0 => finish(client, host),
            1 => socket2::SockRef::from(client).set_linger(Some(Duration::ZERO)).unwrap(),
            _ => socket2::SockRef::from(&**host)
                .set_linger(Some(Duration::ZERO))
                .unwrap(),
        }
    }
    drop(flows);
    expect_none(&sb);
    for (reason, count) in [("finished", 2.0), ("client_reset", 2.0), ("host_reset", 2.0)] {
        let series = format!("signalbox_connections_closed_total{{reason=\"{reason}\"}}");
        assert!(
            eventually(SOON, || sb.metric(&series) == count),
            "{reason}: {}",
            sb.metric(&series)
        );
    }
}

#[lab_test]
fn a_flow_that_ended_while_no_process_ran_does_not_stay_forever() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, mut sb) = cut::start(&lab, "");
    let mut flows: Vec<_> = doors().iter().map(|door| door.enter_cut(&lab, &sb, &hosts)).collect();
    sb.kill9();
    for (client, host) in flows.drain(..3) {
        finish(&client, &host);
    }
    for (client, _host) in flows.drain(..) {
        socket2::SockRef::from(&client)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
    }
    std::thread::sleep(Duration::from_secs(2));
    let sb = restarted(&lab, "");
    expect_none(&sb);
    for host in ["east-1", "west-1"] {
        assert_eq!(sb.host(host)["active_connections"], 0);
    }
}

#[lab_test]
fn a_successor_shares_out_by_what_it_found() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let names = ["east-1", "east-2", "east-3"];
    let hosts: Vec<_> = names
        .iter()
        .map(|name| servers::hand_over(lab.host(name), cut::BACKEND))
        .collect();
    let _health: Vec<_> = names.iter().map(|name| servers::healthy(lab.host(name))).collect();
    let body = config::tcp("", &names).replace("round-robin", "least-connections");
    let mut sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&names);
    let enter = |sb: &Signalbox| {
        let client = lab.client.connect("10.1.0.1:3306");
        expect_cut(sb, &client);
        client
    };
    let clients: Vec<_> = (0..30).map(|_| enter(&sb)).collect();
    let mut held: Vec<Vec<_>> = hosts
        .iter()
        .map(|(_, receiver)| receiver.try_iter().collect())
        .collect();
    assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [10, 10, 10]);
    sb.kill9();
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&names);
    let active = || names.map(|name| sb.host(name)["active_connections"].as_u64().unwrap());
    assert_eq!(active(), [10, 10, 10]);
    // A host that loses all of its flows gets the next ten.
    for host in held[1].drain(..) {
        socket2::SockRef::from(&*host).set_linger(Some(Duration::ZERO)).unwrap();
    }
    assert!(eventually(SOON, || active() == [10, 0, 10]), "{:?}", active());
    let more: Vec<_> = (0..10).map(|_| enter(&sb)).collect();
    assert_eq!(active(), [10, 10, 10]);
    assert_eq!(hosts[1].1.try_iter().count(), 10);
    drop((clients, more, held));
    expect_none(&sb);
    assert_eq!(active(), [0, 0, 0]);
}

#[lab_test]
fn a_successor_uses_no_port_that_an_old_flow_has() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    // The range has so few ports that half of them are taken.
    lab.lb
        .must(&["sysctl", "-qw", "net.ipv4.ip_local_port_range=20000 20599"]);
    let _echoes = ["east-1", "west-1"].map(|host| servers::echo(lab.host(host), cut::BACKEND));
    let (_health, mut sb) = cut::start(&lab, "");
    let connect = |n| {
        lab.client.run(|| {
            (0..n)
                .map(|_| lab::namespace::connect_here(cut::TCP[0].0))
                .collect::<Vec<_>>()
        })
    };
    let old: Vec<_> = connect(300).into_iter().map(Result::unwrap).collect();
    old.iter().for_each(|stream| ping(stream, stream));
    assert!(eventually(SOON, || cut_flows(&sb) == 300), "{}", cut_flows(&sb));
    for round in 0..3 {
        sb.kill9();
        sb = restarted(&lab, "");
        // Flows of the last round that were reset are there for a moment more.
        assert!(
            eventually(SOON, || cut_flows(&sb) == 300),
            "round {round}: {}",
            cut_flows(&sb)
        );
        for _ in 0..10 {
            let new: Vec<_> = connect(50).into_iter().map(Result::unwrap).collect();
            for stream in &new {
                ping(stream, stream);
            }
            let mut ports: Vec<_> = sb
                .flows("tier=cut&limit=1000")
                .iter()
                .map(|f| f["leg_b_local"].to_string())
                .collect();
            let all = ports.len();
            ports.sort();
            ports.dedup();
            assert_eq!(ports.len(), all, "two flows have one port");
            new.iter()
                .for_each(|s| socket2::SockRef::from(s).set_linger(Some(Duration::ZERO)).unwrap());
        }
        old.iter().for_each(|stream| ping(stream, stream));
    }
    drop(old);
    expect_none(&sb);
}

#[lab_test]
fn a_takeover_refuses_nobody_and_disturbs_no_flow() {
    if cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let _routers = (Router::start(&lab, "east-1"), Router::start(&lab, "west-1"));
    let mut sb = restarted(&lab, "");
    let file = lab.dir().join("signalbox.yaml");
    let long: Vec<_> = (0..50).map(|n| lab.client.connect(cut::HTTP[n % 2].0)).collect();
    let ask_long = || {
        for (n, stream) in long.iter().enumerate() {
            let answer = http::get(stream, cut::HTTP[n % 2].1, "/").unwrap();
            assert_eq!(answer.status, 200);
        }
    };
    ask_long();
    for round in 0..3 {
        let (more, calls) = (AtomicBool::new(true), AtomicUsize::new(0));
        let (new, failures) = std::thread::scope(|scope| {
            let call = |n: usize| {
                lab.client.run(|| {
                    let mut failures = Vec::new();
                    while more.load(Ordering::SeqCst) {
                        failures.extend(http::ask_here(cut::HTTP[n].0, cut::HTTP[n].1).err());
                        calls.fetch_add(1, Ordering::SeqCst);
                    }
                    failures
                })
            };
            let callers = [0, 1].map(|n| scope.spawn(move || call(n)));
            std::thread::sleep(Duration::from_millis(300));
            let new = Signalbox::spawn_file(&lab, &format!("successor-{round}"), &file, &["--takeover"]);
            let pid = u64::from(new.proc.pid());
            let answers = eventually(SOON, || {
                let status = new.try_get("/api/v1/status").ok();
                let status = status.and_then(|r| serde_json::from_str::<serde_json::Value>(&r.body).ok());
                status.is_some_and(|status| status["pid"] == pid)
            });
            std::thread::sleep(Duration::from_millis(500));
            more.store(false, Ordering::SeqCst);
            let failures: Vec<_> = callers.into_iter().flat_map(|c| c.join().unwrap()).collect();
            assert!(answers, "the successor answers: {}", new.proc.log());
            (new, failures)
        });
        println!("{} calls during takeover {round}", calls.into_inner());
        assert!(
            failures.is_empty(),
            "{} failed, such as: {}",
            failures.len(),
            failures[0]
        );
        ask_long();
        assert_eq!(sb.proc.exit_code(SOON), 0, "the old process has nothing left to do");
        ask_long();
        sb = new;
        let shown = || sb.flows("tier=cut&limit=1000").len();
        assert!(eventually(SOON, || shown() == 50), "{} of 50 are shown", shown());
        // The last of the short calls may not have been seen to end.
        let active = || ["east-1", "west-1"].map(|host| sb.host(host)["active_connections"].as_u64().unwrap());
        assert!(eventually(SOON, || active() == [25, 25]), "{:?}", active());
    }
    drop(long);
    expect_none(&sb);
}

#[lab_test]
fn a_removed_namespace_leaves_nothing_to_the_next_of_its_number() {
    if cut::lenient() {
        return;
    }
    // The kernel gives the lowest free number to a new namespace, so that the second lab's are those of the first.
    for round in 0..2 {
        let lab = Lab::new();
        let hosts = Hosts::start(&lab);
        println!("round {round}: {:?}", cut::pins(&lab));
        let (_health, mut sb) = cut::start(&lab, "");
        assert_eq!(cut_flows(&sb), 0, "round {round}");
        let flows: Vec<_> = doors().iter().map(|door| door.enter_cut(&lab, &sb, &hosts)).collect();
        flows.iter().for_each(|(client, host)| ping(client, host));
        sb.kill9();
        if round == 1 {
            cut::detach(&lab);
        }
    }
}

/// The successor has counted the flows that it found, and releases no counts of those that its predecessor cut later.
#[test]
fn a_flow_cut_by_a_predecessor_after_takeover_is_not_uncounted() {
    let test = "a_flow_cut_by_a_predecessor_after_takeover_is_not_uncounted";
    if !privileged(test) || cut::lenient() {
        return;
    }
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, _old) = cut::start(&lab, "timeouts: { peek_http: 60s }");
    // A client that sends nothing until the successor serves.
    let door = doors().remove(0);
    let mut client = lab.client.connect(door.at);
    let file = lab.dir().join("signalbox.yaml");
    let new = Signalbox::spawn_file(&lab, "successor", &file, &["--takeover"]);
    let pid = u64::from(new.proc.pid());
    let serves = eventually(SOON, || {
        let status = new.try_get("/api/v1/status").ok();
        let status = status.and_then(|r| serde_json::from_str::<serde_json::Value>(&r.body).ok());
        status.is_some_and(|status| status["pid"] == pid && status["state"] == "serving")
    });
    assert!(serves, "the successor serves: {}", new.proc.log());
    new.wait_healthy(&["east-1", "west-1"]);
    std::io::Write::write_all(&mut client, &door.first).unwrap();
    let host = hosts.accept(door.host, door.port);
    std::io::Read::read_exact(&mut &*host, &mut vec![0; door.first.len()]).unwrap();
    ping(&client, &host);
    expect_cut(&new, &client);
    finish(&client, &host);
    expect_none(&new);
    assert_eq!(new.host(door.host)["active_connections"], 0);
    assert_eq!(new.metric("signalbox_connections_active{tier=\"cut\"}"), 0.0);
    assert_eq!(new.metric("signalbox_connections_current"), 0.0);
}

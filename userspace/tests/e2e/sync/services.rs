//! Connections of layer-4 services in mode `nat` outlive the balancer that made them.

use std::io::Read;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::config::Settings;
use super::pair::{Pair, node_name};
use crate::l4::servers::mariadb::{self, PROGRAMS, Session};
use crate::lab::tiers::ping;
use crate::lab::{Signalbox, available, eventually, signalbox};

/// Time in which the entry of an ended connection, which is kept for 10 s, must be gone.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(40);
/// Addresses and port of the services.
const AT: [&str; 2] = ["10.1.0.10:3306", "[fd00:1::10]:3306"];
const PORT: u16 = 3306;

type Flow = (TcpStream, Arc<TcpStream>);

fn enter(pair: &Pair, at: &str) -> Flow {
    let client = pair.client.connect(at);
    client.set_nodelay(true).unwrap();
    let host = pair.accept(PORT);
    ping(&client, &host);
    ping(&host, &client);
    ping(&client, &host);
    (client, host)
}

fn enter_all(pair: &Pair, count: usize) -> Vec<Flow> {
    AT.iter().flat_map(|at| (0..count).map(|_| enter(pair, at))).collect()
}

/// The host speaks first: nothing has come from the client since the addresses moved.
fn speak(flows: &[Flow]) {
    for (client, host) in flows {
        ping(host, client);
        ping(client, host);
        ping(host, client);
    }
}

fn finish((client, host): &Flow) {
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&**host).read(&mut [0; 8]).unwrap(), 0);
    host.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&*client).read(&mut [0; 8]).unwrap(), 0);
}

/// Waits until a node keeps `count` connections of its peers'.
fn wait_kept(pair: &Pair, node: usize, count: usize) {
    let mut last = Value::Null;
    let is = eventually(REMOVAL_TIMEOUT, || {
        last = pair.balancer(node).json("/api/v1/ha");
        let peers = last["sync"]["peers"].as_array().unwrap();
        let kept: u64 = peers.iter().filter_map(|peer| peer["service_flows"].as_u64()).sum();
        kept == count as u64
    });
    assert!(is, "{} does not keep {count} connections: {last:#}", node_name(node));
}

fn own_flows(balancer: &Signalbox) -> u64 {
    let services = balancer.json("/api/v1/services");
    let flows = |name| signalbox::find(&services["services"], "name", name)["flows"].as_u64();
    ["db4", "db6"].map(|name| flows(name).unwrap_or_default()).iter().sum()
}

/// Waits until a node has `count` own connections.
fn wait_own(pair: &Pair, node: usize, count: usize) {
    let mut last = 0;
    let is = eventually(REMOVAL_TIMEOUT, || {
        last = own_flows(pair.balancer(node));
        last == count as u64
    });
    assert!(is, "{} has {last} connections, not {count}", node_name(node));
}

/// Waits until all nodes lead to the host.
fn wait_reachable(pair: &Pair) {
    for node in pair.running() {
        let is_there = eventually(REMOVAL_TIMEOUT, || {
            let services = pair.balancer(node).json("/api/v1/services");
            ["db4", "db6"].iter().all(|name| {
                let service = signalbox::find(&services["services"], "name", name);
                service["hosts"][0]["reachable"] == true && service["hosts"][0]["share"].as_f64() > Some(99.0)
            })
        });
        assert!(is_there, "{}", pair.balancer(node).json("/api/v1/services"));
    }
}

fn begin(test: &str) -> Option<Pair> {
    begin_with_idle(test, "1h")
}

fn begin_with_idle(test: &str, idle: &'static str) -> Option<Pair> {
    let mut pair = Pair::begin_with_services(test, idle)?;
    pair.hand_over(PORT);
    wait_reachable(&pair);
    Some(pair)
}

/// Source ports that the flows have at the host.
fn source_ports(flows: &[Flow]) -> Vec<u16> {
    let sources: [IpAddr; 2] = ["10.2.0.10".parse().unwrap(), "fd00:2::10".parse().unwrap()];
    let port = |(_, host): &Flow| {
        let source = host.peer_addr().unwrap();
        assert!(sources.contains(&source.ip().to_canonical()), "{source}");
        source.port()
    };
    flows.iter().map(port).collect()
}

#[test]
fn connections_of_services_outlive_their_balancer() {
    let Some(mut pair) = begin("connections_of_services_outlive_their_balancer") else {
        return;
    };
    let flows = enter_all(&pair, 8);
    assert!(
        source_ports(&flows).iter().all(|port| port % 2 == 0),
        "the first node has even ports"
    );
    wait_kept(&pair, 1, flows.len());
    wait_own(&pair, 0, flows.len());
    assert_eq!(
        own_flows(pair.balancer(1)),
        0,
        "they are no flows of the node that keeps them"
    );
    assert_eq!(
        pair.balancer(1).json("/api/v1/services/db4/flows")["service_flows"],
        serde_json::json!([])
    );
    pair.kill(0);
    pair.take(1);
    speak(&flows);
    wait_own(&pair, 1, flows.len());
    let (ended, left) = flows.split_at(flows.len() / 2);
    ended.iter().for_each(finish);
    wait_own(&pair, 1, left.len());
    let more = enter_all(&pair, 8);
    assert!(
        source_ports(&more).iter().all(|port| port % 2 == 1),
        "the second node has odd ports"
    );
    speak(left);
    speak(&more);
}

mod share_6 {
    use super::*;

    #[test]
    fn connections_of_services_move_around_three_nodes() {
        let settings = Settings {
            idle: Some("1h"),
            ..Settings::of(3)
        };
        let begun = Pair::begin_prepared("connections_of_services_move_around_three_nodes", settings, |pair| {
            pair.hand_over(PORT);
        });
        let Some(pair) = begun else { return };
        wait_reachable(&pair);
        let mut flows = enter_all(&pair, 4);
        for node in [1, 2] {
            wait_kept(&pair, node, flows.len());
        }
        for owner in [1, 2, 0] {
            pair.give(owner);
            speak(&flows);
            let more = enter_all(&pair, 1);
            assert!(source_ports(&more).iter().all(|port| usize::from(*port) % 3 == owner));
            flows.extend(more);
            finish(&flows.swap_remove(0));
            for node in 0..3 {
                let (own, kept) = if node == owner {
                    (flows.len(), 0)
                } else {
                    (0, flows.len())
                };
                wait_own(&pair, node, own);
                wait_kept(&pair, node, kept);
            }
        }
        flows.iter().for_each(finish);
        for node in 0..3 {
            wait_own(&pair, node, 0);
            wait_kept(&pair, node, 0);
        }
    }

    /// The idle time of a service is short here, and the standby hears of no packet: it must not end flows that live at
    /// the owner. As the new owner it ends unused flows.
    #[test]
    fn a_standby_does_not_age_what_lives_at_the_owner() {
        let Some(mut pair) = begin_with_idle("a_standby_does_not_age_what_lives_at_the_owner", "2s") else {
            return;
        };
        let flows = enter_all(&pair, 2);
        wait_kept(&pair, 1, flows.len());
        // Three times the idle time: no state of the standby could be waited for.
        for _ in 0..12 {
            speak(&flows);
            std::thread::sleep(Duration::from_millis(500));
        }
        pair.kill(0);
        pair.take(1);
        speak(&flows);
        wait_own(&pair, 1, flows.len());
        wait_own(&pair, 1, 0);
    }

    /// A balancer whose process is killed and starts again still keeps the flows that it has been told about.
    #[test]
    fn a_standby_that_starts_again_keeps_connections_of_services() {
        let Some(mut pair) = begin("a_standby_that_starts_again_keeps_connections_of_services") else {
            return;
        };
        let flows = enter_all(&pair, 4);
        wait_kept(&pair, 1, flows.len());
        if let Some(mut second) = pair.balancers[1].take() {
            second.kill9();
        }
        // One ends while nothing listens: the pass at the next connection reports it.
        finish(&flows[0]);
        wait_own(&pair, 0, flows.len() - 1);
        pair.start(1);
        pair.report(1, "backup");
        wait_kept(&pair, 1, flows.len() - 1);
        pair.kill(0);
        pair.take(1);
        speak(&flows[1..]);
        wait_own(&pair, 1, flows.len() - 1);
    }

    #[test]
    fn service_connections_move_to_and_fro_and_end_at_both_nodes() {
        let Some(mut pair) = begin("service_connections_move_to_and_fro_and_end_at_both_nodes") else {
            return;
        };
        let mut flows = enter_all(&pair, 6);
        wait_kept(&pair, 1, flows.len());
        // Connections that end at the first node are forgotten by the second.
        finish(&flows.swap_remove(0));
        wait_kept(&pair, 1, flows.len());
        pair.give(1);
        speak(&flows);
        wait_own(&pair, 1, flows.len());
        wait_own(&pair, 0, 0);
        // Those begun and ended at the second are known to the first.
        flows.extend(enter_all(&pair, 1));
        finish(&flows.swap_remove(0));
        wait_kept(&pair, 0, flows.len());
        pair.give(0);
        speak(&flows);
        wait_own(&pair, 0, flows.len());
        // A node that comes back without its knowledge gets all again.
        wait_kept(&pair, 1, flows.len());
        pair.kill(0);
        pair.take(1);
        speak(&flows);
        pair.revive(0);
        pair.wait_synced();
        wait_kept(&pair, 0, flows.len());
        pair.give(0);
        speak(&flows);
        wait_own(&pair, 0, flows.len());
        flows.iter().for_each(finish);
        wait_own(&pair, 0, 0);
        wait_kept(&pair, 1, 0);
    }
}

/// A transaction that is open while its balancer dies continues at the other one.
#[test]
fn a_transaction_outlives_its_balancer() {
    let test = "a_transaction_outlives_its_balancer";
    if !available(test, &PROGRAMS) {
        return;
    }
    let Some(mut pair) = Pair::begin_with_services(test, "1h") else {
        return;
    };
    wait_reachable(&pair);
    let _server = mariadb::server_in(&pair.host, pair.dir(), "host", 1);
    let table = "create database test; create table test.notes (session int) engine=innodb";
    mariadb::once(&pair.host, "127.0.0.1", table).unwrap();
    let begin = |number: usize| {
        let to = ["10.1.0.10", "fd00:1::10"][number % 2];
        let mut session = Session::open_in(&pair.client, pair.dir(), to);
        let begun = format!("begin; insert into test.notes values ({number}); select connection_id()");
        let connection = session.ask(&begun).unwrap();
        (session, connection)
    };
    let mut sessions: Vec<_> = (0..6).map(begin).collect();
    wait_kept(&pair, 1, sessions.len());
    pair.kill(0);
    pair.take(1);
    for (number, (session, connection)) in sessions.iter_mut().enumerate() {
        let sql = format!("select connection_id(), count(*) from test.notes where session = {number}; commit");
        assert_eq!(session.ask(&sql).unwrap(), format!("{connection}\t1"));
    }
    let count = mariadb::once(&pair.client, "10.1.0.10", "select count(*) from test.notes");
    assert_eq!(count.as_deref(), Some("6"), "all are committed");
}

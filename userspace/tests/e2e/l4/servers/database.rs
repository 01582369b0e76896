//! Transactions through the balancer, while their hosts and other hosts come and go.

use std::collections::BTreeMap;

use super::east::{self, ALL, rotate, wait_shares};
use super::mariadb::{self, PROGRAMS, Session, once};
use crate::lab::{Lab, Proc, Signalbox, available, privileged};

const VIPS: [&str; 2] = ["10.1.0.1", "fd00:1::1"];

fn body(hosts: &[&str]) -> String {
    east::body(&east::service("db", "tcp", 3306, ""), 3306, hosts)
}

fn start() -> (Lab, BTreeMap<&'static str, Proc>, Signalbox) {
    let lab = Lab::new();
    let mut servers = BTreeMap::new();
    for (name, number) in ALL.into_iter().zip(1..) {
        servers.insert(name, mariadb::server(&lab, name, number));
        let table = "create database test; create table test.notes (session int, step int) engine=innodb";
        once(lab.host(name), "127.0.0.1", table).unwrap();
    }
    let sb = east::start(&lab, &body(&ALL));
    (lab, servers, sb)
}

/// The server that a new connection reaches.
fn reached(lab: &Lab, to: &str) -> u32 {
    let answer = once(&lab.client, to, "select @@server_id");
    answer
        .unwrap_or_else(|| panic!("no connection to {to}"))
        .parse()
        .unwrap()
}

/// A transaction that stays open: only its own connection to its own server sees its writes.
struct Held {
    session: Session,
    number: usize,
    server: u32,
    /// The server's number of the connection: another number means another connection.
    connection: String,
    steps: usize,
}

impl Held {
    fn begin(lab: &Lab, number: usize, to: &str) -> Self {
        let mut session = Session::open(lab, to);
        let who = session.ask("begin; select @@server_id, connection_id()").unwrap();
        let (server, connection) = who.split_once('\t').unwrap();
        let (server, connection) = (server.parse().unwrap(), connection.to_owned());
        Self {
            session,
            number,
            server,
            connection,
            steps: 0,
        }
    }

    /// Writes another row, and looks whether all before are there.
    fn step(&mut self) -> Result<(), String> {
        let (number, step) = (self.number, self.steps);
        let answer = self.session.ask(&format!(
            "insert into test.notes values ({number}, {step}); \
             select @@server_id, connection_id(), count(*) from test.notes where session = {number}"
        ))?;
        self.steps += 1;
        assert_eq!(answer, format!("{}\t{}\t{}", self.server, self.connection, self.steps));
        Ok(())
    }
}

/// Transactions until each server has two by each family.
fn hold(lab: &Lab) -> Vec<Held> {
    let mut held = Vec::<Held>::new();
    for to in VIPS {
        let first = held.len();
        let enough = |held: &[Held]| (1..=3).all(|server| held.iter().filter(|h| h.server == server).count() >= 2);
        while !enough(&held[first..]) {
            assert!(
                held.len() < first + 100,
                "a hundred connections to {to} have not reached all servers"
            );
            held.push(Held::begin(lab, held.len(), to));
        }
    }
    held
}

fn all_go_on(held: &mut [Held]) {
    for transaction in held {
        transaction.step().unwrap();
    }
}

#[test]
fn transactions_go_on_as_hosts_are_drained_removed_and_killed() {
    const NAME: &str = "transactions_go_on_as_hosts_are_drained_removed_and_killed";
    if !privileged(NAME) || !available(NAME, &PROGRAMS) {
        return;
    }
    let (lab, mut servers, sb) = start();
    let mut held = hold(&lab);
    all_go_on(&mut held);
    let reached_none_of = |gone: &[u32]| {
        for to in VIPS {
            for _ in 0..15 {
                let server = reached(&lab, to);
                assert!(!gone.contains(&server), "{to}: a new connection reached {server}");
            }
        }
    };
    // Drained: nothing new, and existing connections continue.
    rotate(&sb, "out", "east-1");
    wait_shares(&sb, &["east-2", "east-3"]);
    reached_none_of(&[1]);
    all_go_on(&mut held);
    // Another host is removed from the file in the meantime.
    sb.reload(&body(&["east-1", "east-3"]));
    wait_shares(&sb, &["east-3"]);
    reached_none_of(&[1, 2]);
    all_go_on(&mut held);
    sb.reload(&body(&ALL));
    rotate(&sb, "in", "east-1");
    wait_shares(&sb, &ALL);
    all_go_on(&mut held);
    // Killed: its clients get an error, others notice nothing.
    servers.get_mut("east-2").unwrap().kill();
    wait_shares(&sb, &["east-1", "east-3"]);
    reached_none_of(&[2]);
    for transaction in held.iter_mut().filter(|h| h.server == 2) {
        let error = transaction.step().unwrap_err();
        assert!(
            error.contains("Lost connection") || error.contains("gone away"),
            "{error}"
        );
    }
    held.retain(|h| h.server != 2);
    all_go_on(&mut held);
    // The transaction's rows are invisible to others before the end, and then all of them are there.
    let rows = |host: &str| once(lab.host(host), "127.0.0.1", "select count(*) from test.notes").unwrap();
    for (host, server) in [("east-1", 1), ("east-3", 3)] {
        assert_eq!(rows(host), "0");
        let mut steps = 0;
        for transaction in held.iter_mut().filter(|h| h.server == server) {
            assert_eq!(transaction.session.ask("commit; select 'done'").unwrap(), "done");
            steps += transaction.steps;
        }
        assert_eq!(rows(host), steps.to_string());
    }
    // Back, and uncommitted data is not there.
    servers.insert("east-2", mariadb::server(&lab, "east-2", 2));
    wait_shares(&sb, &ALL);
    assert_eq!(rows("east-2"), "0");
    assert!((0..100).any(|_| reached(&lab, "10.1.0.1") == 2));
}

#[test]
fn statements_and_answers_of_megabytes_arrive_whole() {
    const NAME: &str = "statements_and_answers_of_megabytes_arrive_whole";
    if !privileged(NAME) || !available(NAME, &PROGRAMS) {
        return;
    }
    let (lab, _servers, _sb) = start();
    for to in VIPS {
        let mut session = Session::open(&lab, to);
        let text: String = (0..600_000u64).map(|n| char::from(b'a' + (n * n % 26) as u8)).collect();
        for _ in 0..3 {
            // The answer has all sent bytes, and neither end has waited for the other.
            assert!(session.ask(&format!("select concat('{text}', '{text}')")).unwrap() == [&*text, &*text].concat());
        }
    }
}

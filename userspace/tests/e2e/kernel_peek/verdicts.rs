//! Answers of `explain` compared with the real paths of connections, for random configurations, names and clients.

use std::io::{Read as _, Write as _};

use crate::lab;

use lab::dice::Dice;
use lab::topology::OTHER_CLIENTS;
use lab::{Lab, Router, SOON, Signalbox, config, eventually, hello};

use super::{PEEK, start_with};

const HOSTS: [&str; 4] = ["east-1", "east-2", "west-1", "west-2"];
/// Names of 62 and 63 bytes: the program reads the first.
const LONG: [&str; 2] = [
    "a23456789012345678901234567890123456789012345678901234567.test",
    "a234567890123456789012345678901234567890123456789012345678.test",
];
/// Questions for each configuration, and how often in a row the answers must be right.
const ASKED: usize = 2;
const AGREED: usize = 2;

#[test]
fn explain_names_the_path_that_a_connection_takes() {
    compare("explain_names_the_path_that_a_connection_takes", 1, 15);
}

mod share_4 {
    use std::time::{SystemTime, UNIX_EPOCH};

    /// Each run has other configurations; the seed is shown with a failure.
    #[test]
    fn explain_is_right_about_500_random_configurations() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        super::compare("explain_is_right_about_500_random_configurations", now.as_secs(), 500);
    }
}

/// A connection to a listener: of a client, for a name.
struct Asked {
    client: &'static str,
    listener: &'static str,
    name: &'static str,
}

fn compare(test: &str, seed: u64, configurations: usize) {
    let Some(lab) = super::lab(test) else { return };
    println!("seed {seed}");
    let _routers = Router::start_all(&lab, &HOSTS);
    let mut dice = Dice(seed);
    let mut maker = Maker {
        dice: &mut dice,
        is_plain: true,
    };
    let sb = start_with(&lab, &maker.configuration(), 2);
    maker.is_plain = false;
    sb.wait_healthy(&HOSTS);
    let mut taken = [0, 0];
    for number in 0..configurations {
        let body = maker.configuration();
        println!("configuration {number}");
        sb.reload(&body);
        for _ in 0..ASKED {
            let asked = ask(maker.dice);
            let Asked { client, listener, name } = asked;
            let mut seen = Vec::new();
            // A table may be behind the configuration for a moment, and the hosts' options are learnt from their answers.
            let agree = eventually(SOON, || {
                seen.push((explained(&sb, &asked), path(&lab, &sb, &asked)));
                let last = seen.last_chunk::<AGREED>();
                last.is_some_and(|last| last.iter().all(|of| of.0.is_some() && of.0 == of.1 && of == &last[0]))
            });
            assert!(
                agree,
                "{client} asks {listener} for {name}; routed in the kernel, as explained and in truth: {seen:?}\n{body}\n{}",
                sb.get(&format!("/api/v1/explain?host={name}&client={client}")).1
            );
            taken[usize::from(seen.last().is_some_and(|of| of.1 == Some(true)))] += 1;
        }
    }
    println!("by a worker: {}, in the kernel: {}", taken[0], taken[1]);
    // A generator that only makes one kind proves nothing.
    assert!(taken.iter().all(|count| *count >= configurations / 4), "{taken:?}");
}

/// Maker of configurations.
struct Maker<'d> {
    dice: &'d mut Dice,
    /// Whether all names are routed in the kernel.
    is_plain: bool,
}

impl Maker<'_> {
    /// Lines, each with the number of configurations of which one has it.
    fn some(&mut self, lines: &[(usize, &str)]) -> String {
        let chosen = lines
            .iter()
            .filter(|(sides, _)| !self.is_plain && self.dice.hits(*sides));
        chosen.map(|(_, line)| *line).collect()
    }

    fn configuration(&mut self) -> String {
        let global = self.some(&[
            (8, "limits: { per_source: { concurrent: 100000 } }\n"),
            (8, "log: { connections: { to: /dev/null } }\n"),
            (6, "unmatched: { cluster: east }\n"),
        ]);
        let http = self.some(&[
            (16, ", routing: request"),
            (16, ", proxy_protocol: { trusted: [10.1.0.9/32] }"),
            (16, ", datapath: { cut: off }"),
            (8, ", shield: { limits: { concurrent: 100000 } }"),
        ]);
        let tls = self.some(&[
            (16, ", proxy_protocol: { trusted: [10.1.0.9/32] }"),
            (16, ", datapath: { peek: userspace }"),
        ]);
        let listeners = format!(
            "listeners:\n  - {{ name: http, protocol: http, listen: [\"10.1.0.1:80\", \"[fd00:1::1]:80\"]{http} }}\n  - {{ \
             name: https, protocol: tls, listen: [\"10.1.0.1:443\", \"[fd00:1::1]:443\"]{tls} }}\n"
        );
        let clusters: String = [
            ("east", &["east-1", "east-2"][..]),
            ("west", &["west-2"]),
            ("six", &["west-1"]),
        ]
        .map(|(name, hosts)| self.cluster(name, hosts))
        .concat();
        let names = ["a.test", "\"*.test\"", LONG[0], LONG[1]];
        let names = if self.is_plain { &names[..1] } else { &names };
        let routes: String = names.iter().map(|name| self.route(name)).collect();
        format!("{PEEK}\n{global}{listeners}clusters:\n{clusters}routes:\n{routes}")
    }

    fn cluster(&mut self, name: &str, hosts: &[&str]) -> String {
        let balance = self
            .dice
            .pick(&["round-robin", "least-connections", "random-two", "maglev"]);
        let balance = format!("balance: {balance}\n");
        let keys = balance
            + &self.some(&[
                (12, "h2c: true\n"),
                (5, "max_host_connections: 1000\n"),
                (6, "proxy_protocol: v2\n"),
            ]);
        let keys: Vec<&str> = keys.lines().collect();
        config::cluster(name, &keys, hosts)
    }

    /// A route, and perhaps one for a path of its name.
    fn route(&mut self, name: &str) -> String {
        let weights = match if self.is_plain { 0 } else { self.dice.roll(12) } {
            0..=4 => "east: 1",
            5..=7 => "east: 10, west: 80",
            8 => "six: 1",
            9 => "east: 3, six: 1",
            10 => "east: 97, west: 89",
            _ => "west: 1, east: 0",
        };
        let allow = self.dice.pick(&["10.1.0.2/32, \"fd00::/16\"", "10.1.0.0/16"]);
        let keys = self.some(&[
            (5, &format!(", allow: [{allow}]")),
            (10, ", prefer: [{ cluster: west, clients: [10.1.0.3/32] }]"),
            (6, ", connections: { concurrent: 10000 }"),
            (20, ", headers: { request: { set: { X-Env: prod } } }"),
            (20, ", tls: { insecure: redirect }"),
            (12, ", drain: 60s"),
            (24, ", affinity: { cookie: sb }"),
        ]);
        let path = format!("  - {{ host: {name}, path: /x, clusters: {{ east: 1 }} }}\n");
        format!("  - {{ host: {name}, clusters: {{ {weights} }}{keys} }}\n") + &self.some(&[(20, &path)])
    }
}

fn ask(dice: &mut Dice) -> Asked {
    let names = ["a.test", "w.test", LONG[0]];
    let other_names = ["b.w.test", "none.example", LONG[1]];
    Asked {
        client: dice.pick(&["10.1.0.2", "10.1.0.2", OTHER_CLIENTS[0], OTHER_CLIENTS[0], "fd00:1::2"]),
        listener: dice.pick(&["http", "https"]),
        name: if dice.hits(4) {
            dice.pick(&other_names)
        } else {
            dice.pick(&names)
        },
    }
}

/// Whether the kernel routes a connection, as explained. `None` if the answer has no such listener.
fn explained(sb: &Signalbox, asked: &Asked) -> Option<bool> {
    let answer = sb.json(&format!("/api/v1/explain?host={}&client={}", asked.name, asked.client));
    let listeners = answer["listeners"].as_array()?;
    let listener = listeners.iter().find(|found| found["listener"] == asked.listener)?;
    listener["datapath"]["kernel_peek"]["routed"].as_bool()
}

/// Connects, and returns whether the kernel has routed the connection. `None` if the connection is counted on no path.
fn path(lab: &Lab, sb: &Signalbox, asked: &Asked) -> Option<bool> {
    let before = counts(sb, asked.listener);
    let (port, first) = match asked.listener {
        "http" => (
            80,
            format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", asked.name).into_bytes(),
        ),
        _ => (443, hello::records(&hello::short_client_hello(asked.name), 1)),
    };
    let (from, to) = if asked.client.contains(':') {
        (format!("[{}]", asked.client), format!("[fd00:1::1]:{port}"))
    } else {
        (asked.client.to_owned(), format!("10.1.0.1:{port}"))
    };
    let mut client = lab.client.connect_from(&from, &to);
    let _ = client.write_all(&first);
    // An answer, an alert or the end: the connection has been routed or refused.
    let _ = client.read(&mut [0; 1024]);
    let mut counted = None;
    let _ = eventually(SOON, || {
        let now = counts(sb, asked.listener);
        let more = [now[0] - before[0], now[1] - before[1]];
        // Both: a late count of the connection before.
        counted = (more[0] + more[1] == 1.0).then_some(more[0] == 1.0);
        more[0] + more[1] > 0.0
    });
    counted
}

/// Connections of a listener that the kernel has routed, and those that workers have.
fn counts(sb: &Signalbox, listener: &str) -> [f64; 2] {
    let metrics = sb.get("/metrics").1;
    let of = |path: &str| {
        let start = format!("signalbox_connections_path_total{{listener=\"{listener}\",path=\"{path}\"");
        let lines = metrics.lines().filter(|line| line.starts_with(&start));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum()
    };
    [of("kernel"), of("worker")]
}

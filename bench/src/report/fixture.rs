//! Made-up results for the tests of reports.

use super::Report;
use super::row::Row;
use crate::bpf::Program;
use crate::campaign::Series;
use crate::campaign::programs::Programs;
use crate::contender::Setup;
use crate::facts::Facts;
use crate::measure::{Change, Latency, Memory, Sample};
use crate::scenario::{ALL, CONDITIONS, HTTP, Scenario, ScenarioKind};
use crate::suite::Suite;

/// A report with all made-up results.
pub(super) fn report() -> Report {
    let facts = Facts {
        cpu: "CPU".into(),
        cpus: 2,
        memory_mib: 1,
        kernel: "6.1".into(),
        versions: [("haproxy", "HAProxy 3.2.1"), ("envoy", "not installed: no network")]
            .map(|(contender, version)| (contender.to_owned(), version.to_owned()))
            .into(),
        hosts: "nginx".into(),
        signalbox: "signalbox".into(),
        revision: "abc".into(),
        conditions: "no condition".into(),
        date: "2026-11-28".into(),
        arguments: vec!["--rounds".into(), "2".into()],
        rounds: 2,
        seconds: 1.0,
        warm_up_seconds: 1.0,
        started: 0,
        busy_before: 0.0,
    };
    let program = Program {
        id: 7,
        name: "steer".into(),
        runs: 4,
        nanos: 100,
    };
    Report {
        facts,
        seconds_taken: 1.0,
        rows: rows(),
        programs: vec![Programs {
            scenario: "bulk-4",
            contender: "signalbox-auto".into(),
            threads: 2,
            programs: vec![program],
        }],
    }
}

/// Rows of every scenario with six contenders, of which one is absent. CPU for each unit: 10 with plain forwarding, more with a balancer.
pub(super) fn rows() -> Vec<Row> {
    let all: Vec<_> = ALL.iter().chain(&HTTP).chain(&CONDITIONS).flat_map(series).collect();
    all.iter().map(|series| Row::new(series, &all)).collect()
}

fn series(scenario: &Scenario) -> Vec<Series> {
    let one = |name: &str, threads, rate, cpu| Series {
        scenario: *scenario,
        setup: Setup {
            contender: name.parse().unwrap(),
            threads,
            suite: Suite::Connections,
            signalbox: "signalbox".into(),
        },
        samples: (0..2).map(|round| (round, sample(scenario, rate, cpu))).collect(),
        absence: None,
    };
    let absent = |name: &str, why: &str| Series {
        samples: Vec::new(),
        absence: Some(why.into()),
        ..one(name, 2, 1.0, 1.0)
    };
    vec![
        one("direct", 0, 4000.0, 10.0),
        one("haproxy", 1, 1000.0, 50.0),
        one("haproxy", 2, 2000.0, 90.0),
        one("nginx", 2, 1900.0, 85.0),
        one("envoy", 2, 4500.0, 15.0),
        one("traefik", 2, 1600.0, 95.0),
        absent("caddy", "not supported: Caddy passes no TLS on"),
        one("signalbox-auto", 1, 1500.0, 20.0),
        one("signalbox-auto", 2, 3000.0, 20.0),
    ]
}

fn sample(scenario: &Scenario, rate: f64, cpu: f64) -> Sample {
    let latency = Latency {
        mean: 1e6 / rate,
        p50: 1e6 / rate,
        p99: 3e6 / rate,
        p999: 9e6 / rate,
        slowest: 12e6 / rate,
    };
    let idle = scenario.is_of_memory();
    let change = matches!(scenario.kind, ScenarioKind::Change(_));
    Sample {
        work: rate,
        rate: if idle || change { f64::NAN } else { rate },
        gbit: rate / 100.0,
        offered: matches!(scenario.kind, ScenarioKind::Latency(_)).then_some(rate),
        latency: (!idle && !change && !matches!(scenario.kind, ScenarioKind::Bulk(_))).then_some(latency),
        cpu,
        own_cpu: cpu / 2.0,
        memory: idle.then_some(Memory {
            resident: rate,
            kernel: rate,
        }),
        change: change.then_some(Change {
            until_all: 1e6 / rate,
            worst: 1e6 / rate,
            failed: 0.0,
            resident: rate,
        }),
        errors: Default::default(),
        ..Sample::failed(String::new())
    }
}

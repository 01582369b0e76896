//! Scenarios: a list, and for each kind a function from a running contender to a [`Sample`].

mod change;
mod failure;
mod netfilter;
mod run;

pub(crate) use failure::Failure;
pub(crate) use netfilter::Ruleset;

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::contender::RunningContender;
use crate::hosts::Hosts;
use crate::lab::{HOSTS, Lab, TEN_HOSTS};
use crate::measure::Sample;

/// A scenario.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Scenario {
    /// Name for the command line and the results.
    pub(crate) name: &'static str,
    /// Title for readers.
    pub(crate) title: &'static str,
    /// Kind of load.
    pub(crate) kind: ScenarioKind,
    /// Where the load enters.
    pub(crate) entry: Entry,
    /// Condition that all contenders work under.
    pub(crate) condition: Condition,
}

/// Conditions that take signalbox's fast path away, and none. All contenders are configured to do the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Condition {
    None,
    /// The balancer's namespace has rules of a packet filter, and tracks connections.
    Netfilter,
    /// Each connection or request is logged to a file.
    AccessLog,
    /// Hosts get a PROXY header.
    ProxyProtocol,
    /// Each source is limited, and each route.
    Limits,
    /// Only clients of a list of a thousand prefixes are served.
    Lists,
    /// All of these at once, with the rules of a thousand services.
    Site,
}

impl Condition {
    /// Flags of the templates.
    pub(crate) const fn flags(self) -> &'static [&'static str] {
        match self {
            Self::None | Self::Netfilter => &[],
            Self::AccessLog => &["access-log"],
            Self::ProxyProtocol => &["proxy-protocol"],
            Self::Limits => &["limits"],
            Self::Lists => &["lists"],
            Self::Site => &["access-log", "proxy-protocol", "limits", "lists"],
        }
    }
}

/// Entry of a load: port, name and TLS.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Entry {
    /// Without TLS.
    Plain,
    /// In TLS. Each connection makes a full handshake.
    Tls,
    /// In TLS, resuming sessions.
    ResumedTls,
    /// In TLS, for the name that balancers re-encrypt.
    Reencrypted,
    /// In TLS, for the name with an RSA certificate.
    RsaTls,
    /// HTTP/2 in TLS.
    Http2,
}

/// Kinds of load, with their number of connections at a time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ScenarioKind {
    /// A connection for each request.
    Unique(usize),
    /// Persistent connections, in a closed loop.
    Reused(usize),
    /// Persistent connections, with requests at a fixed rate.
    Latency(usize),
    /// A connection with a TLS handshake for each request.
    Tls(usize),
    /// Persistent connections, with answers of 1 MiB.
    Large(usize),
    /// A connection for each request, with answers of 1 MiB.
    UniqueLarge(usize),
    /// Closed loop of answers of 64 MiB, each over a separate connection, over this many at once.
    UniqueHuge(usize),
    /// Bulk streams to the hosts.
    Bulk(usize),
    /// Idle connections.
    Idle(usize),
    /// Idle WebSockets.
    IdleTunnels(usize),
    /// This many further routes, while new connections come at a low rate.
    Change(usize),
    /// Connections of HTTP/2, each with [`h2load::STREAMS`](crate::load::h2load::STREAMS) streams at a time.
    Streams(usize),
    /// WebSockets, with an echo of 64 bytes at a time in each.
    Tunnels(usize),
    /// New connections per second, each kept for a while after its request.
    Openings(u32),
    /// New connections per second as with `Openings`, beside a flood of [`FLOOD_RATE`] SYNs per second.
    Flooded(u32),
    /// [`FAILING_RATE`] new connections per second, and one of ten hosts that fails when the measurement begins.
    FailingHost(Failure),
    /// Unique connections, one at a time, and the times between their packets.
    Anatomy,
}

const fn scenario(name: &'static str, title: &'static str, kind: ScenarioKind) -> Scenario {
    let entry = match kind {
        ScenarioKind::Tls(_) => Entry::Tls,
        _ => Entry::Plain,
    };
    Scenario {
        name,
        title,
        kind,
        entry,
        condition: Condition::None,
    }
}

const fn under(condition: Condition, name: &'static str, title: &'static str) -> Scenario {
    Scenario {
        condition,
        ..scenario(name, title, ScenarioKind::Unique(100))
    }
}

const fn over(entry: Entry, scenario: Scenario) -> Scenario {
    Scenario { entry, ..scenario }
}

const OPENINGS_1000: Scenario = scenario(
    "openings-1000",
    "1000 new connections per second, each kept for half a second",
    ScenarioKind::Openings(1000),
);

/// New connections per second while a host fails.
const FAILING_RATE: u32 = 1000;

/// SYNs of a flood per second.
pub(crate) const FLOOD_RATE: u32 = 50_000;

/// Scenarios, in the order in which they run.
pub(crate) const ALL: [Scenario; 15] = [
    scenario("unique-1", "Unique connections, 1 at a time", ScenarioKind::Unique(1)),
    scenario(
        "unique-100",
        "Unique connections, 100 at a time",
        ScenarioKind::Unique(100),
    ),
    scenario(
        "unique-500",
        "Unique connections, 500 at a time",
        ScenarioKind::Unique(500),
    ),
    OPENINGS_1000,
    scenario(
        "flood-1000",
        "1000 new connections per second, beside a flood of 50 000 forged SYNs per second",
        ScenarioKind::Flooded(1000),
    ),
    scenario("reused-1", "Reused connections: 1", ScenarioKind::Reused(1)),
    scenario("reused-100", "Reused connections: 100", ScenarioKind::Reused(100)),
    scenario("reused-500", "Reused connections: 500", ScenarioKind::Reused(500)),
    scenario(
        "latency-half",
        "Reused connections: 100, at half the rate",
        ScenarioKind::Latency(100),
    ),
    scenario("tls-100", "TLS handshakes, 100 at a time", ScenarioKind::Tls(100)),
    scenario("large-4", "Answers of 1 MiB over 4 connections", ScenarioKind::Large(4)),
    scenario("bulk-1", "Bulk, client to host: 1 stream", ScenarioKind::Bulk(1)),
    scenario("bulk-4", "Bulk, client to host: 4 streams", ScenarioKind::Bulk(4)),
    scenario(
        "idle-plain-9000",
        "Memory of 9000 idle connections, plain",
        ScenarioKind::Idle(IDLE),
    ),
    over(
        Entry::Tls,
        scenario(
            "idle-tls-9000",
            "Memory of 9000 idle connections in TLS that is passed through",
            ScenarioKind::Idle(IDLE),
        ),
    ),
];

/// Number of idle connections. 10 000 would exceed the limit of 20 000 descriptors of a process that needs two for
/// each, beside listeners, checks and pipes.
const IDLE: usize = 9000;

/// New connections under each condition, in the order in which they run.
pub(crate) const CONDITIONS: [Scenario; 7] = [
    under(Condition::None, "none", "New connections, 100 at a time: no condition"),
    under(
        Condition::Netfilter,
        "netfilter",
        "New connections, 100 at a time: rules of a packet filter, connections tracked",
    ),
    under(
        Condition::AccessLog,
        "access-log",
        "New connections, 100 at a time: access log to a file",
    ),
    under(
        Condition::ProxyProtocol,
        "proxy-protocol",
        "New connections, 100 at a time: PROXY header to hosts",
    ),
    under(
        Condition::Limits,
        "limits",
        "New connections, 100 at a time: limits per source and per route",
    ),
    under(
        Condition::Lists,
        "lists",
        "New connections, 100 at a time: a list of 1000 prefixes of clients",
    ),
    under(
        Condition::Site,
        "site",
        "New connections, 100 at a time: all of these at once, and rules of 1000 services",
    ),
];

/// Scenarios of HTTP by request, in the order in which they run.
pub(crate) const HTTP: [Scenario; 21] = [
    scenario(
        "plain-unique-100",
        "Plain, unique connections: 100",
        ScenarioKind::Unique(100),
    ),
    scenario(
        "plain-reused-64",
        "Plain, reused connections: 64",
        ScenarioKind::Reused(64),
    ),
    scenario(
        "plain-large-4",
        "Plain, 1 MiB over 4 connections",
        ScenarioKind::Large(4),
    ),
    scenario(
        "plain-unique-large-4",
        "Plain, 1 MiB over unique connections: 4",
        ScenarioKind::UniqueLarge(4),
    ),
    scenario(
        "plain-unique-huge-4",
        "Plain, 64 MiB over unique connections: 4",
        ScenarioKind::UniqueHuge(4),
    ),
    over(
        Entry::Tls,
        scenario("edge-full-100", "Edge, full handshakes: 100", ScenarioKind::Unique(100)),
    ),
    over(
        Entry::ResumedTls,
        scenario(
            "edge-resumed-100",
            "Edge, resumed sessions: 100",
            ScenarioKind::Unique(100),
        ),
    ),
    over(
        Entry::Tls,
        scenario(
            "edge-reused-64",
            "Edge, reused connections: 64",
            ScenarioKind::Reused(64),
        ),
    ),
    over(
        Entry::Tls,
        scenario("edge-large-4", "Edge, 1 MiB over 4 connections", ScenarioKind::Large(4)),
    ),
    over(
        Entry::RsaTls,
        scenario(
            "rsa-full-100",
            "Edge, full handshakes with RSA-2048: 100",
            ScenarioKind::Unique(100),
        ),
    ),
    over(
        Entry::Tls,
        scenario(
            "edge-latency",
            "Edge, reused connections: 64, at half the rate",
            ScenarioKind::Latency(64),
        ),
    ),
    over(
        Entry::Http2,
        scenario(
            "http2-streams-10",
            "Edge, HTTP/2: 10 connections of 32 streams",
            ScenarioKind::Streams(10),
        ),
    ),
    scenario(
        "websocket-1000",
        "WebSocket, echoes of 64 bytes: 1000",
        ScenarioKind::Tunnels(1000),
    ),
    over(
        Entry::Reencrypted,
        scenario(
            "reencrypt-full-100",
            "Re-encrypt, full handshakes: 100",
            ScenarioKind::Unique(100),
        ),
    ),
    over(
        Entry::Reencrypted,
        scenario(
            "reencrypt-reused-64",
            "Re-encrypt, reused connections: 64",
            ScenarioKind::Reused(64),
        ),
    ),
    over(
        Entry::Reencrypted,
        scenario(
            "reencrypt-large-4",
            "Re-encrypt, 1 MiB over 4 connections",
            ScenarioKind::Large(4),
        ),
    ),
    scenario(
        "idle-http1-9000",
        "Memory of 9000 idle connections of HTTP/1, by request",
        ScenarioKind::Idle(IDLE),
    ),
    over(
        Entry::Tls,
        scenario(
            "idle-edge-9000",
            "Memory of 9000 idle connections in TLS",
            ScenarioKind::Idle(IDLE),
        ),
    ),
    over(
        Entry::Http2,
        scenario(
            "idle-http2-9000",
            "Memory of 9000 idle connections of HTTP/2",
            ScenarioKind::Idle(IDLE),
        ),
    ),
    scenario(
        "idle-websocket-9000",
        "Memory of 9000 idle WebSockets",
        ScenarioKind::IdleTunnels(IDLE),
    ),
    scenario("change-1000", "Change: 1000 further routes", ScenarioKind::Change(1000)),
];

/// Scenarios of a node whose flows another one gets, in the order in which they run.
pub(crate) const HA: [Scenario; 4] = [
    ALL[0],
    ALL[1],
    OPENINGS_1000,
    scenario(
        "openings-5000",
        "5000 new connections per second, each kept for half a second",
        ScenarioKind::Openings(5000),
    ),
];

/// Scenarios of a host that fails, in the order in which they run.
pub(crate) const FAILURES: [Scenario; 3] = [
    scenario(
        "all-of-10",
        "1000 new connections per second to ten hosts",
        ScenarioKind::FailingHost(Failure::None),
    ),
    scenario(
        "refusing-1of10",
        "1000 new connections per second to ten hosts, of which one begins to refuse connections",
        ScenarioKind::FailingHost(Failure::Refuses),
    ),
    scenario(
        "blackhole-1of10",
        "1000 new connections per second to ten hosts, of which one falls silent",
        ScenarioKind::FailingHost(Failure::IsSilent),
    ),
];

/// The anatomy of connections.
pub(crate) const ANATOMY: [Scenario; 1] = [scenario(
    "anatomy",
    "Unique connections, 1 at a time: the time of each part",
    ScenarioKind::Anatomy,
)];

/// Context of a scenario: network, hosts and contender.
pub(crate) struct Bench<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) hosts: &'a Hosts,
    pub(crate) running: &'a RunningContender,
    pub(crate) warm_up: Duration,
    pub(crate) length: Duration,
    /// Requests per second, for the scenarios with a fixed rate.
    pub(crate) offered: f64,
}

/// Scenario that gives `latency-half` its rate.
pub(crate) const CLOSED_LOOP: &str = "reused-100";
/// Scenario that gives `edge-latency` its rate.
const CLOSED_LOOP_IN_TLS: &str = "edge-reused-64";

impl Scenario {
    /// Name of the scenario whose rate is halved for a scenario with a fixed rate.
    pub(crate) const fn closed_loop(&self) -> &'static str {
        match self.entry {
            Entry::Plain => CLOSED_LOOP,
            _ => CLOSED_LOOP_IN_TLS,
        }
    }

    /// Addresses of the hosts for HTTP.
    pub(crate) const fn hosts(&self) -> &'static [Ipv4Addr] {
        match self.kind {
            ScenarioKind::FailingHost(_) => &TEN_HOSTS,
            _ => &HOSTS,
        }
    }

    /// Whether plain forwarding takes part: hosts give no tickets, have no RSA certificate, do not speak HTTP/2, and
    /// take WebSockets at another port.
    pub(crate) const fn is_for_hosts(&self) -> bool {
        !matches!(self.entry, Entry::ResumedTls | Entry::RsaTls | Entry::Http2)
            && !matches!(
                self.kind,
                ScenarioKind::Tunnels(_)
                    | ScenarioKind::IdleTunnels(_)
                    | ScenarioKind::Change(_)
                    | ScenarioKind::FailingHost(_)
            )
    }

    /// Whether `--only` with this word selects the scenario.
    pub(crate) fn is_meant(&self, word: &str) -> bool {
        self.name == word || self.name.split('-').next() == Some(word)
    }

    /// Whether the scenario is one of those that show most, and are worth the time of every number of threads.
    pub(crate) fn is_main(&self) -> bool {
        let shows_most = matches!(
            self.kind,
            ScenarioKind::Unique(100) | ScenarioKind::Reused(100) | ScenarioKind::Large(4) | ScenarioKind::Bulk(4)
        );
        shows_most && !CONDITIONS.contains(self)
    }

    /// Whether the scenario takes a configured time; the others take as long as they need.
    pub(crate) fn is_timed(&self) -> bool {
        !self.is_of_memory() && !matches!(self.kind, ScenarioKind::Change(_) | ScenarioKind::Anatomy)
    }

    /// Whether memory is measured, of connections that do nothing.
    pub(crate) const fn is_of_memory(&self) -> bool {
        matches!(self.kind, ScenarioKind::Idle(_) | ScenarioKind::IdleTunnels(_))
    }

    /// Runs the scenario once.
    pub(crate) fn run(&self, bench: &Bench<'_>) -> Result<Sample> {
        match self.kind {
            ScenarioKind::Unique(connections) | ScenarioKind::Tls(connections) => {
                run::conditioned(bench, self.entry, connections, self.condition)
            }
            ScenarioKind::Reused(connections) => run::requests(bench, self.entry, connections, "/", false),
            ScenarioKind::Latency(connections) => run::paced(bench, self, connections),
            ScenarioKind::Large(connections) => run::large(bench, self.entry, connections, false),
            ScenarioKind::UniqueLarge(connections) => run::large(bench, self.entry, connections, true),
            ScenarioKind::UniqueHuge(connections) => run::huge(bench, self.entry, connections),
            ScenarioKind::Bulk(streams) => run::bulk_streams(bench, streams),
            ScenarioKind::Idle(connections) => run::idle(bench, self.entry, connections),
            ScenarioKind::IdleTunnels(connections) => run::idle_tunnels(bench, connections),
            ScenarioKind::Change(routes) => change::run(bench, self, routes),
            ScenarioKind::Streams(connections) => run::streams(bench, connections),
            ScenarioKind::Tunnels(connections) => run::tunnels(bench, connections),
            ScenarioKind::Openings(rate) => run::openings(bench, rate),
            ScenarioKind::Flooded(rate) => run::flooded(bench, rate),
            ScenarioKind::Anatomy => run::anatomy(bench),
            ScenarioKind::FailingHost(failure) => run::failing(bench, FAILING_RATE, failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_takes_a_scenario_or_a_family() {
        let meant = |word: &str| ALL.iter().filter(|s| s.is_meant(word)).count();
        assert_eq!(
            (meant("unique"), meant("unique-1"), meant("latency"), meant("nothing")),
            (3, 1, 1, 0)
        );
    }

    #[test]
    fn each_name_is_of_one_scenario() {
        let mut names: Vec<_> = ALL.iter().chain(&HTTP).chain(&CONDITIONS).map(|s| s.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn the_rate_is_known_before_half_of_it_is_asked_for() {
        for (all, paced) in [(&ALL[..], "latency-half"), (&HTTP, "edge-latency")] {
            let at = |name: &str| all.iter().position(|s| s.name == name).unwrap();
            assert!(at(all[at(paced)].closed_loop()) < at(paced));
        }
    }
}

//! Suites: connections that a balancer passes on, and the same under conditions; HTTP by request with TLS that ends at the
//! balancer; replication to another node; hosts that
//! fail; connections taken apart.

use serde::Serialize;

use crate::scenario::{self, Scenario};

/// A suite: its scenarios, and how contenders are configured for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Suite {
    /// TCP, of which only the first bytes are read.
    Connections,
    /// HTTP by request, in plain text and in TLS that ends at the balancer.
    Http,
    /// New connections under each condition that disables signalbox's fast path.
    Conditions,
    /// Connections of a node of virtual addresses, whose flows a second node gets.
    Ha,
    /// New connections to ten hosts, of which one fails.
    Failures,
    /// Connections, taken apart.
    Anatomy,
}

impl Suite {
    /// Scenarios, in the order in which they run.
    pub(crate) const fn scenarios(self) -> &'static [Scenario] {
        match self {
            Self::Connections => &scenario::ALL,
            Self::Http => &scenario::HTTP,
            Self::Conditions => &scenario::CONDITIONS,
            Self::Ha => &scenario::HA,
            Self::Failures => &scenario::FAILURES,
            Self::Anatomy => &scenario::ANATOMY,
        }
    }

    /// Names of the contenders that take part by default.
    pub(crate) const fn contenders(self) -> &'static str {
        match self {
            Self::Connections => {
                "direct,haproxy,haproxy-3.0,haproxy-splice,nginx,envoy,traefik,caddy,signalbox-auto,signalbox-userspace"
            }
            Self::Http => {
                "direct,haproxy,haproxy-3.0,haproxy-splice,haproxy-router,nginx,envoy,traefik,caddy,signalbox-auto"
            }
            Self::Conditions => "direct,haproxy,haproxy-3.0,nginx,envoy,traefik,caddy,signalbox-auto",
            Self::Ha => "direct,haproxy,signalbox-auto,signalbox-ha,signalbox-sync",
            Self::Anatomy => {
                "direct,haproxy,haproxy-3.0,haproxy-splice,nginx,envoy,traefik,caddy,signalbox-auto,signalbox-userspace"
            }
            Self::Failures => "haproxy,haproxy-3.0,nginx,envoy,traefik,caddy,signalbox-auto,signalbox-userspace",
        }
    }

    /// Directory of the results, below the workspace.
    pub(crate) const fn results(self) -> &'static str {
        match self {
            Self::Connections => "bench/results",
            Self::Http => "bench/results/http",
            Self::Conditions => "bench/results/conditions",
            Self::Ha => "bench/results/ha",
            Self::Failures => "bench/results/failures",
            Self::Anatomy => "bench/results/anatomy",
        }
    }
}

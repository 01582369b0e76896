//! Figures of each route: its connections and bytes in each cluster, and its refusals.
//!
//! Workers and the flow GC add to atomics that they reach through the route's state in the snapshot, without a lock.
//! [`labels`] decides which routes have their own label in `/metrics`.

pub mod labels;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use signalbox_api::by_label;
use signalbox_api::routing::{ClusterFigures, RouteFigures};
use signalbox_core::availability::migration::guard::QualityFigures;
use signalbox_core::availability::migration::guard::times::{BUCKETS, Times, bucket_of};
use signalbox_core::limits::stats::{Counter, Gauge};

use crate::state::outcome::{Direction, FlowEnd};

/// Figures of a route in one cluster.
#[derive(Debug, Default)]
pub struct RouteClusterStats {
    pub cluster: String,
    /// Connections made to a host of the cluster.
    pub connections: Counter,
    pub active: Gauge,
    pub bytes_in: Counter,
    pub bytes_out: Counter,
    /// Numbers that the guards of migrations check.
    pub quality: QualityCounters,
}

/// Counters of how well a cluster has served a route: each kind of fault, and the totals that they are a share of.
#[derive(Debug, Default)]
pub struct QualityCounters {
    connects: Counter,
    connect_micros: Counter,
    connect_failures: Counter,
    flows_ended: Counter,
    flows_broken: Counter,
    answers: Counter,
    server_errors: Counter,
    first_bytes: Counter,
    first_byte_micros: Counter,
    /// Times of connects and to the begin of answers. They are counted once a migration has asked for the figures.
    times: OnceLock<Box<[TimeCounters; 2]>>,
}

/// Counters of times, by bucket.
#[derive(Debug)]
struct TimeCounters([Counter; BUCKETS]);

impl Default for TimeCounters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl TimeCounters {
    fn add(&self, micros: u64) {
        self.0[bucket_of(micros)].inc();
    }
}

impl QualityCounters {
    /// Counts a connect that succeeded.
    pub fn connected(&self, took: Duration) {
        let micros = took.as_micros() as u64;
        self.connects.inc();
        self.connect_micros.add(micros);
        if let Some(times) = self.times.get() {
            times[0].add(micros);
        }
    }

    /// Counts a connect that has failed.
    pub fn connect_failed(&self) {
        self.connect_failures.inc();
    }

    /// Counts the end of a flow that was carried as a whole. A flow counts as broken if the host has reset it, or has
    /// finished it without a byte for a client that has sent some.
    pub fn flow_ended(&self, end: FlowEnd, bytes_in: u64, bytes_out: u64) {
        self.flows_ended.inc();
        let is_mute = end == FlowEnd::Finished && bytes_in > 0 && bytes_out == 0;
        if end == FlowEnd::HostReset || is_mute {
            self.flows_broken.inc();
        }
    }

    /// Counts the time until a request's answer began.
    pub fn answer_began(&self, took: Duration) {
        let micros = took.as_micros() as u64;
        self.first_bytes.inc();
        self.first_byte_micros.add(micros);
        if let Some(times) = self.times.get() {
            times[1].add(micros);
        }
    }

    /// Counts the end of a request.
    pub fn answered(&self, status: u16) {
        self.answers.inc();
        if status >= 500 {
            self.server_errors.inc();
        }
    }

    /// Adds the current numbers to a sum, and has times counted from now on.
    fn add_to(&self, sum: &mut QualitySum) {
        let figures = &mut sum.figures;
        for (counter, number) in [
            (&self.connects, &mut figures.connects),
            (&self.connect_micros, &mut figures.connect_micros),
            (&self.connect_failures, &mut figures.connect_failures),
            (&self.flows_ended, &mut figures.flows_ended),
            (&self.flows_broken, &mut figures.flows_broken),
            (&self.answers, &mut figures.answers),
            (&self.server_errors, &mut figures.server_errors),
            (&self.first_bytes, &mut figures.first_bytes),
            (&self.first_byte_micros, &mut figures.first_byte_micros),
        ] {
            *number += counter.get();
        }
        let counters = self.times.get_or_init(Box::default);
        for (numbers, TimeCounters(counters)) in sum.times.iter_mut().zip(counters.iter()) {
            numbers
                .iter_mut()
                .zip(counters)
                .for_each(|(number, counter)| *number += counter.get());
        }
    }
}

/// Sum of the figures of several routes.
#[derive(Debug)]
pub struct QualitySum {
    figures: QualityFigures,
    times: [[u64; BUCKETS]; 2],
}

impl Default for QualitySum {
    fn default() -> Self {
        Self {
            figures: QualityFigures::default(),
            times: [[0; BUCKETS]; 2],
        }
    }
}

impl QualitySum {
    /// Adds how well a cluster has served a route so far.
    pub fn add(&mut self, route: &RouteStats, cluster: &str) {
        let shares = route.clusters.load();
        let mut all = shares.iter().flat_map(|shares| shares.iter());
        if let Some(share) = all.find(|share| share.cluster == cluster) {
            share.quality.add_to(self);
        }
    }

    /// Returns the figures.
    #[must_use]
    pub fn figures(self) -> QualityFigures {
        let [connect_times, first_byte_times] = self.times.map(|numbers| Times::new(numbers.into_iter()));
        QualityFigures {
            connect_times,
            first_byte_times,
            ..self.figures
        }
    }
}

impl RouteClusterStats {
    /// Adds carried bytes.
    pub fn add_bytes(&self, direction: Direction, bytes: u64) {
        match direction {
            Direction::In => self.bytes_in.add(bytes),
            Direction::Out => self.bytes_out.add(bytes),
        }
    }
}

/// Reason why a connection with a known route was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteRefusal {
    /// The route is out of rotation.
    OutOfRotation,
    /// No cluster of the route has a usable host.
    NoHost,
    /// No host of the route accepted the connection.
    ConnectFailed,
}

impl RouteRefusal {
    /// Metric labels, in the order of the variants.
    pub const LABELS: [&'static str; 3] = ["out_of_rotation", "no_host", "connect_failed"];
}

/// State of a route's label: its own, or `other`. Only [`labels::RouteLabels`] changes it.
#[derive(Debug, Default)]
pub struct RouteLabel(AtomicU8);

/// The counters of one route.
#[derive(Debug, Default)]
pub struct RouteStats {
    /// Counters of the clusters that have had a connection of the route. The list only grows.
    clusters: ArcSwapOption<Vec<Arc<RouteClusterStats>>>,
    refused: [Counter; RouteRefusal::LABELS.len()],
}

impl RouteStats {
    /// Returns the counters of a cluster. The first connection creates them.
    #[must_use]
    pub fn for_cluster(&self, cluster: &str) -> Arc<RouteClusterStats> {
        let find = || {
            let shares = self.clusters.load();
            let mut known = shares.iter().flat_map(|shares| shares.iter());
            known.find(|share| share.cluster == cluster).map(Arc::clone)
        };
        find().unwrap_or_else(|| {
            let new = Arc::new(RouteClusterStats {
                cluster: cluster.to_owned(),
                ..RouteClusterStats::default()
            });
            self.clusters.rcu(|shares| {
                let mut all = shares.as_deref().cloned().unwrap_or_default();
                if !all.iter().any(|share| share.cluster == cluster) {
                    all.push(Arc::clone(&new));
                }
                Some(Arc::new(all))
            });
            // Another worker may have created them first.
            find().unwrap_or(new)
        })
    }

    /// Counts a refusal.
    pub fn refuse(&self, why: RouteRefusal) {
        self.refused[why as usize].inc();
    }

    /// Returns whether any count is above zero.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.clusters.load().is_some() || self.refused.iter().any(|counter| counter.get() > 0)
    }

    /// Returns current connections, in all clusters.
    #[must_use]
    pub fn active(&self) -> u64 {
        let shares = self.clusters.load();
        let all = shares.iter().flat_map(|shares| shares.iter());
        all.map(|share| u64::from(share.active.get())).sum()
    }

    /// Returns the current numbers.
    #[must_use]
    pub fn totals(&self) -> RouteTotals {
        let shares = self.clusters.load();
        let of = |share: &Arc<RouteClusterStats>| {
            let sum = ClusterFigures {
                connections: share.connections.get(),
                active: share.active.get().into(),
                bytes_in: share.bytes_in.get(),
                bytes_out: share.bytes_out.get(),
            };
            (share.cluster.clone(), sum)
        };
        RouteTotals {
            clusters: shares.iter().flat_map(|shares| shares.iter()).map(of).collect(),
            refused: self.refused.each_ref().map(Counter::get),
        }
    }
}

/// Figures of a route, or the sum of several, as numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTotals {
    pub clusters: BTreeMap<String, ClusterFigures>,
    /// Refused connections, by [`RouteRefusal`].
    pub refused: [u64; RouteRefusal::LABELS.len()],
}

impl RouteTotals {
    /// Adds the figures of another route.
    pub fn add(&mut self, other: &Self) {
        for (cluster, sum) in &other.clusters {
            self.clusters.entry(cluster.clone()).or_default().add(*sum);
        }
        for (mine, more) in self.refused.iter_mut().zip(other.refused) {
            *mine += more;
        }
    }

    /// Returns the sum over all clusters.
    #[must_use]
    pub fn total(&self) -> ClusterFigures {
        let mut all = ClusterFigures::default();
        self.clusters.values().for_each(|sum| all.add(*sum));
        all
    }

    /// Returns the figures in the API's form.
    #[must_use]
    pub fn view(&self) -> RouteFigures {
        RouteFigures {
            sum: self.total(),
            refused_connections: self.refused.iter().sum(),
            refused: by_label(RouteRefusal::LABELS.into_iter().zip(self.refused)),
            clusters: self.clusters.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cluster_has_one_share_whoever_asks_first() {
        let figures = RouteStats::default();
        assert!(!figures.is_used());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for n in 0..1000 {
                        figures.for_cluster(["east", "west", "north"][n % 3]).connections.inc();
                    }
                });
            }
        });
        let sums = figures.totals();
        let counts = ["east", "west", "north"].map(|cluster| sums.clusters[cluster].connections);
        assert_eq!((sums.clusters.len(), counts), (3, [8 * 334, 8 * 333, 8 * 333]));
        figures.refuse(RouteRefusal::NoHost);
        let view = figures.totals().view();
        assert_eq!((view.sum.connections, view.refused["no_host"]), (8000, 1));
    }
}

//! Figures of the balancer and of each host, once a second for the last two minutes, for live views.
//!
//! Samples are made once and shared by all viewers. Counters are cumulative, as in `/metrics`: a view subtracts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use signalbox_core::limits::stats::{Counter, Gauge};
use signalbox_core::model::Tier;
use signalbox_core::routing::health::Health;
use tokio::sync::broadcast;

use super::outcome::Ineligible;
use super::{HostState, Shared};
use crate::sys::unix_ms;

/// Interval between two samples.
pub const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Number of samples to keep: two minutes.
pub const MAX_SAMPLES: usize = 120;
/// Maximum number of sampled hosts: 12 MB for two minutes.
pub const MAX_SAMPLED_HOSTS: usize = 2000;
/// Maximum number of samples that a viewer may be behind. A slower one misses some.
const MAX_UNREAD_SAMPLES: usize = 16;

/// Figures of the whole balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overall {
    pub active: u32,
    pub total: u64,
    /// Connections that the kernel has routed.
    pub in_kernel: u64,
    pub refused: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Hosts that may get new connections, and those that may not.
    pub usable_hosts: u32,
    pub unhealthy_hosts: u32,
    /// Connections on each tier of [`Tier::ALL`].
    pub tiers: [u32; Tier::ALL.len()],
    /// Connections that were not cut, by [`Ineligible::LABELS`].
    pub not_cut: [u64; Ineligible::LABELS.len()],
}

/// Figures of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFigures {
    pub active: u32,
    pub total: u64,
    pub refused: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub health: Health,
}

/// All figures at one moment.
#[derive(Debug)]
pub struct Sample {
    pub at_ms: u64,
    pub overall: Overall,
    /// Hosts of the figures. The allocation is shared with the previous sample, unless hosts have changed.
    pub hosts: Arc<[Arc<HostState>]>,
    pub figures: Vec<HostFigures>,
    /// Hosts that are not sampled, because there are too many.
    pub left_out_hosts: usize,
}

/// The last samples, and the channel of new ones.
#[derive(Debug)]
pub struct Series {
    samples: Mutex<VecDeque<Arc<Sample>>>,
    viewers: broadcast::Sender<Arc<Sample>>,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            samples: Mutex::default(),
            viewers: broadcast::channel(MAX_UNREAD_SAMPLES).0,
        }
    }
}

impl Series {
    /// Takes a sample, stores it, and sends it to all viewers.
    pub fn sample(&self, shared: &Shared) {
        let mut samples = self.samples.lock();
        let sample = Arc::new(Sample::take(shared, samples.back().map(|last| &last.hosts)));
        if samples.len() == MAX_SAMPLES {
            samples.pop_front();
        }
        samples.push_back(Arc::clone(&sample));
        // Sent within the lock, so that a viewer gets each sample exactly once. A missing viewer is no error.
        let _ = self.viewers.send(sample);
    }

    /// Returns the last `count` samples, oldest first.
    #[must_use]
    pub fn last(&self, count: usize) -> Vec<Arc<Sample>> {
        let samples = self.samples.lock();
        let first = samples.len().saturating_sub(count);
        samples.iter().skip(first).cloned().collect()
    }

    /// Returns the last sample, and the channel of all that follow.
    #[must_use]
    pub fn subscribe(&self) -> (Option<Arc<Sample>>, broadcast::Receiver<Arc<Sample>>) {
        let samples = self.samples.lock();
        (samples.back().cloned(), self.viewers.subscribe())
    }
}

impl Sample {
    fn take(shared: &Shared, known: Option<&Arc<[Arc<HostState>]>>) -> Self {
        let snapshot = shared.snapshot.load();
        let all = || snapshot.hosts.iter().flatten().chain(&snapshot.draining);
        let chosen = || all().take(MAX_SAMPLED_HOSTS);
        let same = |known: &&Arc<[Arc<HostState>]>| {
            known.len() == chosen().count() && known.iter().zip(chosen()).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        let hosts = known.filter(same).cloned();
        let hosts = hosts.unwrap_or_else(|| chosen().cloned().collect());
        let configured = || snapshot.hosts.iter().flatten();
        let count = |usable: bool| configured().filter(|host| host.health().0.usable() == usable).count();
        let of_clusters =
            |of: fn(&super::ClusterState) -> &Counter| snapshot.clusters.iter().map(|c| of(c).get()).sum();
        Self {
            at_ms: unix_ms(),
            overall: Overall {
                active: shared.totals.current.get(),
                total: shared.totals.total.get(),
                in_kernel: shared.totals.in_kernel.get(),
                refused: shared.totals.refused.get(),
                bytes_in: of_clusters(|cluster| &cluster.bytes_in),
                bytes_out: of_clusters(|cluster| &cluster.bytes_out),
                usable_hosts: u32::try_from(count(true)).unwrap_or(u32::MAX),
                unhealthy_hosts: u32::try_from(count(false)).unwrap_or(u32::MAX),
                tiers: std::array::from_fn(|tier| {
                    let of_tier = |cluster: &Arc<super::ClusterState>| cluster.active.get(tier).map_or(0, Gauge::get);
                    snapshot.clusters.iter().map(of_tier).sum()
                }),
                not_cut: std::array::from_fn(|reason| {
                    let of_reason =
                        |listener: &Arc<super::ListenerState>| listener.not_cut.get(reason).map_or(0, Counter::get);
                    snapshot.listeners.iter().map(of_reason).sum()
                }),
            },
            figures: hosts.iter().map(|host| HostFigures::of(host)).collect(),
            left_out_hosts: all().count() - hosts.len(),
            hosts,
        }
    }
}

impl HostFigures {
    fn of(host: &HostState) -> Self {
        let health = if host.ejected.load(Relaxed) {
            Health::Unhealthy
        } else {
            host.health().0
        };
        Self {
            active: host.active.get(),
            total: host.total.get(),
            refused: host.refused.get(),
            bytes_in: host.bytes_in.get(),
            bytes_out: host.bytes_out.get(),
            health,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const CONFIG: &str = r#"
version: 1
listeners: [{ name: tcp, protocol: tcp, listen: ["127.0.0.1:9"], cluster: east }]
clusters:
  - { name: east, hosts: [{ name: east-1, address: 127.0.0.1, tcp: 9 }, { name: east-2, address: 127.0.0.2, tcp: 9 }] }
"#;

    /// State with the hosts of a small configuration.
    pub(crate) fn with_hosts() -> Shared {
        let model = crate::config::parse(CONFIG).unwrap().model;
        let shared = Shared::new(&model);
        let mut snapshot = Arc::into_inner(Shared::new(&model).snapshot.into_inner()).unwrap();
        let hosts = model.clusters[0].hosts.iter();
        snapshot.hosts = vec![
            hosts
                .map(|host| Arc::new(HostState::new("east", &host.name, host.address)))
                .collect(),
        ];
        shared.snapshot.store(Arc::new(snapshot));
        shared
    }

    #[test]
    fn samples_are_kept_for_two_minutes_and_share_their_hosts() {
        let shared = with_hosts();
        let series = Series::default();
        let (none, mut viewer) = series.subscribe();
        assert!(none.is_none());
        for round in 0..MAX_SAMPLES + 5 {
            shared.totals.total.inc();
            series.sample(&shared);
            let seen = viewer.try_recv().unwrap();
            assert_eq!(seen.overall.total, round as u64 + 1);
        }
        let kept = series.last(usize::MAX);
        assert_eq!(kept.len(), MAX_SAMPLES);
        assert_eq!(kept.first().unwrap().overall.total, 6, "the oldest are gone");
        assert!(kept.iter().all(|sample| Arc::ptr_eq(&sample.hosts, &kept[0].hosts)));
        assert_eq!(series.last(3).len(), 3);
    }

    #[test]
    fn a_late_viewer_gets_the_last_sample_and_each_later_one_once() {
        let shared = with_hosts();
        let series = Series::default();
        series.sample(&shared);
        let (last, mut viewer) = series.subscribe();
        assert!(Arc::ptr_eq(&last.unwrap(), &series.last(1)[0]));
        assert!(viewer.try_recv().is_err());
        shared.snapshot.load().hosts[0][1].set_health(Health::Unhealthy);
        series.sample(&shared);
        let next = viewer.try_recv().unwrap();
        assert_eq!((next.overall.usable_hosts, next.overall.unhealthy_hosts), (1, 1));
        assert_eq!(next.figures[1].health, Health::Unhealthy);
        assert_eq!(next.figures[0].health, Health::Unknown);
    }
}

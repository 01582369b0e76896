//! The figures of the last two minutes, updated by samples of `/api/v1/live`.

use std::collections::{HashMap, VecDeque};

pub(super) use signalbox_api::live::Figure;
use signalbox_api::live::{HistoryAnswer, HostHistory, HostName, HostSample, OverallFigures, SampleChange};

/// Number of samples to keep: the same as the balancer keeps.
pub(super) const MAX_SAMPLES: usize = 120;

/// A host with its figures, one for each of [`History::at_ms`].
#[derive(Clone, Debug, Default)]
pub(super) struct HostSeries {
    pub(super) host: HostName,
    /// Figures; `None` while the host did not exist.
    samples: VecDeque<Option<HostSample>>,
}

/// All samples: times and overall figures with equal indexes, and as many figures for each host.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    at_ms: VecDeque<u64>,
    overall: VecDeque<OverallFigures>,
    pub(super) hosts: Vec<HostSeries>,
    /// Hosts that are not sampled.
    pub(super) left_out_hosts: usize,
}

/// A list of values, one per sample; `None` for unknown ones.
pub(super) type Points = Vec<Option<f64>>;

impl HostSeries {
    pub(super) const fn named(host: HostName) -> Self {
        Self {
            host,
            samples: VecDeque::new(),
        }
    }

    /// Name of the host with its cluster.
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.host.cluster, self.host.name)
    }

    /// Identifies the host among those with the same name.
    pub(super) fn key(&self) -> String {
        format!("{}/{}", self.name(), self.host.address)
    }

    pub(super) fn values(&self, figure: Figure) -> Points {
        let samples = self.samples.iter();
        samples
            .map(|sample| Some(sample.as_ref()?[figure as usize] as f64))
            .collect()
    }

    pub(super) fn last(&self, figure: Figure) -> u64 {
        self.samples.back().copied().flatten().unwrap_or_default()[figure as usize]
    }
}

impl History {
    /// Replaces all samples with an answer of `/api/v1/history?hosts=all`.
    pub(super) fn load(&mut self, answer: HistoryAnswer) {
        let series = |of: HostHistory| HostSeries {
            host: of.host,
            samples: of.figures.into(),
        };
        *self = Self {
            at_ms: answer.at.into(),
            overall: answer.overall.into(),
            hosts: answer.hosts.into_iter().map(series).collect(),
            left_out_hosts: answer.left_out_hosts,
        };
        self.trim();
    }

    /// Adds a sample of `/api/v1/live`.
    pub(super) fn add(&mut self, sample: SampleChange) {
        // The first sample of a stream is the last one of the history, unless a second has passed in between.
        let is_known = sample.hosts.is_some() && self.at_ms.back() == Some(&sample.at);
        if let Some(hosts) = sample.hosts {
            self.rename(hosts);
            self.left_out_hosts = sample.left_out_hosts.unwrap_or_default();
        }
        if is_known {
            return;
        }
        self.at_ms.push_back(sample.at);
        self.overall.push_back(sample.overall);
        for (at, host) in self.hosts.iter_mut().enumerate() {
            let before = host.samples.back().copied().flatten();
            host.samples.push_back(sample.figures.get(&at).copied().or(before));
        }
        self.trim();
    }

    /// Sets the hosts of a sample. Those that existed before keep their figures.
    fn rename(&mut self, hosts: Vec<HostName>) {
        let mut known: HashMap<String, HostSeries> = self.hosts.drain(..).map(|host| (host.key(), host)).collect();
        let samples = self.at_ms.len();
        let series = |host: HostName| {
            let new = HostSeries::named(host);
            // A draining host may have a successor of the same name: each has separate figures.
            known.remove(&new.key()).unwrap_or_else(|| HostSeries {
                samples: VecDeque::from(vec![None; samples]),
                ..new
            })
        };
        self.hosts = hosts.into_iter().map(series).collect();
    }

    fn trim(&mut self) {
        let surplus = self.at_ms.len().saturating_sub(MAX_SAMPLES);
        self.at_ms.drain(..surplus);
        self.overall.drain(..surplus.min(self.overall.len()));
        for host in &mut self.hosts {
            let surplus = host.samples.len().saturating_sub(MAX_SAMPLES);
            host.samples.drain(..surplus);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at_ms.is_empty()
    }

    /// Overall figures of the last sample.
    pub(super) fn now(&self) -> OverallFigures {
        self.overall.back().cloned().unwrap_or_default()
    }

    pub(super) fn overall(&self, of: fn(&OverallFigures) -> u64) -> Points {
        self.overall.iter().map(|sample| Some(of(sample) as f64)).collect()
    }

    /// Difference per second of a host's counter in the last sample; 0 if there is none.
    pub(super) fn rate_now(&self, host: &HostSeries, figure: Figure) -> f64 {
        let mut times = self.at_ms.iter().rev();
        let samples = host.samples.iter().rev();
        let mut values = samples.map(|sample| Some(sample.as_ref()?[figure as usize]));
        match (
            times.next(),
            times.next(),
            values.next().flatten(),
            values.next().flatten(),
        ) {
            (Some(t1), Some(t0), Some(v1), Some(v0)) if v1 >= v0 => {
                (v1 - v0) as f64 * 1000.0 / t1.saturating_sub(*t0).max(1) as f64
            }
            _ => 0.0,
        }
    }

    /// Differences per second of a cumulative counter; `None` without a sample, or if the counter has restarted.
    pub(super) fn rates(&self, values: &[Option<f64>]) -> Points {
        let mut before = None;
        let pairs = self.at_ms.iter().zip(values);
        pairs
            .map(|(&at, &value)| {
                let point = value.map(|value| (at, value));
                match (std::mem::replace(&mut before, point), point) {
                    (Some((t0, v0)), Some((t1, v1))) if v1 >= v0 => {
                        Some((v1 - v0) * 1000.0 / t1.saturating_sub(t0).max(1) as f64)
                    }
                    _ => None,
                }
            })
            .collect()
    }
}

/// The last known value, or 0.
pub(super) fn last(values: &[Option<f64>]) -> f64 {
    values.last().copied().flatten().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn host(name: &str) -> Value {
        json!({ "cluster": "east", "name": name, "address": "10.2.0.2" })
    }

    fn loaded() -> History {
        let mut history = History::default();
        let mut of = host("east-1");
        of["figures"] = json!([null, [1, 10, 0, 5, 5, 1]]);
        let overall = [10, 20].map(|total| json!({ "total": total, "active": 1 }));
        history.load(parsed(
            json!({ "at": [1000, 2000], "overall": overall, "hosts": [of], "left_out_hosts": 3 }),
        ));
        history
    }

    #[test]
    fn the_first_sample_of_a_stream_is_not_counted_twice() {
        let mut history = loaded();
        history.add(parsed(
            json!({ "at": 2000, "overall": { "total": 20 }, "figures": { "0": [1, 10, 0, 5, 5, 1] },
            "hosts": [host("east-1")], "left_out_hosts": 0 }),
        ));
        assert_eq!(history.overall(|overall| overall.total), [Some(10.0), Some(20.0)]);
        history.add(parsed(json!({ "at": 4000, "overall": { "total": 60 }, "figures": {} })));
        assert_eq!(
            history.rates(&history.overall(|overall| overall.total)),
            [None, Some(10.0), Some(20.0)]
        );
        assert_eq!(history.hosts[0].values(Figure::Total), [None, Some(10.0), Some(10.0)]);
        history.add(parsed(
            json!({ "at": 4500, "overall": {}, "figures": { "0": [1, 30, 0, 5, 5, 1] } }),
        ));
        assert_eq!(history.rate_now(&history.hosts[0], Figure::Total), 40.0);
        assert_eq!(history.left_out_hosts, 0);
    }

    #[test]
    fn hosts_that_come_and_go_keep_and_lose_their_figures() {
        let mut history = loaded();
        let names = [host("east-2"), host("east-1")];
        history.add(parsed(
            json!({ "at": 3000, "overall": {}, "hosts": names, "figures": { "0": [7, 1, 0, 0, 0, 2] } }),
        ));
        let values = |at: usize| history.hosts[at].values(Figure::Active);
        assert_eq!(values(0), [None, None, Some(7.0)]);
        assert_eq!(values(1), [None, Some(1.0), Some(1.0)]);
        assert_eq!(history.hosts[0].last(Figure::Health), 2);
    }

    #[test]
    fn history_keeps_two_minutes_and_a_counter_reset_gives_no_rate() {
        let mut history = loaded();
        for second in 3..300 {
            history.add(parsed(
                json!({ "at": second * 1000, "overall": { "total": 300 - second }, "figures": {} }),
            ));
        }
        assert_eq!(history.overall(|overall| overall.total).len(), MAX_SAMPLES);
        assert_eq!(history.hosts[0].values(Figure::Active).len(), MAX_SAMPLES);
        assert!(
            history
                .rates(&history.overall(|overall| overall.total))
                .iter()
                .all(Option::is_none)
        );
    }
}

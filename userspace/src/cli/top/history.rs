//! The figures of the last two minutes, updated by samples of `/api/v1/live`.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;

use super::text::{field, list, number};

/// Number of samples to keep: the same as the balancer keeps.
pub(super) const MAX_SAMPLES: usize = 120;

/// Indexes of a host's figures in a sample.
#[derive(Clone, Copy)]
pub(super) enum Figure {
    Active = 0,
    Total = 1,
    Refused = 2,
    BytesIn = 3,
    BytesOut = 4,
    Health = 5,
}

/// Figures of a host in one sample; `None` if it did not exist.
type HostSample = Option<[f64; 6]>;

/// A host with its figures, one for each of [`History::at_ms`].
#[derive(Clone, Debug, Default)]
pub(super) struct HostSeries {
    pub(super) cluster: String,
    pub(super) name: String,
    pub(super) address: String,
    samples: VecDeque<HostSample>,
}

/// All samples: times and overall figures with equal indexes, and as many figures for each host.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    at_ms: VecDeque<f64>,
    overall: VecDeque<Value>,
    pub(super) hosts: Vec<HostSeries>,
    /// Hosts that are not sampled.
    pub(super) left_out_hosts: f64,
}

/// A list of values, one per sample; `None` for unknown ones.
pub(super) type Points = Vec<Option<f64>>;

impl HostSeries {
    pub(super) fn named(view: &Value) -> Self {
        Self {
            cluster: field(view, "cluster").to_owned(),
            name: field(view, "name").to_owned(),
            address: field(view, "address").to_owned(),
            samples: VecDeque::new(),
        }
    }

    /// Identifies the host among those with the same name.
    pub(super) fn key(&self) -> String {
        format!("{}/{}/{}", self.cluster, self.name, self.address)
    }

    pub(super) fn values(&self, figure: Figure) -> Points {
        let of = |sample: &HostSample| sample.and_then(|figures| figures.get(figure as usize).copied());
        self.samples.iter().map(of).collect()
    }

    pub(super) fn last(&self, figure: Figure) -> f64 {
        let last = self.samples.back().copied().flatten();
        last.and_then(|figures| figures.get(figure as usize).copied())
            .unwrap_or(0.0)
    }
}

impl History {
    /// Replaces all samples with an answer of `/api/v1/history?hosts=all`.
    pub(super) fn load(&mut self, answer: &Value) {
        *self = Self {
            at_ms: list(answer, "at").iter().filter_map(Value::as_f64).collect(),
            overall: list(answer, "overall").iter().cloned().collect(),
            hosts: list(answer, "hosts").iter().map(with_samples).collect(),
            left_out_hosts: number(answer, "left_out_hosts"),
        };
        self.trim();
    }

    /// Adds a sample of `/api/v1/live`.
    pub(super) fn add(&mut self, sample: &Value) {
        let at_ms = number(sample, "at");
        let names = sample.get("hosts").and_then(Value::as_array);
        // The first sample of a stream is the last one of the history, unless a second has passed in between.
        let is_known = names.is_some() && self.at_ms.back() == Some(&at_ms);
        if let Some(names) = names {
            self.rename(names);
            self.left_out_hosts = number(sample, "left_out_hosts");
        }
        if is_known {
            return;
        }
        self.at_ms.push_back(at_ms);
        self.overall
            .push_back(sample.get("overall").cloned().unwrap_or_default());
        for (at, host) in self.hosts.iter_mut().enumerate() {
            let new = sample.get("figures").and_then(|figures| figures.get(at.to_string()));
            let before = host.samples.back().copied().flatten();
            host.samples.push_back(new.and_then(figures).or(before));
        }
        self.trim();
    }

    /// Sets the hosts of a sample. Those that existed before keep their figures.
    fn rename(&mut self, names: &[Value]) {
        let mut known: HashMap<String, HostSeries> = self.hosts.drain(..).map(|host| (host.key(), host)).collect();
        let samples = self.at_ms.len();
        self.hosts = names
            .iter()
            .map(|name| {
                let new = HostSeries::named(name);
                // A draining host may have a successor of the same name: each has separate figures.
                known.remove(&new.key()).unwrap_or_else(|| HostSeries {
                    samples: VecDeque::from(vec![None; samples]),
                    ..new
                })
            })
            .collect();
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
    pub(super) fn now(&self) -> &Value {
        self.overall.back().unwrap_or(&Value::Null)
    }

    pub(super) fn overall(&self, key: &str) -> Points {
        self.overall
            .iter()
            .map(|sample| sample.get(key).and_then(Value::as_f64))
            .collect()
    }

    /// Difference per second of a host's counter in the last sample; 0 if there is none.
    pub(super) fn rate_now(&self, host: &HostSeries, figure: Figure) -> f64 {
        let of = |sample: &HostSample| sample.and_then(|figures| figures.get(figure as usize).copied());
        let mut values = host.samples.iter().rev().map(of);
        let mut times = self.at_ms.iter().rev();
        match (
            times.next(),
            times.next(),
            values.next().flatten(),
            values.next().flatten(),
        ) {
            (Some(t1), Some(t0), Some(v1), Some(v0)) if v1 >= v0 => (v1 - v0) * 1000.0 / (t1 - t0).max(1.0),
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
                    (Some((t0, v0)), Some((t1, v1))) if v1 >= v0 => Some((v1 - v0) * 1000.0 / (t1 - t0).max(1.0)),
                    _ => None,
                }
            })
            .collect()
    }
}

fn figures(value: &Value) -> HostSample {
    let mut all = [0.0; 6];
    let values = value.as_array()?;
    for (place, value) in all.iter_mut().zip(values) {
        *place = value.as_f64()?;
    }
    Some(all)
}

fn with_samples(view: &Value) -> HostSeries {
    HostSeries {
        samples: list(view, "figures").iter().map(figures).collect(),
        ..HostSeries::named(view)
    }
}

/// The last known value, or 0.
pub(super) fn last(values: &[Option<f64>]) -> f64 {
    values.last().copied().flatten().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn host(name: &str) -> Value {
        json!({ "cluster": "east", "name": name, "address": "10.2.0.2" })
    }

    fn loaded() -> History {
        let mut history = History::default();
        let mut of = host("east-1");
        of["figures"] = json!([null, [1, 10, 0, 5, 5, 1]]);
        let overall = [10, 20].map(|total| json!({ "total": total, "active": 1 }));
        history.load(&json!({ "at": [1000, 2000], "overall": overall, "hosts": [of], "left_out_hosts": 3 }));
        history
    }

    #[test]
    fn the_first_sample_of_a_stream_is_not_counted_twice() {
        let mut history = loaded();
        history.add(
            &json!({ "at": 2000, "overall": { "total": 20 }, "figures": { "0": [1, 10, 0, 5, 5, 1] },
            "hosts": [host("east-1")], "left_out_hosts": 0 }),
        );
        assert_eq!(history.overall("total"), [Some(10.0), Some(20.0)]);
        history.add(&json!({ "at": 4000, "overall": { "total": 60 }, "figures": {} }));
        assert_eq!(history.rates(&history.overall("total")), [None, Some(10.0), Some(20.0)]);
        assert_eq!(history.hosts[0].values(Figure::Total), [None, Some(10.0), Some(10.0)]);
        history.add(&json!({ "at": 4500, "overall": {}, "figures": { "0": [1, 30, 0, 5, 5, 1] } }));
        assert_eq!(history.rate_now(&history.hosts[0], Figure::Total), 40.0);
        assert_eq!(history.left_out_hosts, 0.0);
    }

    #[test]
    fn hosts_that_come_and_go_keep_and_lose_their_figures() {
        let mut history = loaded();
        let names = [host("east-2"), host("east-1")];
        history.add(&json!({ "at": 3000, "overall": {}, "hosts": names, "figures": { "0": [7, 1, 0, 0, 0, 2] } }));
        let values = |at: usize| history.hosts[at].values(Figure::Active);
        assert_eq!(values(0), [None, None, Some(7.0)]);
        assert_eq!(values(1), [None, Some(1.0), Some(1.0)]);
        assert_eq!(history.hosts[0].last(Figure::Health), 2.0);
    }

    #[test]
    fn two_minutes_are_kept_and_a_counter_that_begins_anew_is_no_rate() {
        let mut history = loaded();
        for second in 3..300 {
            history.add(&json!({ "at": second * 1000, "overall": { "total": 300 - second }, "figures": {} }));
        }
        assert_eq!(history.overall("total").len(), MAX_SAMPLES);
        assert_eq!(history.hosts[0].values(Figure::Active).len(), MAX_SAMPLES);
        assert!(history.rates(&history.overall("total")).iter().all(Option::is_none));
    }

    #[test]
    fn an_answer_that_is_no_history_is_an_empty_one() {
        let mut history = loaded();
        history.load(&json!({ "at": "x", "overall": 3, "hosts": [{ "figures": [["x"], 4] }] }));
        history.add(&json!([]));
        assert_eq!(history.rates(&history.overall("total")), [None]);
    }
}

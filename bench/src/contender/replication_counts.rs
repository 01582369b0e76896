//! A node's counters of the replication of its flows.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::lab::Lab;
use crate::measure::Replication;
use crate::product;

/// Counts since a node's start.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReplicationCounts {
    flows: f64,
    bytes: f64,
    lag_seconds: f64,
    lags: f64,
    /// Cumulative counts by upper bound in seconds.
    buckets: Vec<(f64, f64)>,
}

impl ReplicationCounts {
    /// Reads the counts of the node that is measured.
    pub(super) fn read(lab: &Lab) -> Result<Self> {
        Self::parse(&product::ask(lab.dir(), "GET", "/metrics", "")?).context("/metrics")
    }

    /// Reads the counts from metrics in the text format of Prometheus.
    fn parse(metrics: &str) -> Option<Self> {
        let lines = |name: &'static str| {
            metrics.lines().filter_map(move |line| {
                let (labels, value) = line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once("} ")?;
                Some((labels, value.parse::<f64>().ok()?))
            })
        };
        let one = |name| lines(name).next().map(|(_, value)| value);
        let bound = |labels: &str| labels.split("le=\"").nth(1)?.split('"').next()?.parse().ok();
        let buckets = lines("signalbox_ha_sync_lag_seconds_bucket");
        Some(Self {
            flows: one("signalbox_ha_sync_flows_total")?,
            bytes: one("signalbox_ha_sync_bytes_total")?,
            lag_seconds: one("signalbox_ha_sync_lag_seconds_sum")?,
            lags: one("signalbox_ha_sync_lag_seconds_count")?,
            buckets: buckets
                .filter_map(|(labels, count)| Some((bound(labels)?, count)))
                .collect(),
        })
    }

    /// Replication since earlier counts.
    pub(crate) fn since(&self, before: &Self, time: Duration) -> Replication {
        let (flows, lags) = (self.flows - before.flows, self.lags - before.lags);
        let mut buckets = self.buckets.iter().zip(&before.buckets);
        let p99 = buckets.find(|((_, after), (_, before))| after - before >= 0.99 * lags);
        Replication {
            flows: flows / time.as_secs_f64(),
            bytes: (self.bytes - before.bytes) / flows,
            mean_lag: (self.lag_seconds - before.lag_seconds) / lags * 1e6,
            p99_lag: p99.map_or(f64::NAN, |((bound, _), _)| bound * 1e6),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(flows: u32, quick: u32, slow: u32) -> ReplicationCounts {
        let text = format!(
            "# TYPE signalbox_ha_sync_flows counter
signalbox_ha_sync_flows_total{{peer=\"b\"}} {flows}
signalbox_ha_sync_bytes_total{{peer=\"b\"}} {bytes}
signalbox_ha_sync_lag_seconds_sum{{peer=\"b\"}} {sum}
signalbox_ha_sync_lag_seconds_count{{peer=\"b\"}} {count}
signalbox_ha_sync_lag_seconds_bucket{{le=\"0.001\",peer=\"b\"}} {quick}
signalbox_ha_sync_lag_seconds_bucket{{le=\"0.002\",peer=\"b\"}} {count}
signalbox_ha_sync_lag_seconds_bucket{{le=\"+Inf\",peer=\"b\"}} {count}
",
            bytes = flows * 200,
            sum = f64::from(quick) * 0.0005 + f64::from(slow) * 0.0015,
            count = quick + slow,
        );
        ReplicationCounts::parse(&text).unwrap()
    }

    #[test]
    fn lags_are_those_of_the_window() {
        let before = metrics(100, 0, 1000);
        let replication =
            |quick: u32, slow: u32| metrics(300, quick, 1000 + slow).since(&before, Duration::from_secs(2));
        let all_quick = replication(199, 1);
        assert_eq!(
            (all_quick.flows, all_quick.bytes, all_quick.p99_lag),
            (100.0, 200.0, 1000.0)
        );
        assert!((all_quick.mean_lag - 505.0).abs() < 1e-6);
        assert_eq!(replication(190, 10).p99_lag, 2000.0);
    }

    #[test]
    fn no_metrics_of_replication_are_no_counts() {
        assert_eq!(ReplicationCounts::parse("signalbox_up 1\n"), None);
    }
}

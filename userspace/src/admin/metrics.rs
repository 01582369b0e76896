//! `/metrics`: OpenMetrics text, made from counters and the snapshot for each request.
//!
//! Names and meanings are a contract (docs/metrics.md). Labels are bounded: names from the configuration and fixed
//! words, never a client's address or a name invented by a client.

mod capacity;
mod classic;
mod ha;
mod migrations;
mod process;
mod requests;
mod routes;
mod services;
mod tls;
mod traffic;

use std::collections::BTreeMap;
use std::fmt;

use axum::http::HeaderMap;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use signalbox_common::Reason;
use signalbox_core::discovered::claims::reason;
use signalbox_core::discovered::discovery::Discovered;
use signalbox_core::limits::stats::{Histogram, LabelledCounters};

use self::process::ProcessMetrics;
use crate::control::Control;
use crate::control::rotation_jobs::Progress;
use crate::source::SourceStatus;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Encodes all metrics in the format that a request asks for: OpenMetrics, or Prometheus' own. Returns the content type
/// and the text.
pub fn encode(control: &Control, headers: &HeaderMap) -> Result<(&'static str, String), fmt::Error> {
    let mut own = Registry::with_prefix("signalbox");
    own.register_collector(Box::new(Scrape(control.clone())));
    let mut process = Registry::with_prefix("process");
    process.register_collector(Box::new(ProcessMetrics));
    let mut text = String::new();
    encode_registry(&mut text, &own)?;
    encode_registry(&mut text, &process)?;
    if classic::is_wanted(headers) {
        return Ok((classic::CLASSIC_CONTENT_TYPE, classic::converted(&text)));
    }
    encode_eof(&mut text)?;
    Ok((CONTENT_TYPE, text))
}

struct Scrape(Control);

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

type Labels<'a> = Vec<(&'static str, &'a str)>;

/// Writes one metric with all its label sets.
struct MetricWriter<'a>(DescriptorEncoder<'a>);

impl MetricWriter<'_> {
    fn counter<'l, N: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'l>, N)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            if labels.is_empty() {
                metric.encode_counter::<NoLabelSet, N, u64>(&value, None)?;
            } else {
                metric
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, N, u64>(&value, None)?;
            }
        }
        Ok(())
    }

    fn gauge<'l>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'l>, f64)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            if labels.is_empty() {
                metric.encode_gauge(&value)?;
            } else {
                metric.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    fn seconds<'l, 'h>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'l>, &'h Histogram)>,
    ) -> fmt::Result {
        let mut metric = self
            .0
            .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for (labels, histogram) in values {
            let (sum, count, buckets) = histogram.read();
            if labels.is_empty() {
                metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
            } else {
                metric
                    .encode_family(&labels)?
                    .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
            }
        }
        Ok(())
    }
}

/// Returns the number of names that are not served, by source and reason.
fn rejected_names(discovered: &Discovered) -> Vec<(Labels<'_>, f64)> {
    let mut counts: BTreeMap<(&str, &'static str), u64> = BTreeMap::new();
    for (source, clusters) in discovered {
        for (word, n) in clusters.values().flat_map(|learned| reason::count(learned)) {
            *counts.entry((source.as_str(), word)).or_default() += n;
        }
    }
    let labelled = |((source, word), n): ((_, _), u64)| (vec![("source", source), ("reason", word)], n as f64);
    counts.into_iter().map(labelled).collect()
}

fn source_labels(source: &SourceStatus) -> Labels<'_> {
    vec![("source", &source.name)]
}

fn by_label<'a>(
    key: &'static str,
    name: &'a str,
    what: &'static str,
    counters: &LabelledCounters,
) -> Vec<(Labels<'a>, u64)> {
    counters
        .get()
        .into_iter()
        .map(|(label, n)| (vec![(key, name), (what, label)], n))
        .collect()
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = MetricWriter(encoder);
        self.process(&mut out)?;
        self.capacity(&mut out)?;
        self.listeners(&mut out)?;
        self.requests(&mut out)?;
        self.tls(&mut out)?;
        self.clusters(&mut out)?;
        self.hosts(&mut out)?;
        self.routes(&mut out)?;
        self.access_log(&mut out)?;
        self.services(&mut out)?;
        self.shield(&mut out)?;
        self.ha(&mut out)?;
        self.control_plane(&mut out)?;
        self.migrations(&mut out)?;
        self.kernel(&mut out)
    }
}

impl Scrape {
    fn process(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let (shared, facts) = (&self.0.shared, &self.0.facts);
        let snapshot = shared.snapshot.load();
        let abi = signalbox_common::ABI_VERSION.to_string();
        let build = vec![
            ("version", env!("CARGO_PKG_VERSION")),
            ("revision", env!("SIGNALBOX_REVISION")),
            ("abi", abi.as_str()),
        ];
        out.gauge("build_info", "Version of the running process", [(build, 1.0)])?;
        out.gauge(
            "uptime_seconds",
            "Seconds since the start",
            [(vec![], shared.life.started.elapsed().as_secs_f64())],
        )?;
        let reloads = [
            (vec![("result", "ok")], shared.applied.reloads.ok.get()),
            (vec![("result", "failed")], shared.applied.reloads.failed.get()),
        ];
        out.counter("config_reloads", "Configurations applied or refused", reloads)?;
        let last = shared.applied.reloads.last.lock().clone();
        let ok = last.as_ref().is_none_or(|last| last.ok);
        out.gauge(
            "config_last_reload_successful",
            "1 if the last configuration was applied",
            [(vec![], f64::from(u8::from(ok)))],
        )?;
        if let Some(last) = last.filter(|last| last.ok) {
            out.gauge(
                "config_last_reload_success_timestamp_seconds",
                "Time when the last configuration was applied or refused",
                [(vec![], last.at as f64)],
            )?;
        }
        out.gauge(
            "routes",
            "Active routes",
            [(vec![("state", "admitted")], snapshot.routes.len() as f64)],
        )?;
        out.gauge(
            "connections_current",
            "Open client connections, including cut flows",
            [(vec![], f64::from(shared.totals.current.get()))],
        )?;
        out.counter(
            "connections",
            "Client connections since the start",
            [(vec![], shared.totals.total.get())],
        )?;
        let paused = shared
            .totals
            .paused
            .get()
            .into_iter()
            .map(|(why, n)| (vec![("reason", why)], n));
        out.counter("accept_paused", "Times that accepting was paused", paused)?;
        out.counter(
            "repaired_sockets",
            "Connections of the kernel peek whose sockets userspace has made in repair mode",
            [(vec![], shared.totals.repaired.get())],
        )?;
        out.counter(
            "not_tracked",
            "Connections without their entry in connection tracking: rules about state may drop their packets",
            [(vec![], shared.totals.not_tracked.get())],
        )?;
        let failed = shared.totals.not_repaired.get().into_iter();
        let failed = failed.map(|(why, n)| (vec![("reason", why)], n));
        out.counter(
            "repaired_sockets_failed",
            "Connections of the kernel peek whose sockets userspace has not made: their clients repeat their data",
            failed,
        )?;
        let degraded = facts
            .degraded
            .iter()
            .map(|(feature, _)| (vec![("feature", *feature), ("state", "degraded")], 1.0));
        let missing = self.0.missing_features();
        let missing = missing
            .iter()
            .map(|missing| (vec![("feature", &*missing.feature), ("state", "missing")], 1.0));
        out.gauge(
            "feature",
            "Features that are not as they should be: degraded, or configured and missing",
            degraded.chain(missing),
        )?;
        let steering = [(vec![("mode", facts.steering)], 1.0)];
        out.gauge("steering", "How addresses are listened on", steering)
    }

    /// Writes the metrics of sources, rotations, and refused connections of the admin API.
    fn control_plane(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let (shared, snapshot) = (&self.0.shared, self.0.shared.snapshot.load());
        let sources = shared.sources();
        out.gauge(
            "source_connected",
            "1 if a source of routes is connected to the system that it watches",
            sources
                .iter()
                .map(|s| (source_labels(s), f64::from(u8::from(s.connected())))),
        )?;
        out.gauge(
            "source_staleness_seconds",
            "Time since a source was last known to be up to date",
            sources.iter().filter_map(|s| Some((source_labels(s), s.staleness()?))),
        )?;
        out.counter(
            "source_failures",
            "Times that a source lost its connection, or could not connect",
            sources.iter().map(|s| (source_labels(s), s.failures.get())),
        )?;
        out.counter(
            "source_events",
            "Reports to sources, by kind and outcome",
            sources
                .iter()
                .flat_map(|s| by_label("source", &s.name, "event", &s.events)),
        )?;
        out.gauge(
            "routes_rejected",
            "Names that a source knows of and that are not served, by reason",
            rejected_names(&snapshot.discovered),
        )?;
        out.seconds(
            "table_swap",
            "Time from a source's report until it is applied",
            [(Vec::new(), &shared.applied.seconds)],
        )?;
        out.gauge(
            "apply_waiting_seconds",
            "Time that the oldest report of a source has waited to be applied; 0 if none waits",
            [(Vec::new(), shared.applied.waiting.elapsed().as_secs_f64())],
        )?;
        let jobs = self.0.jobs.all();
        let count = |progress| jobs.iter().filter(|job| job.progress == progress).count() as f64;
        out.gauge(
            "rotation_jobs",
            "Rotation jobs, including those that have ended recently",
            [
                (vec![("progress", "draining")], count(Progress::Draining)),
                (vec![("progress", "closing")], count(Progress::Closing)),
                (vec![("progress", "done")], count(Progress::Done)),
                (vec![("progress", "cancelled")], count(Progress::Cancelled)),
            ],
        )?;
        out.gauge(
            "out_of_rotation",
            "Hosts, clusters, applications and gears that are out of rotation",
            [(Vec::new(), snapshot.rotation.0.len() as f64)],
        )?;
        out.counter(
            "admin_denied",
            "Changes over TCP that were refused",
            [(Vec::new(), shared.admin.denied.get())],
        )?;
        let open = [("tcp", &shared.admin.tcp), ("unix", &shared.admin.unix)];
        out.gauge(
            "admin_connections",
            "Connections to the admin API now",
            open.map(|(socket, count)| (vec![("socket", socket)], f64::from(count.get()))),
        )?;
        let refused = shared.admin.refused.get().into_iter();
        out.counter(
            "admin_refused",
            "Connections to the admin API that a limit has refused or ended, by that limit",
            refused.map(|(limit, n)| (vec![("limit", limit)], n)),
        )
    }

    fn kernel(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let mut exits = self
            .0
            .counters
            .as_ref()
            .map_or_else(Vec::new, |counters| counters.exit_counts());
        if let Some((cut, _)) = &self.0.kernel.cut {
            // The programs of tier cut are counted separately, because they outlive the process.
            let ours = |reason: &Reason| reason.program().starts_with("cut");
            exits.retain(|(reason, _)| !ours(reason));
            exits.extend(cut.exit_counts().into_iter().filter(|(reason, _)| ours(reason)));
        }
        if let Some(kernel_peek) = &self.0.kernel.kernel_peek {
            out.gauge(
                "kernel_peek_routes",
                "Names that are routed in the kernel, for each protocol",
                [(Vec::new(), kernel_peek.routes() as f64)],
            )?;
            let left_out = kernel_peek.left_out();
            out.gauge(
                "kernel_peek_left_to_userspace",
                "Listeners, routes and clusters whose connections userspace routes, by the reason",
                left_out
                    .iter()
                    .map(|((kind, obstacle), n)| (vec![("kind", *kind), ("reason", obstacle.label())], f64::from(*n))),
            )?;
            let ours = |reason: &Reason| reason.program() == "peek_in";
            exits.retain(|(reason, _)| !ours(reason));
            exits.extend(kernel_peek.exit_counts().into_iter().filter(|(reason, _)| ours(reason)));
        }
        let ours = |reason: &Reason| matches!(reason.program(), "l4" | "shield");
        exits.retain(|(reason, _)| !ours(reason));
        exits.extend(
            self.0
                .kernel
                .services
                .exit_counts()
                .into_iter()
                .filter(|(reason, _)| ours(reason)),
        );
        let exits = exits
            .iter()
            .map(|(reason, n)| (vec![("program", reason.program()), ("reason", reason.label())], *n));
        out.counter("bpf_exits", "How the eBPF programs ended", exits)
    }
}

#[cfg(test)]
mod tests {
    /// Checks that docs/metrics.md lists exactly the metrics in the code.
    #[test]
    fn the_document_and_the_code_agree() {
        let code = [
            include_str!("metrics.rs"),
            include_str!("metrics/capacity.rs"),
            include_str!("metrics/ha.rs"),
            include_str!("metrics/migrations.rs"),
            include_str!("metrics/requests.rs"),
            include_str!("metrics/routes.rs"),
            include_str!("metrics/services.rs"),
            include_str!("metrics/tls.rs"),
            include_str!("metrics/traffic.rs"),
        ]
        .concat();
        let document = include_str!("../../../docs/metrics.md");
        let process = include_str!("metrics/process.rs");
        let mut written = Vec::new();
        for (prefix, code) in [("signalbox", code.as_str()), ("process", process)] {
            for (kind, suffix) in [("counter", "_total"), ("gauge", ""), ("seconds", "_seconds")] {
                for call in code.split(&format!("out.{kind}(")).skip(1) {
                    let name = call.split('"').nth(1).unwrap();
                    written.push(format!("{prefix}_{name}{suffix}"));
                }
            }
        }
        let mut listed: Vec<_> = document
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
            .collect();
        written.sort();
        listed.sort_unstable();
        assert_eq!(written, listed);
    }
}

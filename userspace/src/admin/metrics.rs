//! `/metrics`: OpenMetrics text, made from counters and the snapshot when somebody asks.
//!
//! Names and meanings are a contract (docs/metrics.md). Labels are bounded: names from the configuration and fixed
//! words, never a client's address or a name that a client made up.

mod routes;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode as encode_text;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use signalbox_common::Reason;
use signalbox_core::claims::reason;
use signalbox_core::discovery::Discovered;
use signalbox_core::health::Health;
use signalbox_core::model::{Protocol, Tier};
use signalbox_core::stats::{Counter, Histogram, LabelledCounters};

use crate::control::Control;
use crate::control::rotation_jobs::Progress;
use crate::l4::ServiceView;
use crate::l4::guards::GuardKind;
use crate::source::SourceStatus;
use crate::state::outcome::{FlowEnd, Ineligible};

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Encodes all metrics as text.
pub fn encode(control: &Control) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("signalbox");
    registry.register_collector(Box::new(Scrape(control.clone())));
    let mut text = String::new();
    encode_text(&mut text, &registry)?;
    Ok(text)
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
    fn counter<'l>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'l>, u64)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            if labels.is_empty() {
                metric.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
            } else {
                metric
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
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
        self.listeners(&mut out)?;
        self.clusters(&mut out)?;
        self.hosts(&mut out)?;
        self.routes(&mut out)?;
        self.connection_log(&mut out)?;
        self.services(&mut out)?;
        self.shield(&mut out)?;
        self.control_plane(&mut out)?;
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
        out.gauge("build_info", "What is running", [(build, 1.0)])?;
        out.gauge(
            "uptime_seconds",
            "Seconds since the start",
            [(vec![], shared.started.elapsed().as_secs_f64())],
        )?;
        let reloads = [
            (vec![("result", "ok")], shared.reloads.ok.get()),
            (vec![("result", "failed")], shared.reloads.failed.get()),
        ];
        out.counter("config_reloads", "Configurations applied or refused", reloads)?;
        let last = shared
            .reloads
            .last
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone();
        let ok = last.as_ref().is_none_or(|last| last.ok);
        out.gauge(
            "config_last_reload_successful",
            "1 if the last configuration was applied",
            [(vec![], f64::from(u8::from(ok)))],
        )?;
        if let Some(last) = last.filter(|last| last.ok) {
            out.gauge(
                "config_last_reload_success_timestamp_seconds",
                "When it was",
                [(vec![], last.at as f64)],
            )?;
        }
        out.gauge(
            "routes",
            "Routes in force",
            [(vec![("state", "admitted")], snapshot.routes.len() as f64)],
        )?;
        out.gauge(
            "connections_current",
            "Client connections now, cut flows among them",
            [(vec![], f64::from(shared.totals.current.get()))],
        )?;
        out.counter(
            "connections",
            "Client connections ever",
            [(vec![], shared.totals.total.get())],
        )?;
        let paused = shared
            .totals
            .paused
            .get()
            .into_iter()
            .map(|(why, n)| (vec![("reason", why)], n));
        out.counter("accept_paused", "Times that accepting paused", paused)?;
        let degraded = facts
            .degraded
            .iter()
            .map(|(feature, _)| (vec![("feature", *feature), ("state", "degraded")], 1.0));
        let missing = self.0.missing_features();
        let missing = missing
            .iter()
            .map(|missing| (vec![("feature", missing.feature), ("state", "missing")], 1.0));
        out.gauge(
            "feature",
            "Features that are not as they should be: degraded, or configured and missing",
            degraded.chain(missing),
        )?;
        let steering = [(vec![("mode", facts.steering)], 1.0)];
        out.gauge("steering", "How addresses are listened on", steering)
    }

    fn listeners(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let snapshot = self.0.shared.snapshot.load();
        let all = || {
            snapshot
                .listeners
                .iter()
                .map(|l| (l, vec![("listener", l.name.as_str())]))
        };
        out.counter(
            "listener_connections",
            "Connections accepted",
            all().map(|(l, labels)| (labels, l.total.get())),
        )?;
        out.gauge(
            "listener_connections_active",
            "Connections now",
            all().map(|(l, labels)| (labels, f64::from(l.active.get()))),
        )?;
        let peeks = snapshot
            .model
            .listeners
            .iter()
            .zip(&snapshot.listeners)
            .flat_map(|(listener, state)| {
                let found = match listener.protocol {
                    Protocol::Http => Some("host"),
                    Protocol::Tls => Some("sni"),
                    Protocol::Tcp => None,
                };
                let found = found.map(|outcome| {
                    (
                        vec![("listener", state.name.as_str()), ("outcome", outcome)],
                        state.named.get(),
                    )
                });
                found
                    .into_iter()
                    .chain(by_label("listener", &state.name, "outcome", &state.peek))
            });
        out.counter(
            "peek",
            "What the first bytes of connections said",
            peeks.collect::<Vec<_>>(),
        )?;
        let refused = snapshot
            .listeners
            .iter()
            .flat_map(|l| by_label("listener", &l.name, "reason", &l.refused));
        out.counter("refused", "Connections refused", refused.collect::<Vec<_>>())?;
        let not_cut = snapshot.listeners.iter().flat_map(|l| {
            let counts = Ineligible::LABELS
                .into_iter()
                .zip(l.not_cut.each_ref().map(Counter::get));
            counts
                .filter(|(_, n)| *n > 0)
                .map(|(reason, n)| (vec![("listener", l.name.as_str()), ("reason", reason)], n))
        });
        out.counter("not_cut", "Connections that were not cut", not_cut.collect::<Vec<_>>())?;
        // A listener of protocol tcp never peeks.
        let peeking = snapshot.model.listeners.iter().zip(all());
        let peeking = peeking.filter(|(listener, _)| listener.protocol != Protocol::Tcp);
        out.seconds(
            "peek_duration",
            "Time until a connection said where it wants to go",
            peeking.map(|(_, (l, labels))| (labels, &l.peek_seconds)),
        )?;
        if let Some(counters) = &self.0.counters {
            let steered = snapshot.listeners.iter().map(|l| {
                (
                    vec![("listener", l.name.as_str()), ("verdict", "assigned")],
                    counters.steered_connections(l.id),
                )
            });
            out.counter("sk_lookup", "Connections steered to a listener by sk_lookup", steered)?;
        }
        Ok(())
    }

    fn clusters(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let snapshot = self.0.shared.snapshot.load();
        let all = || {
            snapshot
                .clusters
                .iter()
                .map(|c| (c, vec![("cluster", c.name.as_str())]))
        };
        let by_tier = || {
            snapshot.clusters.iter().flat_map(|c| {
                Tier::ALL.map(|tier| (c, tier, vec![("cluster", c.name.as_str()), ("tier", tier.as_str())]))
            })
        };
        let opened = by_tier().map(|(c, tier, labels)| (labels, c.opened[tier as usize].get()));
        out.counter(
            "connections_opened",
            "Flows that have entered a tier; each begins on copy",
            opened,
        )?;
        let active = by_tier().map(|(c, tier, labels)| (labels, f64::from(c.active[tier as usize].get())));
        out.gauge("connections_active", "Flows now", active)?;
        let closed = snapshot.clusters.iter().flat_map(|c| {
            FlowEnd::ALL.map(|end| {
                let labels = vec![("cluster", c.name.as_str()), ("reason", end.label())];
                (labels, c.closed[end as usize].get())
            })
        });
        out.counter("connections_closed", "Flows ended", closed)?;
        let failures = snapshot
            .clusters
            .iter()
            .flat_map(|c| by_label("cluster", &c.name, "reason", &c.connect_failures));
        out.counter(
            "connect_failures",
            "Connects to hosts that failed",
            failures.collect::<Vec<_>>(),
        )?;
        out.seconds(
            "connect_duration",
            "Time to connect to a host",
            all().map(|(c, labels)| (labels, &c.connect_seconds)),
        )?;
        let bytes = snapshot.clusters.iter().flat_map(|c| {
            [("in", c.bytes_in.get()), ("out", c.bytes_out.get())]
                .map(|(direction, n)| (vec![("cluster", c.name.as_str()), ("direction", direction)], n))
        });
        out.counter("bytes", "Bytes from clients (in) and to clients (out)", bytes)?;
        let checks = snapshot.clusters.iter().flat_map(|c| {
            [("ok", c.checks_ok.get()), ("failed", c.checks_failed.get())]
                .map(|(result, n)| (vec![("cluster", c.name.as_str()), ("result", result)], n))
        });
        out.counter("health_checks", "Health checks", checks)
    }

    fn hosts(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let snapshot = self.0.shared.snapshot.load();
        let all = || {
            snapshot
                .hosts
                .iter()
                .flatten()
                .map(|h| (h, vec![("cluster", h.cluster.as_str()), ("host", h.name.as_str())]))
        };
        let up = all().map(|(h, labels)| (labels, f64::from(u8::from(h.health().0 == Health::Healthy))));
        out.gauge("backend_up", "1 if the last checks call the host healthy", up)?;
        let ejected = all().map(|(h, labels)| (labels, f64::from(u8::from(h.ejected.load(Relaxed)))));
        out.gauge(
            "backend_ejected",
            "1 if the host is set aside after failed connects",
            ejected,
        )?;
        out.gauge(
            "backend_connections_active",
            "Connections now",
            all().map(|(h, labels)| (labels, f64::from(h.active.get()))),
        )?;
        out.counter(
            "backend_connections",
            "Connections made",
            all().map(|(h, labels)| (labels, h.total.get())),
        )?;
        out.counter(
            "backend_refused",
            "Connects that failed",
            all().map(|(h, labels)| (labels, h.refused.get())),
        )?;
        let states = |state: Health| {
            snapshot
                .hosts
                .iter()
                .flatten()
                .filter(|h| h.health().0 == state)
                .count() as f64
        };
        let backends = [
            ("healthy", states(Health::Healthy)),
            ("unhealthy", states(Health::Unhealthy)),
            ("unknown", states(Health::Unknown)),
            ("draining", snapshot.draining.len() as f64),
        ];
        out.gauge(
            "backends",
            "Hosts by state",
            backends.map(|(state, n)| (vec![("state", state)], n)),
        )
    }

    /// Writes the metrics of sources, rotations, and refused connections of the admin API.
    fn control_plane(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let (shared, snapshot) = (&self.0.shared, self.0.shared.snapshot.load());
        let sources = shared.sources();
        out.gauge(
            "source_connected",
            "Whether a source of routes is in touch with what it watches",
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
            "Times that a source lost touch, or never got in touch",
            sources.iter().map(|s| (source_labels(s), s.failures.get())),
        )?;
        out.counter(
            "source_events",
            "What was reported to sources, by kind and outcome",
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
            "Time that it takes to put what sources have reported in force",
            [(Vec::new(), &shared.apply_seconds)],
        )?;
        let jobs = self.0.jobs.all();
        let count = |progress| jobs.iter().filter(|job| job.progress == progress).count() as f64;
        out.gauge(
            "rotation_jobs",
            "Rotation jobs, those that have ended lately included",
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
            [(Vec::new(), shared.denied.get())],
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

    fn services(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let (services, hooks) = (self.0.services.list(), self.0.services.hooks());
        let of = |get: fn(&ServiceView) -> u64| {
            let one = move |service: &'_ ServiceView| get(service);
            services
                .iter()
                .map(|service| (vec![("service", service.name.as_str())], one(service)))
                .collect::<Vec<_>>()
        };
        let live = of(|service| u64::from(service.flows));
        out.gauge(
            "service_flows",
            "Established connections and sessions of a layer-4 service",
            live.into_iter().map(|(labels, n)| (labels, n as f64)),
        )?;
        out.counter(
            "service_flows_opened",
            "Flows of a layer-4 service begun",
            of(|service| service.flows_total),
        )?;
        let directions = |client: fn(&ServiceView) -> u64, host: fn(&ServiceView) -> u64| {
            let both = |service| {
                [("in", client(service)), ("out", host(service))].map(|(direction, n)| (service, direction, n))
            };
            let all = services.iter().flat_map(both);
            let labelled = all
                .map(|(service, direction, n)| (vec![("service", service.name.as_str()), ("direction", direction)], n));
            labelled.collect::<Vec<_>>()
        };
        out.counter(
            "service_packets",
            "Packets of a layer-4 service, from clients (in) and, in mode nat, from hosts (out)",
            directions(|service| service.packets_in, |service| service.packets_out),
        )?;
        out.counter(
            "service_bytes",
            "Bytes of IP packets of a layer-4 service, likewise",
            directions(|service| service.bytes_in, |service| service.bytes_out),
        )?;
        let hosts = services
            .iter()
            .flat_map(|service| service.hosts.iter().map(move |host| (service, host)));
        out.gauge(
            "service_host_share",
            "The part of new flows of a layer-4 service that a host gets now",
            hosts.map(|(service, host)| {
                let labels = vec![("service", service.name.as_str()), ("host", host.name.as_str())];
                (labels, host.share / 100.0)
            }),
        )?;
        let on = hooks
            .iter()
            .map(|on| (vec![("interface", on.interface.as_str()), ("hook", on.hook)], 1.0));
        out.gauge(
            "service_hook",
            "Interfaces with a program of layer-4 services, and which: 1",
            on,
        )?;
        let troubles = self.0.services.problems().len();
        out.gauge(
            "service_troubles",
            "What of layer-4 services is not as it should be; `signalbox services` says what",
            [(Vec::new(), troubles as f64)],
        )?;
        self.exposed(out)
    }

    fn exposed(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let snapshot = self.0.shared.snapshot.load();
        let ranges = &snapshot.exposure.ranges;
        let ports = ranges.iter().flat_map(|range| {
            let counts = [
                ("used", range.used),
                ("kept", range.kept),
                ("free", range.free),
                ("taken", range.taken.len()),
            ];
            counts.map(|(state, count)| (vec![("listen", range.listen.as_str()), ("state", state)], count as f64))
        });
        out.gauge(
            "expose_ports",
            "Ports of a rule of `expose`: used by an application, kept for one, free, or taken by listeners and services of \
             the configuration",
            ports,
        )?;
        let waiting = ranges
            .iter()
            .map(|range| (vec![("listen", range.listen.as_str())], range.waiting as f64));
        out.gauge(
            "expose_waiting",
            "Port names of applications that a rule of `expose` takes, and that have no port; `signalbox services` says why",
            waiting,
        )?;
        let left_out = snapshot
            .exposure
            .entries
            .values()
            .map(|entry| entry.left_out.len())
            .sum::<usize>();
        out.gauge(
            "expose_left_out_endpoints",
            "Endpoints that an exposed service cannot lead to; `signalbox services` says why",
            [(Vec::new(), left_out as f64)],
        )
    }

    fn shield(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let guards = self.0.services.guards();
        let kind = |kind: GuardKind| {
            if kind == GuardKind::Listener {
                "listener"
            } else {
                "service"
            }
        };
        let decisions = guards.iter().flat_map(|guard| {
            guard.decisions.iter().map(move |(decision, count)| {
                let labels = vec![
                    ("kind", kind(guard.kind)),
                    ("name", guard.name.as_str()),
                    ("decision", decision.as_str()),
                ];
                (labels, count.as_u64().unwrap_or(0))
            })
        });
        out.counter(
            "shield_decisions",
            "Packets of a listener or a layer-4 service that the shield has dropped, or answered with a SYN cookie",
            decisions,
        )?;
        let common = self.0.services.shared_prefixes();
        let own = guards.iter().map(|guard| {
            (
                vec![("kind", kind(guard.kind)), ("name", guard.name.as_str())],
                guard.prefixes,
            )
        });
        let all = own.chain([(vec![("kind", "all"), ("name", "")], common)]);
        out.gauge(
            "shield_prefixes",
            "Prefixes that the shield denies or allows, for all or for one listener or service",
            all.map(|(labels, count)| (labels, count as f64)),
        )
    }

    fn kernel(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let mut exits = self
            .0
            .counters
            .as_ref()
            .map_or_else(Vec::new, |counters| counters.exit_counts());
        if let Some((cut, _)) = &self.0.cut {
            // The programs of tier cut count apart: they outlive the process.
            let ours = |reason: &Reason| reason.program().starts_with("cut");
            exits.retain(|(reason, _)| !ours(reason));
            exits.extend(cut.exit_counts().into_iter().filter(|(reason, _)| ours(reason)));
        }
        let ours = |reason: &Reason| matches!(reason.program(), "l4" | "shield");
        exits.retain(|(reason, _)| !ours(reason));
        exits.extend(
            self.0
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
    /// Checks that docs/metrics.md lists exactly the metrics of the code.
    #[test]
    fn the_document_and_the_code_agree() {
        let code = [include_str!("metrics.rs"), include_str!("metrics/routes.rs")].concat();
        let document = include_str!("../../../docs/metrics.md");
        let mut written = Vec::new();
        for (kind, suffix) in [("counter", "_total"), ("gauge", ""), ("seconds", "_seconds")] {
            for call in code.split(&format!("out.{kind}(")).skip(1) {
                let name = call.split('"').nth(1).unwrap();
                written.push(format!("signalbox_{name}{suffix}"));
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

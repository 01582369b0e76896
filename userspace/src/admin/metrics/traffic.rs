//! Metrics of listeners, clusters and hosts.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use signalbox_core::limits::stats::Counter;
use signalbox_core::model::{Protocol, Tier};
use signalbox_core::routing::health::Health;

use super::{MetricWriter, Scrape, by_label};
use crate::state::outcome::{FlowEnd, Ineligible};

impl Scrape {
    pub(super) fn listeners(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
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
            "Connections by the protocol that their first bytes showed",
            peeks.collect::<Vec<_>>(),
        )?;
        let paths = snapshot.listeners.iter().flat_map(|l| {
            let of = |path| vec![("listener", l.name.as_str()), ("path", path)];
            let by_workers = l.paths.by_reason();
            let by_workers = by_workers.map(move |(reason, n)| ([of("worker"), vec![("reason", reason)]].concat(), n));
            std::iter::once((of("kernel"), l.paths.kernel.get())).chain(by_workers)
        });
        out.counter(
            "connections_path",
            "Connections by their path: routed in the kernel, or by a worker and why",
            paths.collect::<Vec<_>>(),
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
            "Time until a connection's destination was known",
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

    pub(super) fn clusters(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
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
        let each = |counter: fn(&crate::state::ClusterState) -> u64| {
            let clusters = snapshot.clusters.iter();
            clusters.map(move |c| (vec![("cluster", c.name.as_str())], counter(c)))
        };
        out.counter(
            "connect_retries",
            "SYNs to hosts that did not answer soon, sent again",
            each(|c| c.connect_retries.get()),
        )?;
        out.counter(
            "redispatches",
            "Connections that went to another host, because the first refused or did not answer",
            each(|c| c.redispatches.get()),
        )?;
        let queues = || {
            snapshot
                .clusters
                .iter()
                .map(|c| (vec![("cluster", c.name.as_str())], &c.queue))
        };
        out.gauge(
            "host_queue_waiting",
            "Connections and requests that wait until a host of the cluster has room",
            queues().map(|(labels, queue)| (labels, f64::from(queue.waiting.get()))),
        )?;
        out.counter(
            "host_queue_timeouts",
            "Connections and requests that no host had room for in time",
            queues().map(|(labels, queue)| (labels, queue.timeouts.get())),
        )?;
        out.counter(
            "host_queue_abandoned",
            "Requests whose client had gone before a host had room",
            queues().map(|(labels, queue)| (labels, queue.abandoned.get())),
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

    pub(super) fn hosts(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let snapshot = self.0.shared.snapshot.load();
        let all = || {
            snapshot
                .hosts
                .iter()
                .flatten()
                .map(|h| (h, vec![("cluster", h.cluster.as_str()), ("host", h.name.as_str())]))
        };
        let up = all().map(|(h, labels)| (labels, f64::from(u8::from(h.health().0 == Health::Healthy))));
        out.gauge("backend_up", "1 if the host is healthy by its last checks", up)?;
        let ejected = all().map(|(h, labels)| (labels, f64::from(u8::from(h.ejected.load(Relaxed)))));
        out.gauge(
            "backend_ejected",
            "1 if the host is ejected after failed connects",
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
}

//! Metrics of layer-4 services, exposed ports and the shield.

use std::fmt;

use signalbox_api::services::ServiceView;

use super::{MetricWriter, Scrape};

/// Labels of a service's series.
fn labels_of(service: &ServiceView) -> Vec<(&'static str, &str)> {
    vec![("service", service.name.as_str()), ("protocol", &service.protocol)]
}

impl Scrape {
    pub(super) fn services(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let (services, hooks) = (self.0.kernel.services.list(), self.0.kernel.services.hooks());
        let of = |get: fn(&ServiceView) -> u64| {
            let one = move |service: &'_ ServiceView| get(service);
            services
                .iter()
                .map(|service| (labels_of(service), one(service)))
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
            let labelled = all.map(|(service, direction, n)| {
                let mut labels = labels_of(service);
                labels.push(("direction", direction));
                (labels, n)
            });
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
                let mut labels = labels_of(service);
                labels.push(("host", host.name.as_str()));
                (labels, host.share / 100.0)
            }),
        )?;
        let on = hooks
            .iter()
            .map(|on| (vec![("interface", on.interface.as_str()), ("hook", &*on.hook)], 1.0));
        out.gauge(
            "service_hook",
            "Interfaces with a program of layer-4 services, and which: 1",
            on,
        )?;
        let troubles = self.0.kernel.services.problems().len();
        out.gauge(
            "service_troubles",
            "Problems of layer-4 services; `signalbox services` lists them",
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

    pub(super) fn shield(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let guards = self.0.kernel.services.guards();
        let decisions = guards.iter().flat_map(|guard| {
            guard.decisions.iter().map(move |(decision, count)| {
                let labels = vec![
                    ("kind", guard.kind.as_str()),
                    ("name", guard.name.as_str()),
                    ("decision", &**decision),
                ];
                (labels, *count)
            })
        });
        out.counter(
            "shield_decisions",
            "Packets of a listener or a layer-4 service that the shield has dropped, or answered with a SYN cookie",
            decisions,
        )?;
        let common = self.0.kernel.services.shared_prefixes();
        let own = guards.iter().map(|guard| {
            (
                vec![("kind", guard.kind.as_str()), ("name", guard.name.as_str())],
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
}

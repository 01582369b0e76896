//! Metrics of resources with a fixed size: how much fits, and how much is used.

use std::fmt;

use signalbox_common::steer::MAX_BINDINGS;

use super::{MetricWriter, Scrape};

/// A resource with a fixed size.
struct Room {
    what: &'static str,
    used: f64,
    size: f64,
}

impl Scrape {
    pub(super) fn capacity(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let all = self.rooms();
        out.gauge(
            "capacity",
            "Number that there is room for: connections with sockets, cut flows, flows of services, addresses",
            all.iter().map(|room| (vec![("what", room.what)], room.size)),
        )?;
        out.gauge(
            "capacity_used",
            "Number of those that are there",
            all.iter().map(|room| (vec![("what", room.what)], room.used)),
        )
    }

    fn rooms(&self) -> Vec<Room> {
        let (shared, facts) = (&self.0.shared, &self.0.facts);
        let (current, with_sockets) = (shared.totals.current.get(), shared.totals.with_sockets.get());
        let snapshot = shared.snapshot.load();
        let configured = snapshot.model.limits.max_connections;
        let mut all = vec![Room {
            what: "connections",
            used: f64::from(with_sockets),
            size: f64::from(configured.unwrap_or(facts.max_connections)),
        }];
        if let Some((cut, _)) = &self.0.kernel.cut {
            let (own, of_workers) = (cut.table.own_len(), cut.table.worker_len());
            let peeked = cut.table.used_among(of_workers..own);
            all.push(Room {
                what: "cut_flows",
                // Connections without sockets are in the kernel.
                used: f64::from(current.saturating_sub(with_sockets).saturating_sub(peeked)),
                size: f64::from(of_workers),
            });
            if own > of_workers {
                all.push(Room {
                    what: "kernel_peek_flows",
                    used: f64::from(peeked),
                    size: f64::from(own - of_workers),
                });
            }
        }
        if let Some(size) = self.0.kernel.services.max_flows() {
            let flows = self.0.kernel.services.list();
            all.push(Room {
                what: "service_flows",
                used: flows.iter().map(|service| f64::from(service.flows)).sum(),
                size: f64::from(size),
            });
        }
        if facts.steering == "sk_lookup" {
            all.push(Room {
                what: "addresses",
                used: snapshot.model.listeners.iter().map(|l| l.listen.len() as f64).sum(),
                size: f64::from(MAX_BINDINGS),
            });
        }
        all
    }
}

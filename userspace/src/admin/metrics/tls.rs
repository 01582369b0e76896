//! Metrics of TLS that ends here: handshakes and certificates.

use std::fmt;

use signalbox_core::limits::stats::Gauge;

use super::{MetricWriter, Scrape, by_label};
use crate::state::tls::{HandshakeStats, TLS_VERSIONS};

impl Scrape {
    pub(super) fn tls(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let shared = &self.0.shared;
        let snapshot = shared.snapshot.load();
        let pairs = snapshot.model.listeners.iter().zip(&snapshot.listeners);
        let listeners: Vec<_> = pairs.filter(|(l, _)| l.tls.is_some()).map(|(_, state)| state).collect();
        if listeners.is_empty() {
            return Ok(());
        }
        let done = listeners.iter().flat_map(|l| {
            let by_version = TLS_VERSIONS.into_iter().zip(&l.handshakes.done);
            by_version.flat_map(move |(version, counts)| {
                ["no", "yes"].into_iter().zip(counts).map(move |(resumed, count)| {
                    let labels = vec![
                        ("listener", l.name.as_str()),
                        ("version", version),
                        ("resumed", resumed),
                    ];
                    (labels, count.get())
                })
            })
        });
        out.counter("tls_handshakes", "TLS handshakes with clients", done)?;
        let failed = listeners
            .iter()
            .flat_map(|l| by_label("listener", &l.name, "reason", &l.handshakes.failed));
        out.counter(
            "tls_handshake_failures",
            "TLS handshakes with clients that failed",
            failed.collect::<Vec<_>>(),
        )?;
        out.seconds(
            "tls_handshake_duration",
            "Time that a TLS handshake took, from the ClientHello on",
            listeners
                .iter()
                .map(|l| (vec![("listener", l.name.as_str())], &l.handshakes.seconds)),
        )?;
        let by_listener = |count: fn(&HandshakeStats) -> &Gauge| {
            listeners.iter().map(move |l| {
                (
                    vec![("listener", l.name.as_str())],
                    f64::from(count(&l.handshakes).get()),
                )
            })
        };
        out.gauge(
            "tls_handshakes_in_progress",
            "TLS handshakes with clients that are in progress",
            by_listener(|handshakes| &handshakes.in_progress),
        )?;
        out.gauge(
            "tls_handshakes_waiting",
            "TLS handshakes with clients that wait until others have ended",
            by_listener(|handshakes| &handshakes.waiting),
        )?;
        let certificates = shared.tls.certificates.load();
        let ends = certificates.certificates().iter().map(|certificate| {
            (
                vec![("certificate", certificate.label.as_str())],
                certificate.not_after as f64,
            )
        });
        out.gauge(
            "certificate_not_after_timestamp_seconds",
            "Last second of a certificate's validity, since 1970",
            ends,
        )?;
        let states = [
            ("used", certificates.certificates().len()),
            ("unusable", shared.tls.certificate_errors.load().len()),
        ];
        out.gauge(
            "certificates",
            "Active certificates, and certificate files that cannot be used",
            states.map(|(state, n)| (vec![("state", state)], n as f64)),
        )
    }
}

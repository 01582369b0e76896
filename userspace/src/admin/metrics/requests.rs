//! Metrics of requests that are routed one by one (`routing: request`).

use std::fmt;

use super::{MetricWriter, Scrape, by_label};

impl Scrape {
    pub(super) fn requests(&self, out: &mut MetricWriter<'_>) -> fmt::Result {
        let snapshot = self.0.shared.snapshot.load();
        let counted: Vec<_> = snapshot.listeners.iter().map(|l| (l, l.requests.get())).collect();
        let requests = counted.iter().flat_map(|(listener, counts)| {
            counts.iter().map(|(cluster, code, n)| {
                let labels = vec![
                    ("listener", listener.name.as_str()),
                    ("cluster", cluster.as_str()),
                    ("code", *code),
                ];
                (labels, *n)
            })
        });
        out.counter(
            "requests",
            "Requests answered, by class of the status code; `cut` for those whose answer the kernel carries",
            requests,
        )?;
        let refused = snapshot
            .listeners
            .iter()
            .flat_map(|l| by_label("listener", &l.name, "reason", &l.request_refused));
        out.counter(
            "request_refused",
            "Requests that the balancer answered itself or gave up",
            refused.collect::<Vec<_>>(),
        )?;
        let behind = snapshot
            .listeners
            .iter()
            .map(|l| (vec![("listener", l.name.as_str())], l.bytes_behind_request.get()));
        out.counter(
            "bytes_behind_request",
            "Bytes that clients had sent after a request that was cut, dropped with their socket",
            behind,
        )?;
        let late = snapshot
            .listeners
            .iter()
            .flat_map(|l| by_label("listener", &l.name, "result", &l.late_cut));
        out.counter(
            "late_cut",
            "WebSockets by what became of their late cut",
            late.collect::<Vec<_>>(),
        )?;
        let clusters = || snapshot.clusters.iter().map(|c| (c, c.name.as_str()));
        out.seconds(
            "request_duration",
            "Time of requests, from the end of their heads to the end of their answers",
            clusters()
                .filter(|(c, _)| c.request_seconds.read().1 > 0)
                .map(|(c, name)| (vec![("cluster", name)], &c.request_seconds)),
        )?;
        out.counter(
            "retries",
            "Requests sent again over another connection",
            clusters().map(|(c, name)| (vec![("cluster", name)], c.retries.get())),
        )?;
        out.counter(
            "repaired_answers",
            "Malformed answers of hosts passed on in correct form",
            clusters().map(|(c, name)| (vec![("cluster", name)], c.repaired_answers.get())),
        )?;
        let pools = clusters().flat_map(|(c, name)| {
            [("idle", &c.pool_idle), ("active", &c.pool_active)]
                .map(|(state, count)| (vec![("cluster", name), ("state", state)], f64::from(count.get())))
        });
        out.gauge(
            "pool_connections",
            "Connections to hosts that wait for a request or carry one",
            pools,
        )?;
        out.gauge(
            "host_http2_streams_active",
            "Streams to hosts that are not ended",
            clusters().map(|(c, name)| (vec![("cluster", name)], f64::from(c.http2.streams.get()))),
        )?;
        out.counter(
            "host_http2_connections",
            "HTTP/2 connections to hosts",
            clusters().map(|(c, name)| (vec![("cluster", name)], c.http2.connections.get())),
        )?;
        out.counter(
            "host_http2_malformed",
            "Answers of hosts in HTTP/2 with malformed fields",
            clusters().map(|(c, name)| (vec![("cluster", name)], c.http2.malformed.get())),
        )?;
        let listeners = || {
            snapshot
                .listeners
                .iter()
                .map(|l| (vec![("listener", l.name.as_str())], &l.http2))
        };
        out.gauge(
            "http2_streams_active",
            "Streams of clients' HTTP/2 connections that are not ended",
            listeners().map(|(labels, http2)| (labels, f64::from(http2.streams.get()))),
        )?;
        out.counter(
            "http2_malformed",
            "Clients' requests in HTTP/2 with malformed fields",
            listeners().map(|(labels, http2)| (labels, http2.malformed.get())),
        )?;
        out.counter(
            "http2_connections",
            "Clients' HTTP/2 connections, at listeners where requests are routed",
            listeners().map(|(labels, http2)| (labels, http2.connections.get())),
        )
    }
}

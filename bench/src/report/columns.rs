//! Columns of a scenario's table.

use super::row::Row;
use crate::scenario::ScenarioKind;
use crate::stats::Spread;

/// A column: its head, and the text of a row.
pub(super) type Column = (&'static str, fn(&Row) -> String);

/// Columns for a kind of scenario.
pub(super) fn of(kind: ScenarioKind) -> &'static [Column] {
    match kind {
        ScenarioKind::Unique(_)
        | ScenarioKind::Reused(_)
        | ScenarioKind::Tls(_)
        | ScenarioKind::Streams(_)
        | ScenarioKind::Tunnels(_) => REQUESTS,
        ScenarioKind::Latency(_) => LATENCY,
        ScenarioKind::Large(_) | ScenarioKind::UniqueLarge(_) | ScenarioKind::UniqueHuge(_) => LARGE,
        ScenarioKind::Bulk(_) => BULK,
        ScenarioKind::Idle(_) | ScenarioKind::IdleTunnels(_) => IDLE,
        ScenarioKind::Change(_) => CHANGE,
        ScenarioKind::Openings(_) | ScenarioKind::Flooded(_) => OPENINGS,
        ScenarioKind::FailingHost(_) => FAILING,
        ScenarioKind::Anatomy => ANATOMY,
    }
}

const REQUESTS: &[Column] = &[
    ("total requests", |r| number(r.summary.work, 1.0, 0)),
    ("requests/s", |r| number(r.summary.rate, 1.0, 0)),
    ("min..max", |r| range(r.summary.rate, 0)),
    ("x HAProxy", |r| number(r.summary.ratio, 1.0, 2)),
    ("mean ms", |r| number(r.summary.mean, 1e-3, 3)),
    ("p50 ms", |r| number(r.summary.p50, 1e-3, 3)),
    ("p99 ms", |r| number(r.summary.p99, 1e-3, 3)),
    ("CPU µs/request", |r| number(r.summary.cpu, 1.0, 1)),
    ("added", |r| number(r.summary.added_cpu, 1.0, 1)),
    ("added x HAProxy", added_ratio),
    ("own", |r| number(r.summary.own_cpu, 1.0, 1)),
];

const LATENCY: &[Column] = &[
    ("offered/s", |r| number(r.summary.offered, 1.0, 0)),
    ("achieved/s", |r| number(r.summary.rate, 1.0, 0)),
    ("mean ms", |r| number(r.summary.mean, 1e-3, 3)),
    ("p50 ms", |r| number(r.summary.p50, 1e-3, 3)),
    ("p99 ms", |r| number(r.summary.p99, 1e-3, 3)),
    ("p99 x HAProxy", |r| number(r.summary.ratio, 1.0, 2)),
    ("p99.9 ms", |r| number(r.summary.p999, 1e-3, 3)),
    ("CPU µs/request", |r| number(r.summary.cpu, 1.0, 1)),
    ("added", |r| number(r.summary.added_cpu, 1.0, 1)),
    ("added x HAProxy", added_ratio),
    ("own", |r| number(r.summary.own_cpu, 1.0, 1)),
];

const OPENINGS: &[Column] = &[
    ("achieved/s", |r| number(r.summary.rate, 1.0, 0)),
    ("p50 ms", |r| number(r.summary.p50, 1e-3, 3)),
    ("p99 ms", |r| number(r.summary.p99, 1e-3, 3)),
    ("CPU µs/connection", |r| number(r.summary.cpu, 1.0, 1)),
    ("own", |r| number(r.summary.own_cpu, 1.0, 1)),
    ("replicated/s", |r| number(r.summary.replicated, 1.0, 0)),
    ("bytes/flow", |r| number(r.summary.replicated_bytes, 1.0, 0)),
    ("mean lag ms", |r| number(r.summary.mean_lag, 1e-3, 2)),
    ("p99 lag below ms", |r| number(r.summary.p99_lag, 1e-3, 2)),
];

const FAILING: &[Column] = &[
    ("achieved/s", |r| number(r.summary.rate, 1.0, 0)),
    ("p50 ms", |r| number(r.summary.p50, 1e-3, 3)),
    ("p99 ms", |r| number(r.summary.p99, 1e-3, 3)),
    ("p99.9 ms", |r| number(r.summary.p999, 1e-3, 3)),
    ("slowest ms", |r| number(r.summary.slowest, 1e-3, 3)),
    ("lost %", |r| number(r.summary.lost, 1.0, 2)),
    ("CPU µs/connection", |r| number(r.summary.cpu, 1.0, 1)),
    ("own", |r| number(r.summary.own_cpu, 1.0, 1)),
];

/// Parts of a connection, in µs, from packet to packet at the client and at the host.
const ANATOMY: &[Column] = &[
    ("SYN-ACK to the client", |r| part(r, 0)),
    ("client asks", |r| part(r, 1)),
    ("SYN to the host", |r| part(r, 2)),
    ("host accepts", |r| part(r, 3)),
    ("request to the host", |r| part(r, 4)),
    ("host answers", |r| part(r, 5)),
    ("answer to the client", |r| part(r, 6)),
    ("whole µs", |r| part(r, 7)),
];

fn part(row: &Row, number: usize) -> String {
    self::number(row.summary.anatomy[number], 1.0, 1)
}

const LARGE: &[Column] = &[
    ("total requests", |r| number(r.summary.work, 1.0, 0)),
    ("requests/s", |r| number(r.summary.rate, 1.0, 0)),
    ("min..max", |r| range(r.summary.rate, 0)),
    ("x HAProxy", |r| number(r.summary.ratio, 1.0, 2)),
    ("Gbit/s", |r| number(r.summary.gbit, 1.0, 1)),
    ("mean ms", |r| number(r.summary.mean, 1e-3, 2)),
    ("p50 ms", |r| number(r.summary.p50, 1e-3, 2)),
    ("p99 ms", |r| number(r.summary.p99, 1e-3, 2)),
    ("CPU ms/GB", |r| number(r.summary.cpu, 1e-3, 0)),
    ("added", |r| number(r.summary.added_cpu, 1e-3, 0)),
    ("added x HAProxy", added_ratio),
    ("own", |r| number(r.summary.own_cpu, 1e-3, 0)),
];

const BULK: &[Column] = &[
    ("Gbit/s", |r| number(r.summary.rate, 1.0, 1)),
    ("min..max", |r| range(r.summary.rate, 1)),
    ("x HAProxy", |r| number(r.summary.ratio, 1.0, 2)),
    ("CPU ms/GB", |r| number(r.summary.cpu, 1e-3, 0)),
    ("added", |r| number(r.summary.added_cpu, 1e-3, 0)),
    ("added x HAProxy", added_ratio),
    ("own", |r| number(r.summary.own_cpu, 1e-3, 0)),
];

const IDLE: &[Column] = &[
    ("RSS KiB/connection", |r| number(r.summary.resident, 1.0 / 1024.0, 2)),
    ("x HAProxy", |r| number(r.summary.ratio, 1.0, 2)),
    ("added kernel KiB/connection", |r| {
        number(r.summary.added_kernel, 1.0 / 1024.0, 1)
    }),
];

const CHANGE: &[Column] = &[
    ("all names answer after ms", |r| number(r.summary.until_all, 1e-3, 1)),
    ("x HAProxy", |r| number(r.summary.ratio, 1.0, 2)),
    ("worst latency meanwhile ms", |r| number(r.summary.worst, 1e-3, 1)),
    ("failed requests", |r| number(r.summary.failed, 1.0, 0)),
    ("RSS MiB after", |r| {
        number(r.summary.resident_after, 1.0 / 1_048_576.0, 1)
    }),
];

/// Formats a median, or `-`.
pub(super) fn number(value: Option<Spread>, scale: f64, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |spread| format!("{:.digits$}", spread.median * scale))
}

fn range(value: Option<Spread>, digits: usize) -> String {
    value.map_or_else(
        || "-".into(),
        |spread| format!("{:.digits$}..{:.digits$}", spread.min, spread.max),
    )
}

fn added_ratio(row: &Row) -> String {
    row.summary
        .added_ratio
        .map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"))
}

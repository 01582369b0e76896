//! Columns of each kind of row.

use signalbox_api::flows::{FlowView, ServiceFlowView};
use signalbox_api::ha::{GroupView, PeerView};
use signalbox_api::hosts::{HostHealth, HostStatus};
use signalbox_api::rotations::{JobView, OutView};
use signalbox_api::routing::{ClusterView, ListenerView, RouteCluster, RouteView};
use signalbox_api::shield::GuardView;
use signalbox_api::sources::{ApplicationView, CertificateView, ClusterReport, SourceView};
use signalbox_core::availability::ha::notice::GroupState;
use signalbox_core::routing::diff::ModelChange;

use super::cell::{ShownCell, bytes, joined, seconds, since, truncated};

/// A column: its title, and the cell of a row.
pub(crate) type Column<R> = (&'static str, fn(&R) -> ShownCell);

/// Object that a table shows as a row.
pub(crate) trait TableRow: Sized + 'static {
    const COLUMNS: &'static [Column<Self>];
}

impl TableRow for ListenerView {
    const COLUMNS: &'static [Column<Self>] = &[
        ("LISTENER", |of| (&of.name).into()),
        ("PROTOCOL", |of| (&of.protocol).into()),
        ("LISTEN", |of| joined(&of.listen)),
        ("TIER", |of| (&of.tier).into()),
        ("ACTIVE", |of| of.active_connections.into()),
        ("TOTAL", |of| of.total_connections.into()),
    ];
}

impl TableRow for RouteView {
    const COLUMNS: &'static [Column<Self>] = &[
        ("ROUTE", |of| (&of.host).into()),
        ("CLUSTERS", |of| {
            let share = |share: &RouteCluster| format!("{}:{}", share.name, share.weight);
            of.clusters.iter().map(share).collect::<Vec<_>>().join(" ").into()
        }),
        ("ACTIVE", |of| of.active_connections.into()),
        ("TOTAL", |of| of.total_connections.into()),
        ("IN", |of| bytes(of.bytes_in)),
        ("OUT", |of| bytes(of.bytes_out)),
    ];
}

impl TableRow for ClusterView {
    const COLUMNS: &'static [Column<Self>] = &[
        ("CLUSTER", |of| (&of.name).into()),
        ("BALANCE", |of| (&of.balance).into()),
        ("HOSTS", |of| of.hosts.into()),
        ("HEALTHY", |of| of.healthy_hosts.into()),
        ("ACTIVE", |of| of.active_connections.into()),
        ("IN", |of| bytes(of.bytes_in)),
        ("OUT", |of| bytes(of.bytes_out)),
    ];
}

impl TableRow for HostStatus {
    const COLUMNS: &'static [Column<Self>] = &[
        ("CLUSTER", |of| (&of.cluster).into()),
        ("HOST", |of| (&of.name).into()),
        ("ADDRESS", |of| (&of.address).into()),
        ("STATE", |of| of.state_text(of.health).into()),
        ("SUBSET", |of| of.subset.as_ref().into()),
        ("WEIGHT", |of| of.weight.into()),
        ("ACTIVE", |of| of.active_connections.into()),
        ("TOTAL", |of| of.total_connections.into()),
        ("REFUSED", |of| of.refused_connections.into()),
        ("IN", |of| bytes(of.bytes_in)),
        ("OUT", |of| bytes(of.bytes_out)),
        ("LAST CHECK", |of| {
            let check = of.last_check.as_ref().map(|check| check.detail.as_str());
            match (check, &of.tls_fault) {
                (Some(check), Some(fault)) => format!("{check}; TLS: {fault}").into(),
                (check, _) => check.into(),
            }
        }),
        ("CHECKED BY", |of| match &of.checked_by {
            // The reason why no router answers matters only for an unhealthy host.
            Some(how) if of.health == HostHealth::Healthy => how.split(';').next().into(),
            how => how.as_ref().into(),
        }),
    ];
}

impl TableRow for FlowView {
    const COLUMNS: &'static [Column<Self>] = &[
        ("CLIENT", |of| of.client.to_string().into()),
        ("LISTENER", |of| (&of.listener).into()),
        ("ROUTE", |of| of.route.as_ref().into()),
        ("CLUSTER", |of| (&of.cluster).into()),
        ("HOST", |of| (&of.host).into()),
        ("TIER", |of| (&of.tier).into()),
        ("WHY", |of| (&of.tier_reason).into()),
        ("AGE", |of| seconds(of.age_seconds)),
        ("IDLE", |of| seconds(of.idle_seconds)),
        ("IN", |of| bytes(of.bytes_in)),
        ("OUT", |of| bytes(of.bytes_out)),
    ];
}

impl TableRow for ServiceFlowView {
    const COLUMNS: &'static [Column<Self>] = &[
        ("CLIENT", |of| of.client.to_string().into()),
        ("LISTEN", |of| of.listen.to_string().into()),
        ("PROTOCOL", |of| (&of.protocol).into()),
        ("HOST", |of| of.host.to_string().into()),
        ("PACKETS", |of| of.packets_in.into()),
        ("IN", |of| bytes(of.bytes_in)),
        ("IDLE", |of| seconds(of.idle_seconds)),
    ];
}

impl TableRow for SourceView {
    const COLUMNS: &'static [Column<Self>] = &[
        ("SOURCE", |of| (&of.name).into()),
        ("KIND", |of| of.contact.as_ref().map(|contact| &contact.kind).into()),
        ("CONNECTED", |of| of.connected.into()),
        ("LAST HEARD", |of| {
            let heard = of.contact.as_ref().and_then(|contact| contact.seconds_since_heard);
            heard.map(seconds).into()
        }),
        ("FAILURES", |of| {
            of.contact.as_ref().map(|contact| contact.failures).into()
        }),
        ("CLUSTERS", |of| {
            let report = |of: &ClusterReport| {
                let (hosts, routes, rejected) = (of.hosts, of.routes, of.rejected.len());
                format!("{}: {hosts} hosts, {routes} routes, {rejected} rejected", of.cluster)
            };
            let reports = of.clusters.as_ref();
            reports
                .map(|all| all.iter().map(report).collect::<Vec<_>>().join("; "))
                .into()
        }),
        ("LAST ERROR", |of| {
            let error = of.contact.as_ref().and_then(|contact| contact.last_error.as_ref());
            error.map(|error| truncated(error)).into()
        }),
    ];
}

impl TableRow for ApplicationView {
    const COLUMNS: &'static [Column<Self>] = &[
        ("NAMESPACE", |of| (&of.namespace).into()),
        ("APPLICATION", |of| (&of.name).into()),
        ("ENDPOINTS", |of| of.endpoints.into()),
        ("ALIASES", |of| joined(&of.aliases)),
        ("EXPOSED AT", |of| joined(&of.exposed)),
        ("NOT EXPOSED", |of| joined(&of.not_exposed)),
    ];
}

impl TableRow for CertificateView {
    const COLUMNS: &'static [Column<Self>] = &[
        ("CERTIFICATE", |of| (&of.label).into()),
        ("NAMES", |of| joined(&of.names)),
        ("KEY", |of| (&of.key).into()),
        ("DEFAULT", |of| of.default.into()),
        ("STATE", |of| (&of.state).into()),
        ("DAYS LEFT", |of| of.days_left.into()),
        ("WARNINGS", |of| joined(&of.warnings)),
    ];
}

fn decided(guard: &GuardView, decision: &str) -> ShownCell {
    guard.decisions.get(decision).copied().into()
}

impl TableRow for GuardView {
    const COLUMNS: &'static [Column<Self>] = &[
        ("KIND", |of| of.kind.as_str().into()),
        ("NAME", |of| (&of.name).into()),
        ("PREFIXES", |of| of.prefixes.into()),
        ("MALFORMED", |of| decided(of, "malformed")),
        ("DENIED", |of| decided(of, "denied")),
        ("PACKETS", |of| decided(of, "packets")),
        ("BYTES", |of| decided(of, "bytes")),
        ("CONNECTIONS", |of| decided(of, "connections")),
        ("CONCURRENT", |of| decided(of, "concurrent")),
        ("COOKIES", |of| decided(of, "cookie")),
    ];
}

impl TableRow for OutView {
    const COLUMNS: &'static [Column<Self>] = &[
        ("OUT OF ROTATION", |of| (&of.subject).into()),
        ("REASON", |of| of.reason.as_ref().into()),
        ("SINCE", |of| since(of.since)),
        ("BY", |of| of.by.as_ref().into()),
        ("JOB", |of| of.job.into()),
    ];
}

impl TableRow for JobView {
    const COLUMNS: &'static [Column<Self>] = &[
        ("JOB", |of| of.id.into()),
        ("ACTION", |of| of.action.as_str().into()),
        ("WHAT", |of| joined(&of.subjects)),
        ("PROGRESS", |of| of.progress.as_str().into()),
        ("LEFT", |of| of.remaining_connections.into()),
        ("WAITS FOR", |of| {
            let waits = of.waits_for.iter().map(|(host, flows)| format!("{host}={flows}"));
            waits.collect::<Vec<_>>().join(" ").into()
        }),
        ("CLOSED", |of| of.closed_connections.into()),
    ];
}

impl TableRow for GroupView {
    const COLUMNS: &'static [Column<Self>] = &[
        ("GROUP", |of| (&of.name).into()),
        ("STATE", |of| of.state.map(GroupState::as_str).into()),
        ("PRIORITY", |of| of.priority.map(u32::from).into()),
        ("ADDRESSES", |of| joined(&of.vips)),
        ("SOURCES", |of| joined(&of.sources)),
        ("PREFERS", |of| of.prefer.as_ref().into()),
    ];
}

impl TableRow for PeerView {
    const COLUMNS: &'static [Column<Self>] = &[
        ("NODE", |of| (&of.node).into()),
        ("SENDING", |of| of.sending.into()),
        ("SEND ERROR", |of| of.send_error.as_ref().into()),
        ("ALL SENT", |of| of.told_all.into()),
        ("BEHIND MS", |of| of.behind_ms.into()),
        ("RECEIVING", |of| of.receiving.into()),
        ("COMPLETE", |of| of.complete.into()),
        ("FLOWS SENT", |of| of.flows_sent.into()),
        ("MEAN LAG", |of| of.mean_lag_seconds.into()),
        ("SHADOWS", |of| of.shadows.into()),
    ];
}

impl TableRow for ModelChange {
    const COLUMNS: &'static [Column<Self>] = &[
        ("NAME", |of| (&of.name).into()),
        ("BEFORE", |of| of.before.as_ref().into()),
        ("AFTER", |of| of.after.as_ref().into()),
    ];
}

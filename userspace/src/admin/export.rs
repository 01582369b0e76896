//! The active table, for other programs.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;
use serde::Deserialize;
use signalbox_api::export::{ExportAnswer, ExportedCluster, ExportedHost, ExportedName, ExportedShare};
use signalbox_core::discovered::export::{ExportTable, Format};
use signalbox_core::model::Protocol;

use super::problem::problem;
use super::reply::{ApiReply, TextOr, answer};
use crate::control::Control;
use crate::state::Snapshot;

/// The query of an export.
#[derive(Deserialize)]
pub(super) struct ExportQuery {
    format: String,
    protocol: Option<String>,
}

/// `GET /api/v1/export`.
pub(super) async fn export(
    State(control): State<Arc<Control>>,
    Query(wanted): Query<ExportQuery>,
) -> TextOr<ExportAnswer> {
    TextOr(exported(&control, &wanted))
}

fn exported(control: &Control, wanted: &ExportQuery) -> ApiReply<ExportAnswer> {
    let snapshot = control.shared.snapshot.load_full();
    let protocol = match wanted.protocol.as_deref() {
        None | Some("http") => Protocol::Http,
        Some("tls") => Protocol::Tls,
        Some(other) => return unknown("protocol", other, "http or tls"),
    };
    if wanted.format == "json" {
        return answer(whole_table(&snapshot));
    }
    let Some(format) = Format::parse(&wanted.format) else {
        return unknown(
            "format",
            &wanted.format,
            "json, haproxy-map, haproxy-wildcards, haproxy-backends or nginx-map",
        );
    };
    let is_out = |cluster: &str, host: &str, address| snapshot.rotation.is_out(cluster, host, address);
    let table = ExportTable::new(&snapshot.model, protocol, &is_out, &|route| {
        snapshot.rotation.is_closed(route)
    });
    (
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8")],
        table.render(format),
    )
        .into_response()
        .into()
}

fn unknown(what: &str, value: &str, known: &str) -> ApiReply<ExportAnswer> {
    problem(
        StatusCode::BAD_REQUEST,
        "The table cannot be shown so",
        &format!("{value:?} is no {what}: {known}"),
    )
}

fn whole_table(snapshot: &Snapshot) -> ExportAnswer {
    let model = &snapshot.model;
    let share = |&(at, weight): &(usize, u32)| ExportedShare {
        cluster: model.clusters.get(at).map(|cluster| cluster.name.clone()),
        weight,
    };
    let names = model.routes.iter().map(|route| ExportedName {
        host: route.hostname.to_string(),
        clusters: route.clusters.iter().map(share).collect(),
        out_of_rotation: snapshot.rotation.is_closed(route),
    });
    let clusters = model.clusters.iter().zip(&snapshot.hosts).map(|(cluster, states)| {
        let hosts = cluster.hosts.iter().zip(states).map(|(host, state)| ExportedHost {
            name: host.name.clone(),
            address: host.address,
            http: host.http,
            https: host.https,
            tcp: host.tcp,
            ports: host.ports.clone(),
            weight: host.weight,
            health: state.health().0.into(),
            out_of_rotation: snapshot.rotation.is_out(&cluster.name, &host.name, host.address),
        });
        ExportedCluster {
            name: cluster.name.clone(),
            balance: cluster.balance.as_str().into(),
            proxy_protocol: cluster.proxy_protocol.is_some(),
            hosts: hosts.collect(),
        }
    });
    ExportAnswer {
        names: names.collect(),
        clusters: clusters.collect(),
    }
}

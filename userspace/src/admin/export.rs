//! The active table, for other programs.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Json, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use signalbox_core::export::{ExportTable, Format};
use signalbox_core::model::Protocol;

use super::problem::problem;
use crate::control::Control;
use crate::state::Snapshot;

/// The query of an export.
#[derive(Deserialize)]
pub(super) struct ExportQuery {
    format: String,
    protocol: Option<String>,
}

/// `GET /api/v1/export`.
pub(super) async fn export(State(control): State<Arc<Control>>, Query(wanted): Query<ExportQuery>) -> Response {
    let snapshot = control.shared.snapshot.load_full();
    let protocol = match wanted.protocol.as_deref() {
        None | Some("http") => Protocol::Http,
        Some("tls") => Protocol::Tls,
        Some(other) => return unknown("protocol", other, "http or tls"),
    };
    if wanted.format == "json" {
        return Json(export_json(&snapshot)).into_response();
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
}

fn unknown(what: &str, value: &str, known: &str) -> Response {
    problem(
        StatusCode::BAD_REQUEST,
        "The table cannot be shown so",
        &format!("{value:?} is no {what}: {known}"),
    )
}

/// Returns the whole table: names with the weights of their clusters, clusters with their hosts.
fn export_json(snapshot: &Snapshot) -> Value {
    let model = &snapshot.model;
    let named = |&(at, weight): &(usize, u32)| {
        let cluster = model.clusters.get(at);
        json!({ "cluster": cluster.map(|cluster| &cluster.name), "weight": weight })
    };
    let names: Vec<_> = model
        .routes
        .iter()
        .map(|route| {
            json!({
                "host": route.hostname,
                "clusters": route.clusters.iter().map(named).collect::<Vec<_>>(),
                "out_of_rotation": snapshot.rotation.is_closed(route),
            })
        })
        .collect();
    let clusters = model.clusters.iter().zip(&snapshot.hosts).map(|(cluster, states)| {
        let hosts = cluster.hosts.iter().zip(states).map(|(host, state)| {
            json!({
                "name": host.name, "address": host.address, "http": host.http, "https": host.https, "tcp": host.tcp,
                "ports": host.ports, "weight": host.weight, "health": state.health().0,
                "out_of_rotation": snapshot.rotation.is_out(&cluster.name, &host.name, host.address),
            })
        });
        json!({
            "name": cluster.name, "balance": cluster.balance, "proxy_protocol": cluster.proxy_protocol,
            "hosts": hosts.collect::<Vec<_>>(),
        })
    });
    json!({ "apiVersion": "v1", "names": names, "clusters": clusters.collect::<Vec<_>>() })
}

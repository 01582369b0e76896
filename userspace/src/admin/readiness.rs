//! `/readyz`: whether the balancer may get connections, and if not, why.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;

use signalbox_core::routing::health::Health;

use super::pending_sources;
use crate::control::Control;

/// Returns the reasons why traffic should not, or no longer, be sent here.
pub(super) fn unready_reasons(control: &Control) -> Vec<String> {
    let (shared, snapshot) = (&control.shared, control.shared.snapshot.load());
    let mut reasons = Vec::new();
    if shared.life.stopping.load(Relaxed) {
        reasons.push("stopping".to_owned());
    }
    if snapshot.listeners.is_empty() && !snapshot.model.has_services() {
        reasons.push("no configuration is active".to_owned());
    }
    let missing = control.missing_features();
    let missing = missing.iter().filter(|missing| missing.is_required);
    reasons.extend(missing.map(|missing| format!("{}: {}", missing.feature, missing.why)));
    reasons.extend(pending_sources::pending_sources(control));
    // Unchecked hosts count only for a check's time-out after the start: a host that is added later must not make a
    // running balancer unready.
    let patience = snapshot
        .model
        .clusters
        .iter()
        .map(|c| c.health.timeout)
        .max()
        .unwrap_or_default();
    if shared.life.started.elapsed() < patience {
        let waiting = snapshot
            .hosts
            .iter()
            .flatten()
            .filter(|host| host.health().0 == Health::Unknown)
            .count();
        if waiting > 0 {
            reasons.push(format!("{waiting} hosts have not been checked yet"));
        }
    }
    reasons
}

pub(super) async fn readyz(State(control): State<Arc<Control>>, Query(query): Query<ReadyzQuery>) -> Response {
    let reasons = unready_reasons(&control);
    let status = if reasons.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let mut text = if reasons.is_empty() {
        "ready\n".to_owned()
    } else {
        format!("not ready: {}\n", reasons.join("; "))
    };
    if query.verbose.is_some() {
        let snapshot = control.shared.snapshot.load();
        let hosts = || snapshot.hosts.iter().flatten();
        text += &format!(
            "[{}] configuration\n",
            if snapshot.listeners.is_empty() && !snapshot.model.has_services() {
                "-"
            } else {
                "+"
            }
        );
        text += &format!(
            "[{}] accepting\n",
            if control.shared.life.stopping.load(Relaxed) {
                "-"
            } else {
                "+"
            }
        );
        text += &format!(
            "[+] hosts: {} of {} usable\n",
            hosts().filter(|h| h.health().0.usable()).count(),
            hosts().count()
        );
        text += &pending_sources::verbose_lines(&control);
        for missing in control.missing_features() {
            let mark = if missing.is_required { "-" } else { "~" };
            text += &format!("[{mark}] {}: {}\n", missing.feature, missing.why);
        }
        for (feature, why) in &control.facts.degraded {
            text += &format!("[~] {feature}: {why}\n");
        }
    }
    (status, text).into_response()
}

#[derive(Deserialize)]
pub(super) struct ReadyzQuery {
    verbose: Option<String>,
}

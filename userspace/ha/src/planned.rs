//! Planned moves: signalbox is asked to keep connections that cannot move along at the node that has them.

use std::path::Path;
use std::time::Duration;

use hyper::Method;
use serde_json::json;
use signalbox_core::model::HighAvailability;
use signalbox_core::model::ha::{HaMode, Preemption};
use signalbox_sources::client::{ApiClient, percent_encoded};
use tokio::task::JoinSet;

/// Time limit of a request. Other nodes answer in a moment; a busy or silent one is waited for, up to 6 s.
const MOVE_TIMEOUT: Duration = Duration::from_secs(8);

/// Whether connections of a group that this node gives up drain here.
pub(crate) fn drains(ha: &HighAvailability) -> bool {
    ha.sync.is_some() && ha.mode == HaMode::Keepalived
}

/// Whether this node takes its groups from others as soon as it may.
pub(crate) fn reclaims(ha: &HighAvailability) -> bool {
    drains(ha) && ha.preemption == Preemption::WhenSynced
}

/// Has this node's connections of groups drain here, before these leave.
pub(crate) async fn hand_over(socket: &Path, groups: Vec<String>) {
    let mut all = JoinSet::new();
    for group in groups {
        let (socket, path) = (
            socket.to_owned(),
            format!("/api/v1/ha/groups/{}/hand-over", percent_encoded(&group)),
        );
        all.spawn(async move { ask(&socket, &path, None, &group).await });
    }
    all.join_all().await;
}

/// Has the nodes that have groups hand them over, before this node takes them.
pub(crate) async fn reclaim(socket: &Path, groups: &[String]) {
    let body = json!({ "groups": groups }).to_string();
    ask(socket, "/api/v1/ha/reclaim", Some(body), &groups.join(", ")).await;
}

/// Asks signalbox. Whatever it says, the addresses move.
async fn ask(socket: &Path, path: &str, body: Option<String>, groups: &str) {
    let client = ApiClient::Socket(socket.to_owned());
    let asked = client.ask_with_timeout(MOVE_TIMEOUT, Method::POST, path, body).await;
    if let Err(error) = asked {
        tracing::info!(%error, groups, "Connections that cannot move along end.");
    }
}

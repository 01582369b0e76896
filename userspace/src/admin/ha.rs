//! High availability by API: the groups of virtual addresses, reports of their supervisor, and the data that it needs.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Json, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use signalbox_core::ha::notice::GroupState;
use signalbox_core::model::HighAvailability;
use signalbox_core::model::ha::VipGroup;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};

use super::problem::problem;
use super::readiness::unready_reasons;
use crate::control::Control;
use crate::state::sync::Rejection;
use crate::sync::{hand_over, reclaim};

/// Interval at which the condition of this process is checked for followers.
const CONDITION_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which an unchanged condition is sent to followers: they treat silence as a hung process.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// `GET /api/v1/ha`: groups, and whether this node may have them.
pub(super) async fn show(State(control): State<Arc<Control>>) -> Json<Value> {
    let model = Arc::clone(&control.shared.snapshot.load().model);
    let Some(ha) = &model.ha else {
        return Json(json!({ "apiVersion": "v1", "configured": false, "groups": [] }));
    };
    let mut answer = json!({
        "apiVersion": "v1",
        "configured": true,
        "name": ha.name,
        "mode": ha.mode.as_str(),
        "node": ha.own_name(&crate::sys::host_name()),
        "nodes": ha.nodes.iter().map(|node| json!({ "name": node.name, "address": node.address })).collect::<Vec<_>>(),
        "supervised": control.shared.ha.is_supervised(),
        "groups": ha.groups.iter().map(|group| group_view(&control, group)).collect::<Vec<_>>(),
    });
    if ha.sync.is_some() {
        answer["sync"] = sync_view(&control);
    }
    if let (Some(answer), Value::Object(condition)) = (answer.as_object_mut(), condition(&control)) {
        answer.extend(condition);
    }
    Json(answer)
}

fn group_view(control: &Control, group: &VipGroup) -> Value {
    let report = control.shared.ha.group(&group.name);
    let sources = group.sources.iter().map(|source| source.address.to_string());
    json!({
        "name": group.name,
        "vips": group.vips,
        "sources": sources.collect::<Vec<_>>(),
        "prefer": group.prefer,
        "state": report.map(|report| report.state),
        "priority": report.map(|report| report.priority),
        "since_ms": report.map(|report| report.since_ms),
    })
}

/// Replication of flows to the other nodes.
fn sync_view(control: &Control) -> Value {
    let sync = &control.shared.sync;
    let peers = sync.peers.load();
    let peers = peers.iter().map(|peer| {
        let (lag_sum, acknowledged, _) = peer.lag_seconds.read();
        let unconfirmed_since = match peer.unconfirmed_since_micros.load(Relaxed) {
            0 => None,
            micros => Some(Duration::from_micros(micros)),
        };
        let uptime = control.shared.started.elapsed();
        json!({
            "node": peer.node,
            "sending": peer.is_sending.load(Relaxed),
            "told_all": peer.has_all.load(Relaxed),
            "behind_ms": unconfirmed_since.map_or(0, |since| uptime.saturating_sub(since).as_millis()),
            "send_error": peer.send_error.load().as_deref(),
            "receiving": peer.is_receiving.load(Relaxed),
            "complete": peer.is_complete.load(Relaxed),
            "flows_sent": peer.flows_sent.get(),
            "ends_sent": peer.ends_sent.get(),
            "bytes_sent": peer.bytes_sent.get(),
            "mean_lag_seconds": if acknowledged == 0 { None } else { Some(lag_sum / acknowledged as f64) },
            "shadows": peer.shadows.load(Relaxed),
            "service_flows": peer.service_flows.load(Relaxed),
            "rejected": Rejection::LABELS.iter().zip(&peer.rejected).map(|(label, count)| (*label, count.get()))
                .collect::<BTreeMap<_, _>>(),
        })
    });
    json!({ "peers": peers.collect::<Vec<_>>(), "promoted": sync.promoted.get() })
}

/// Condition of this process. Its supervisor uses it to decide whether the node may have addresses.
fn condition(control: &Control) -> Value {
    let (reasons, shared) = (unready_reasons(control), &control.shared);
    json!({
        "pid": std::process::id(),
        "ready": reasons.is_empty(),
        "reasons": reasons,
        "stopping": shared.stopping.load(Relaxed),
        "may_preempt": shared.ha.may_preempt(&shared.snapshot.load().model, shared.started.elapsed()),
    })
}

/// Body of a report on a group.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupUpdate {
    state: GroupState,
    #[serde(default)]
    priority: u8,
}

/// `PUT /api/v1/ha/groups/{name}`: the new state of a group.
pub(super) async fn put_group(State(control): State<Arc<Control>>, Path(name): Path<String>, body: String) -> Response {
    let update = match serde_json::from_str::<GroupUpdate>(&body) {
        Ok(update) => update,
        Err(error) => {
            let detail =
                format!("{error}; a body is {{ \"state\": \"master\", \"priority\": 250 }}, or backup or fault");
            return problem(
                StatusCode::BAD_REQUEST,
                "The state cannot be understood",
                &detail,
                &json!({}),
            );
        }
    };
    let (shared, model) = (&control.shared, Arc::clone(&control.shared.snapshot.load().model));
    let Some(group) = find_group(model.ha.as_ref(), &name) else {
        let names = model
            .ha
            .iter()
            .flat_map(|ha| &ha.groups)
            .map(|group| group.name.as_str());
        let names = names.collect::<Vec<_>>().join(", ");
        let detail = format!("the configuration's section `ha` has no group `{name}` (known: {names})");
        return problem(StatusCode::NOT_FOUND, "There is no such group", &detail, &json!({}));
    };
    shared.ha.retain(&model);
    if shared.ha.report(&name, update.state, update.priority) {
        tracing::info!(
            group = name,
            state = update.state.as_str(),
            priority = update.priority,
            "A group of virtual addresses has another state."
        );
        shared.announce(
            "ha",
            json!({ "group": name, "state": update.state, "priority": update.priority }),
        );
    }
    Json(json!({ "apiVersion": "v1", "group": group_view(&control, group) })).into_response()
}

/// `POST /api/v1/ha/groups/{name}/hand-over`: prepares a planned move of a group away from this node.
pub(super) async fn hand_over(State(control): State<Arc<Control>>, Path(name): Path<String>) -> Response {
    let (shared, model) = (&control.shared, Arc::clone(&control.shared.snapshot.load().model));
    if !shared.ha.owned().contains(&name) {
        let detail = format!("this node does not have the group `{name}`");
        return problem(
            StatusCode::CONFLICT,
            "There is nothing to hand over",
            &detail,
            &json!({}),
        );
    }
    match hand_over::request(shared, &name, model.timeouts.drain).await {
        Ok(nodes) => {
            let seconds = model.timeouts.drain.as_secs();
            Json(json!({ "apiVersion": "v1", "group": name, "nodes": nodes, "seconds": seconds })).into_response()
        }
        Err(why) => problem(StatusCode::CONFLICT, "Connections cannot drain here", &why, &json!({})),
    }
}

/// Body of a reclaim.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReclaimBody {
    groups: Vec<String>,
}

/// `POST /api/v1/ha/reclaim`: makes other nodes hand over groups that this node is about to take.
pub(super) async fn reclaim(State(control): State<Arc<Control>>, body: String) -> Response {
    let wanted = match serde_json::from_str::<ReclaimBody>(&body) {
        Ok(body) => body.groups,
        Err(error) => {
            return problem(
                StatusCode::BAD_REQUEST,
                "The groups cannot be understood",
                &format!("{error}; a body is {{ \"groups\": [\"g1\"] }}"),
                &json!({}),
            );
        }
    };
    let owned = control.shared.ha.owned();
    let groups: Vec<_> = wanted.into_iter().filter(|group| !owned.contains(group)).collect();
    let answered = if groups.is_empty() {
        Vec::new()
    } else {
        reclaim::request(&control.shared, groups.clone()).await
    };
    Json(json!({ "apiVersion": "v1", "groups": groups, "nodes": answered })).into_response()
}

fn find_group<'a>(ha: Option<&'a HighAvailability>, name: &str) -> Option<&'a VipGroup> {
    ha?.groups.iter().find(|group| group.name == name)
}

/// `POST /api/v1/ha/follow`: the condition of this process, immediately after each change, until the process stops.
/// Without a follower, this node counts as one that has no group.
pub(super) async fn follow(
    State(control): State<Arc<Control>>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>> + use<>> {
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        let _guard = control.shared.ha.follow();
        let (mut last, mut told_at) = (Value::Null, Instant::now());
        loop {
            let condition = condition(&control);
            if condition != last || told_at.elapsed() >= HEARTBEAT_INTERVAL {
                let event = Event::default().event("condition").data(condition.to_string());
                // A follower that does not read gets the event when it reads again.
                if sender.try_send(event).is_ok() {
                    (last, told_at) = (condition, Instant::now());
                }
            }
            // A supervisor that connects during the takeover would otherwise follow a process that is ending.
            if control.shared.ha.has_successor() && !last.is_null() {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(CONDITION_INTERVAL) => {}
                () = sender.closed() => break,
            }
        }
    });
    Sse::new(ReceiverStream::new(receiver).map(Ok))
}

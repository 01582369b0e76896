//! High availability by API: the groups of virtual addresses, reports of their supervisor, and the data that it needs.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::sse::Sse;
use signalbox_api::by_label;
use signalbox_api::changes::ChangeEvent;
use signalbox_api::ha::{
    Condition, GroupAnswer, GroupUpdate, GroupView, HaAnswer, HaNode, HandOverAnswer, NodeAddress, PeerView,
    ReclaimAnswer, ReclaimBody, SyncView,
};
use signalbox_api::streams::ConditionEvent;
use signalbox_core::limits::stats::Counter;
use signalbox_core::model::HighAvailability;
use signalbox_core::model::ha::VipGroup;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;

use super::problem::problem;
use super::readiness::unready_reasons;
use super::reply::{ApiReply, EventStream, StreamedEvent, answer, event};
use crate::control::Control;
use crate::state::sync::Rejection;
use crate::sync::{hand_over, reclaim};

/// Interval at which the condition of this process is checked for followers.
const CONDITION_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which an unchanged condition is sent to followers: they treat silence as a hung process.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// `GET /api/v1/ha`: groups, and whether this node may have them.
pub(super) async fn show(State(control): State<Arc<Control>>) -> ApiReply<HaAnswer> {
    let model = Arc::clone(&control.shared.snapshot.load().model);
    let Some(ha) = &model.ha else {
        return answer(HaAnswer::default());
    };
    let nodes = ha.nodes.iter().map(|node| NodeAddress {
        name: node.name.clone(),
        address: node.address,
    });
    answer(HaAnswer {
        configured: true,
        groups: ha.groups.iter().map(|group| group_view(&control, group)).collect(),
        node: Some(HaNode {
            name: ha.name.clone(),
            mode: ha.mode.as_str().into(),
            node: ha.own_name(&crate::sys::node_name()).to_owned(),
            nodes: nodes.collect(),
            supervised: control.shared.ha.is_supervised(),
            sync: ha.sync.as_ref().map(|_| sync_view(&control)),
            condition: condition(&control),
        }),
    })
}

fn group_view(control: &Control, group: &VipGroup) -> GroupView {
    let report = control.shared.ha.group(&group.name);
    let sources = group.sources.iter().map(|source| source.address.to_string());
    GroupView {
        name: group.name.clone(),
        vips: group.vips.iter().map(ToString::to_string).collect(),
        sources: sources.collect(),
        prefer: group.prefer.clone(),
        state: report.map(|report| report.state),
        priority: report.map(|report| report.priority),
        since_ms: report.map(|report| report.since_ms),
    }
}

/// Replication of flows to the other nodes.
fn sync_view(control: &Control) -> SyncView {
    let sync = &control.shared.sync;
    let peers = sync.peers.load();
    let peers = peers.iter().map(|peer| {
        let (lag_sum, acknowledged, _) = peer.lag_seconds.read();
        let unconfirmed_since = match peer.unconfirmed_since_micros.load(Relaxed) {
            0 => None,
            micros => Some(Duration::from_micros(micros)),
        };
        let uptime = control.shared.life.started.elapsed();
        PeerView {
            node: peer.node.clone(),
            sending: peer.is_sending.load(Relaxed),
            told_all: peer.has_all.load(Relaxed),
            behind_ms: unconfirmed_since.map_or(0, |since| uptime.saturating_sub(since).as_millis() as u64),
            send_error: peer.send_error.load().as_deref().cloned(),
            receiving: peer.is_receiving.load(Relaxed),
            complete: peer.is_complete.load(Relaxed),
            same_cookies: peer.has_same_cookies.load(Relaxed),
            flows_sent: peer.flows_sent.get(),
            ends_sent: peer.ends_sent.get(),
            bytes_sent: peer.bytes_sent.get(),
            mean_lag_seconds: (acknowledged != 0).then(|| lag_sum / acknowledged as f64),
            shadows: peer.shadows.load(Relaxed),
            service_flows: peer.service_flows.load(Relaxed),
            rejected: by_label(
                Rejection::LABELS
                    .into_iter()
                    .zip(peer.rejected.iter().map(Counter::get)),
            ),
        }
    });
    SyncView {
        peers: peers.collect(),
        promoted: sync.promoted.get(),
    }
}

/// Condition of this process. Its supervisor uses it to decide whether the node may have addresses.
fn condition(control: &Control) -> Condition {
    let (reasons, shared) = (unready_reasons(control), &control.shared);
    Condition {
        pid: std::process::id(),
        ready: reasons.is_empty(),
        reasons,
        stopping: shared.life.stopping.load(Relaxed),
        may_preempt: shared
            .ha
            .may_preempt(&shared.snapshot.load().model, shared.life.started.elapsed()),
    }
}

/// `PUT /api/v1/ha/groups/{name}`: the new state of a group.
pub(super) async fn put_group(
    State(control): State<Arc<Control>>,
    Path(name): Path<String>,
    body: String,
) -> ApiReply<GroupAnswer> {
    let update = match serde_json::from_str::<GroupUpdate>(&body) {
        Ok(update) => update,
        Err(error) => {
            let detail =
                format!("{error}; a body is {{ \"state\": \"master\", \"priority\": 250 }}, or backup or fault");
            return problem(StatusCode::BAD_REQUEST, "The state cannot be understood", &detail);
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
        return problem(StatusCode::NOT_FOUND, "There is no such group", &detail);
    };
    shared.ha.retain(&model);
    if shared.ha.report(&name, update.state, update.priority) {
        tracing::info!(
            group = name,
            state = update.state.as_str(),
            priority = update.priority,
            "A group of virtual addresses has another state."
        );
        shared.announce(ChangeEvent::Ha {
            group: name,
            state: update.state,
            priority: update.priority,
        });
    }
    answer(GroupAnswer {
        group: group_view(&control, group),
    })
}

/// `POST /api/v1/ha/groups/{name}/hand-over`: prepares a planned move of a group away from this node.
pub(super) async fn hand_over(
    State(control): State<Arc<Control>>,
    Path(name): Path<String>,
) -> ApiReply<HandOverAnswer> {
    let (shared, model) = (&control.shared, Arc::clone(&control.shared.snapshot.load().model));
    if !shared.ha.owned().contains(&name) {
        let detail = format!("this node does not have the group `{name}`");
        return problem(StatusCode::CONFLICT, "There is nothing to hand over", &detail);
    }
    match hand_over::request(shared, &name, model.timeouts.drain).await {
        Ok(nodes) => answer(HandOverAnswer {
            group: name,
            nodes,
            seconds: model.timeouts.drain.as_secs(),
        }),
        Err(why) => problem(StatusCode::CONFLICT, "Connections cannot drain here", &why),
    }
}

/// `POST /api/v1/ha/reclaim`: makes other nodes hand over groups that this node is about to take.
pub(super) async fn reclaim(State(control): State<Arc<Control>>, body: String) -> ApiReply<ReclaimAnswer> {
    let wanted = match serde_json::from_str::<ReclaimBody>(&body) {
        Ok(body) => body.groups,
        Err(error) => {
            return problem(
                StatusCode::BAD_REQUEST,
                "The groups cannot be understood",
                &format!("{error}; a body is {{ \"groups\": [\"g1\"] }}"),
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
    answer(ReclaimAnswer {
        groups,
        nodes: answered,
    })
}

fn find_group<'a>(ha: Option<&'a HighAvailability>, name: &str) -> Option<&'a VipGroup> {
    ha?.groups.iter().find(|group| group.name == name)
}

/// `POST /api/v1/ha/follow`: the condition of this process, immediately after each change, until the process stops.
/// Without a follower, this node counts as one that has no group.
pub(super) async fn follow(
    State(control): State<Arc<Control>>,
) -> EventStream<ConditionEvent, impl Stream<Item = StreamedEvent> + use<>> {
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        let _guard = control.shared.ha.follow();
        let (mut last, mut told_at) = (None, Instant::now());
        loop {
            let condition = condition(&control);
            if last.as_ref() != Some(&condition) || told_at.elapsed() >= HEARTBEAT_INTERVAL {
                let event = event(&ConditionEvent::Condition(condition.clone()));
                // A follower that does not read gets the event when it reads again.
                if sender.try_send(event).is_ok() {
                    (last, told_at) = (Some(condition), Instant::now());
                }
            }
            // A supervisor that connects during the takeover would otherwise follow a process that is ending.
            if control.shared.ha.has_successor() && last.is_some() {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(CONDITION_INTERVAL) => {}
                () = sender.closed() => break,
            }
        }
    });
    Sse::new(ReceiverStream::new(receiver)).into()
}

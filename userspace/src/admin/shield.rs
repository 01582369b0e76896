//! The shield by API: guards with their counts, prefixes, samples of dropped packets.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::response::sse::{KeepAlive, Sse};
use serde::Deserialize;
use signalbox_api::live::Hello;
use signalbox_api::shield::{
    DropsAnswer, GuardPrefixesAnswer, GuardVerdict, PrefixesAnswer, ShieldAnswer, ShieldExplanation,
};
use signalbox_api::streams::DropEvent;
use signalbox_core::model::shield::{PrefixEdit, Prefixes};
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tokio_stream::{Stream, StreamExt as _};

use super::events::KEEPALIVE_INTERVAL;
use super::problem::problem;
use super::reply::{ApiReply, EventStream, StreamedEvent, answer, event};
use crate::control::Control;
use crate::control::event::PrefixChange;
use crate::datapath::flow::FlowFilter;

/// Time that an answer waits until a change is active: a million prefixes take a second.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Path segment for the prefixes that apply to all listeners and services.
const ALL_GUARDS: &str = "*";

/// `GET /api/v1/shield`: all guarded listeners and services.
pub(super) async fn list(State(control): State<Arc<Control>>) -> ApiReply<ShieldAnswer> {
    let services = &control.kernel.services;
    answer(ShieldAnswer {
        guards: services.guards(),
        common_prefixes: services.shared_prefixes(),
        hooks: services.hooks(),
        troubles: services.problems(),
    })
}

/// `GET /api/v1/shield/prefixes`: the prefixes set by API.
pub(super) async fn prefixes(State(control): State<Arc<Control>>) -> ApiReply<PrefixesAnswer> {
    let told = Arc::clone(&control.shared.snapshot.load().shield);
    let named = told.iter().map(|(name, prefixes)| {
        let name = if name.is_empty() { ALL_GUARDS } else { name };
        (name.to_owned(), (**prefixes).clone())
    });
    answer(PrefixesAnswer {
        prefixes: named.collect(),
    })
}

/// Maximum lengths of prefixes that are denied only with force.
const WIDE_V4: u8 = 7;
const WIDE_V6: u8 = 15;
/// Number of flows whose clients are compared with the prefixes to deny.
const COMPARED_FLOWS: usize = 10_000;
/// Minimum number of clients for the rule that most of them may not be denied without force.
const FEWEST_CLIENTS: usize = 4;

/// Returns why prefixes need force to be denied: they are probably a mistake.
async fn needs_force(control: &Control, name: &str, deny: &[ipnet::IpNet]) -> Option<String> {
    let is_wide = |net: &&ipnet::IpNet| match net {
        ipnet::IpNet::V4(net) => net.prefix_len() <= WIDE_V4,
        ipnet::IpNet::V6(net) => net.prefix_len() <= WIDE_V6,
    };
    if let Some(net) = deny.iter().find(is_wide) {
        return Some(format!("{net} has a large part of all addresses"));
    }
    if deny.is_empty() {
        return None;
    }
    let filter = FlowFilter {
        limit: COMPARED_FLOWS,
        listener: (!name.is_empty()).then(|| name.to_owned()),
        ..FlowFilter::default()
    };
    let (_, flows) = control.flows(&filter).await;
    let clients: BTreeSet<_> = flows.iter().map(|flow| flow.client.ip().to_canonical()).collect();
    if clients.len() < FEWEST_CLIENTS {
        return None;
    }
    // There may be a million prefixes, but they have few lengths.
    let nets: HashSet<_> = deny.iter().map(ipnet::IpNet::trunc).collect();
    let lengths: BTreeSet<_> = nets.iter().map(ipnet::IpNet::prefix_len).collect();
    let is_denied = |client: &&IpAddr| {
        let mut nets_of = lengths
            .iter()
            .filter_map(|length| ipnet::IpNet::new(**client, *length).ok());
        nets_of.any(|net| nets.contains(&net.trunc()))
    };
    let denied = clients.iter().filter(is_denied).count();
    let is_most = denied * 2 > clients.len();
    is_most.then(|| {
        format!(
            "{denied} of {} clients that are connected would be denied",
            clients.len()
        )
    })
}

pub(super) async fn replace(
    State(control): State<Arc<Control>>,
    Path(name): Path<String>,
    body: String,
) -> ApiReply<GuardPrefixesAnswer> {
    let replacement = |edit: PrefixEdit| {
        let PrefixEdit { deny, allow, .. } = edit;
        PrefixChange::Replace(Prefixes { deny, allow })
    };
    match serde_json::from_str::<PrefixEdit>(&body) {
        Ok(edit) if !edit.forget.is_empty() => problem(
            StatusCode::BAD_REQUEST,
            "The body is not understood",
            "`forget` goes with POST: PUT replaces all prefixes by those of `deny` and `allow`",
        ),
        Ok(edit) => change(&control, &name, edit, replacement).await,
        Err(error) => bad_body(&error),
    }
}

pub(super) async fn edit(
    State(control): State<Arc<Control>>,
    Path(name): Path<String>,
    body: String,
) -> ApiReply<GuardPrefixesAnswer> {
    let addition = |edit: PrefixEdit| {
        let PrefixEdit {
            deny, allow, forget, ..
        } = edit;
        let add = Prefixes { deny, allow };
        PrefixChange::Edit { add, forget }
    };
    match serde_json::from_str::<PrefixEdit>(&body) {
        Ok(edit) => change(&control, &name, edit, addition).await,
        Err(error) => bad_body(&error),
    }
}

/// Makes a change, unless it needs force and has none.
async fn change(
    control: &Control,
    name: &str,
    edit: PrefixEdit,
    made_of: impl FnOnce(PrefixEdit) -> PrefixChange,
) -> ApiReply<GuardPrefixesAnswer> {
    let (name, force) = (if name == ALL_GUARDS { "" } else { name }, edit.force);
    let change = made_of(edit);
    if let Some(refused) = refused_target(control, name, &change) {
        return refused.into();
    }
    let denied = match &change {
        PrefixChange::Replace(all) => &all.deny,
        PrefixChange::Edit { add, .. } => &add.deny,
    };
    if !force && let Some(why) = needs_force(control, name, denied).await {
        let detail = format!(
            "{why}: `\"force\": true` (`signalbox shield deny --force`, `signalbox shield load --force`) denies them \
             all the same"
        );
        return problem(StatusCode::CONFLICT, "Too many would be denied", &detail);
    }
    set(control, name, change).await
}

fn bad_body(error: &serde_json::Error) -> ApiReply<GuardPrefixesAnswer> {
    let expected = r#"expected for example {"deny": ["192.0.2.0/24"], "allow": ["192.0.2.7/32"]}"#;
    problem(
        StatusCode::BAD_REQUEST,
        "The body is not understood",
        &format!("{error}; {expected}"),
    )
}

/// Error for a name that is no listener or service, or that is not shielded. An empty name means all.
fn refused_target(control: &Control, name: &str, change: &PrefixChange) -> Option<Response> {
    let model = Arc::clone(&control.shared.snapshot.load().model);
    let listeners = model.listeners.iter().map(|l| (l.name.as_str(), l.shield.is_some()));
    let services = model.services.iter().map(|s| (s.configured_name(), s.shield.is_some()));
    let mut of: Vec<bool> = listeners
        .chain(services)
        .filter(|(known, _)| name.is_empty() || *known == name)
        .map(|(_, is_shielded)| is_shielded)
        .collect();
    // A listener that is no longer configured may still have prefixes to remove.
    let is_told = control.shared.snapshot.load().shield.contains_key(name);
    if is_told && change.adds_nothing() {
        of.push(true);
    }
    if !of.is_empty() && !of.contains(&true) {
        return Some(problem(
            StatusCode::CONFLICT,
            "It is not shielded",
            "nothing that this is for has a shield: write `shield: {}` into the configuration, and it has one",
        ));
    }
    let is_unknown = of.is_empty() && !name.is_empty();
    is_unknown.then(|| {
        problem(
            StatusCode::NOT_FOUND,
            "There is no such listener or service",
            &format!("{name:?} is neither a listener nor a service; * stands for all of them"),
        )
    })
}

async fn set(control: &Control, name: &str, change: PrefixChange) -> ApiReply<GuardPrefixesAnswer> {
    // An operator who denies a client must know if the shield is not active.
    if let Some(why) = control.kernel.services.shield_problem() {
        return problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "The shield is not in force",
            &format!("nothing was changed, because the shield is not in force: {why}"),
        );
    }
    match control.set_prefixes(name, change).await {
        Ok(prefixes) => {
            let services = Arc::clone(&control.kernel.services);
            let settled = tokio::task::spawn_blocking(move || services.wait_until_settled(SETTLE_TIMEOUT)).await;
            let late = || {
                let is_late = !matches!(settled, Ok(true));
                is_late.then(|| format!("they have not been within {} s", SETTLE_TIMEOUT.as_secs()))
            };
            match control.kernel.services.shield_problem().or_else(late) {
                None => answer(GuardPrefixesAnswer {
                    prefixes: (*prefixes).clone(),
                }),
                Some(why) => problem(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "The shield is not in force",
                    &format!("the prefixes are kept, but not in force: {why}"),
                ),
            }
        }
        Err(refused) => problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "The change was refused; nothing has changed",
            &refused.error,
        ),
    }
}

#[derive(Deserialize)]
pub(super) struct ClientQuery {
    client: std::net::IpAddr,
}

/// Explains how each listener and service handles a client.
pub(super) async fn explain(
    State(control): State<Arc<Control>>,
    Query(ClientQuery { client }): Query<ClientQuery>,
) -> ApiReply<ShieldExplanation> {
    let services = Arc::clone(&control.kernel.services);
    // In a blocking thread, because a million prefixes take time.
    let judged = tokio::task::spawn_blocking(move || {
        let all = services.guards();
        let judged = all.into_iter().map(|guard| GuardVerdict {
            shield: services.judge(guard.kind, &guard.name, client),
            kind: guard.kind,
            name: guard.name,
        });
        judged.collect::<Vec<_>>()
    });
    let guards = judged.await.unwrap_or_default();
    answer(ShieldExplanation { client, guards })
}

#[derive(Deserialize)]
pub(super) struct DropsQuery {
    limit: Option<usize>,
}

/// Returns the latest samples of dropped packets.
pub(super) async fn drops(
    State(control): State<Arc<Control>>,
    Query(most): Query<DropsQuery>,
) -> ApiReply<DropsAnswer> {
    let drops = control.kernel.services.drops.latest(most.limit.unwrap_or(100));
    answer(DropsAnswer { drops })
}

/// Streams new samples of dropped packets, beginning with `hello`.
pub(super) async fn follow(
    State(control): State<Arc<Control>>,
) -> EventStream<DropEvent, impl Stream<Item = StreamedEvent>> {
    let drops = BroadcastStream::new(control.kernel.services.drops.follow());
    let drops = drops.map(|drop| match drop {
        Ok(drop) => event(&DropEvent::Drop(drop)),
        Err(BroadcastStreamRecvError::Lagged(n)) => event(&DropEvent::Missed(n)),
    });
    let hello = Hello {
        version: env!("CARGO_PKG_VERSION").into(),
        ..Hello::default()
    };
    let hello = event(&DropEvent::Hello(hello));
    let events = Sse::new(tokio_stream::once(hello).chain(drops));
    events.keep_alive(KeepAlive::new().interval(KEEPALIVE_INTERVAL)).into()
}

//! Endpoints with which agents, and plugins of the prototype, report a cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;
use signalbox_api::problem::NoDetails;
use signalbox_api::sources::{ClusterReport, DiscoveryAnswer, SourceView, SourcesAnswer};
use signalbox_core::discovered::discovery::ClusterDiscovery;
use tokio::sync::oneshot;

use super::problem::problem;
use super::reply::{ApiReply, answer};
use crate::compat::prototype;
use crate::control::Control;
use crate::control::event::StoreEvent;
use crate::source::{DiscoveryUpdate, SourceStatus};
use crate::sys::unix_ms;

/// Status of an agent, sent with its discoveries. A client that sends none (a script) may fall silent without a
/// warning.
#[derive(Deserialize)]
struct AgentReport {
    interval_seconds: u64,
    seconds_since_heard: Option<f64>,
    last_error: Option<String>,
}

/// Maximum interval of messages that an agent may announce, in seconds: with a longer one no failure would show.
const MAX_INTERVAL_SECS: u64 = 3600;

impl AgentReport {
    fn note(self, source: &SourceStatus) {
        let age_ms = self.seconds_since_heard.map(|age| (age.max(0.0) * 1000.0) as u64);
        let interval = Duration::from_secs(self.interval_seconds.clamp(1, MAX_INTERVAL_SECS));
        let heard_ms = age_ms.map(|age| unix_ms().saturating_sub(age));
        let error = self.last_error.map(|error| format!("the agent says: {error}"));
        source.record_report(heard_ms, error, interval);
    }
}

/// `POST /api/cluster/{cluster}`: stores the complete report of a prototype's plugin about a cluster.
pub(super) async fn put_by_plugin(
    State(control): State<Arc<Control>>,
    Path(cluster): Path<String>,
    body: String,
) -> ApiReply<DiscoveryAnswer> {
    let source = control.shared.source(&format!("api:{cluster}"), "api");
    let learned = prototype::parse(&body);
    accept(&control, &source, cluster, learned, None, StatusCode::CREATED).await
}

/// `PUT /api/v1/clusters/{cluster}/learned`: stores the complete report of an agent about a cluster.
pub(super) async fn put_by_agent(
    State(control): State<Arc<Control>>,
    Path(cluster): Path<String>,
    body: String,
) -> ApiReply<DiscoveryAnswer> {
    let source = control.shared.source(&format!("agent:{cluster}"), "agent");
    // Decoded as a map first, because serde accepts a list as an object (as in `prototype`).
    let told = serde_json::from_str::<serde_json::Map<String, Value>>(&body).and_then(|mut object| {
        let report = object.remove("agent").map(serde_json::from_value::<AgentReport>);
        let learned = serde_json::from_value::<ClusterDiscovery>(object.into())?;
        Ok((learned, report.transpose()?))
    });
    let (learned, report) = match told {
        Ok((learned, report)) => (learned.validated(), report),
        Err(error) => (Err(error.to_string()), None),
    };
    accept(&control, &source, cluster, learned, report, StatusCode::OK).await
}

/// `DELETE /api/v1/sources/{source}/clusters/{cluster}`: forgets the report of a source that no longer exists.
pub(super) async fn forget(
    State(control): State<Arc<Control>>,
    Path((source, cluster)): Path<(String, String)>,
) -> ApiReply<NoDetails> {
    let known = control
        .shared
        .snapshot
        .load()
        .discovered
        .get(&source)
        .is_some_and(|of| of.contains_key(&cluster));
    if !known {
        let detail = format!("source {source:?} has reported nothing of cluster {cluster:?}");
        return problem(StatusCode::NOT_FOUND, "There is nothing to forget", &detail);
    }
    let runs =
        |status: &Arc<SourceStatus>| status.name == source && matches!(status.kind, "kubernetes" | "routing-spi");
    if control.shared.sources().iter().any(runs) {
        let detail = format!("source {source:?} runs as the configuration says: take it out there");
        return problem(StatusCode::CONFLICT, "The source is not to be forgotten", &detail);
    }
    match submit(&control, source, cluster, None).await {
        Ok(()) => answer(NoDetails {}),
        Err(error) => rejected_response(&error),
    }
}

async fn accept(
    control: &Control,
    source: &SourceStatus,
    cluster: String,
    learned: Result<ClusterDiscovery, String>,
    report: Option<AgentReport>,
    good: StatusCode,
) -> ApiReply<DiscoveryAnswer> {
    let is_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if cluster.len() > 63 || !cluster.bytes().all(is_name) {
        let detail = format!("{cluster:?} is not a name: 1 to 63 letters, digits, `.`, `_` or `-`");
        return problem(StatusCode::BAD_REQUEST, "The cluster's name is wrong", &detail);
    }
    let file = Arc::clone(&control.shared.snapshot.load().file);
    if file.clusters.iter().any(|known| known.name == cluster && !known.learn) {
        let detail = format!("the configuration says all of cluster {cluster}: give it `learn: true` there");
        return problem(StatusCode::CONFLICT, "The cluster does not learn", &detail);
    }
    let learned = match learned {
        Ok(learned) => learned,
        Err(error) => {
            source.events.inc("bad_message");
            source.record_error(&error);
            return problem(
                StatusCode::BAD_REQUEST,
                "The body is not valid; earlier reports stay",
                &error,
            );
        }
    };
    let taken = DiscoveryAnswer {
        hosts: learned.hosts.len(),
        routes: learned.routes.len(),
        rejected: learned.rejected.clone(),
    };
    match submit(control, source.name.clone(), cluster, Some(Arc::new(learned))).await {
        Ok(()) => {
            source.events.inc("taken");
            match report {
                Some(report) => report.note(source),
                None => source.mark_heard(),
            }
            answer(taken).with_status(good)
        }
        Err(error) => {
            source.events.inc("not_taken");
            rejected_response(&error)
        }
    }
}

/// Sends the report to the store. Returns when the change is active and on disk.
async fn submit(
    control: &Control,
    source: String,
    cluster: String,
    discovery: Option<Arc<ClusterDiscovery>>,
) -> Result<(), String> {
    let (done, outcome) = oneshot::channel();
    let learnt = DiscoveryUpdate {
        source,
        cluster,
        discovery,
        done: Some(done),
    };
    let ending = || "signalbox is ending".to_owned();
    control
        .events
        .send(StoreEvent::Discovery(learnt))
        .map_err(|_| ending())?;
    outcome.await.map_err(|_| ending())?
}

fn rejected_response<R: From<Response>>(error: &str) -> R {
    problem(
        StatusCode::SERVICE_UNAVAILABLE,
        "The report could not be stored; earlier reports stay",
        error,
    )
}

/// `GET /api/v1/sources`: the status of each source, and its report.
pub(super) async fn sources(State(control): State<Arc<Control>>) -> ApiReply<SourcesAnswer> {
    let discovered = Arc::clone(&control.shared.snapshot.load().discovered);
    let known = control.shared.sources();
    let mut views: BTreeMap<String, SourceView> = known
        .iter()
        .map(|source| (source.name.clone(), source.view()))
        .collect();
    for (source, clusters) in discovered.iter() {
        // Clusters whose sources reported them to an earlier process and have sent no report since.
        let view = views.entry(source.clone()).or_insert_with(|| SourceView {
            name: source.clone(),
            ..SourceView::default()
        });
        let reports = clusters.iter().map(|(cluster, learned)| ClusterReport {
            cluster: cluster.clone(),
            hosts: learned.hosts.len(),
            routes: learned.routes.len(),
            rejected: learned.rejected.clone(),
        });
        view.clusters = Some(reports.collect());
    }
    answer(SourcesAnswer {
        sources: views.into_values().collect(),
    })
}

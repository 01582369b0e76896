//! `signalbox agent`: watches a cluster that balancers cannot reach from inside it, and reports all it knows to each of
//! them.
//!
//! Each balancer has a separate task: a balancer that does not answer delays no other, and gets the latest knowledge
//! when it answers again. Unchanged knowledge is repeated now and then, with the agent's own age and error, so that a
//! balancer sees that the agent lives, and whether it sees its cluster.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::json;
use signalbox_core::discovered::discovery::ClusterDiscovery;
use signalbox_core::model::Balancer;
pub use signalbox_core::model::agent::Agent;
use tokio::sync::{mpsc, watch};

use crate::SourceStatus;
use crate::backoff::Backoff;
use crate::client::{ApiClient, ClientError};

/// Interval of messages to a balancer that knows everything.
const PUSH_INTERVAL: Duration = Duration::from_secs(30);
/// Interval at which the agent checks whether it still sees its cluster.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// First and longest pause before the next attempt after a failure.
const RETRY_INTERVALS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// Runs the agent until the process is told to stop.
pub async fn run(agent: Agent) -> anyhow::Result<()> {
    let Agent {
        cluster,
        source,
        balancers,
    } = agent;
    let (latest, known) = watch::channel(None::<Arc<ClusterDiscovery>>);
    let standing = SourceStatus::new(&format!("kube:{cluster}"), "kubernetes");
    for balancer in balancers {
        tokio::spawn(push_forever(
            balancer,
            cluster.clone(),
            known.clone(),
            Arc::clone(&standing),
        ));
    }
    let (out, mut learnt) = mpsc::unbounded_channel();
    let watching = crate::kube::spawn(
        crate::kube::Settings::new(source),
        cluster.clone(),
        Arc::clone(&standing),
        out,
    );
    tracing::info!(cluster, "Watching the cluster's API server.");
    let mut stop = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    loop {
        tokio::select! {
            learnt = learnt.recv() => match learnt {
                Some(learnt) => {
                    let (hosts, routes) = learnt.discovery.as_ref().map_or((0, 0), |what| (what.hosts.len(), what.routes.len()));
                    tracing::info!(cluster, hosts, routes, "The cluster has changed.");
                    latest.send_replace(learnt.discovery);
                }
                None => anyhow::bail!("the watch has ended"),
            },
            _ = stop.recv() => break,
            _ = tokio::signal::ctrl_c() => break,
        }
    }
    watching.abort();
    Ok(())
}

/// Reports all knowledge to one balancer, again and again. Never returns.
async fn push_forever(
    balancer: Balancer,
    cluster: String,
    mut known: watch::Receiver<Option<Arc<ClusterDiscovery>>>,
    status: Arc<SourceStatus>,
) {
    let url = balancer.url.clone();
    let path = format!("/api/v1/clusters/{cluster}/learned");
    let remote = ApiClient::Balancer(balancer);
    let mut backoff = Backoff::new(RETRY_INTERVALS.0, RETRY_INTERVALS.1, &url);
    let mut said = String::new();
    // True if the last report to the balancer claimed that the agent sees its cluster.
    let mut saw = false;
    loop {
        let what = known.borrow_and_update().clone();
        let wait = match what {
            // A partial list would remove hosts and routes: an agent reports nothing before it knows everything.
            None => Duration::MAX,
            Some(what) => match push(&remote, &path, &what, &status, &mut saw).await {
                Ok(()) => {
                    if !said.is_empty() {
                        tracing::info!(balancer = url, "The balancer accepts updates again.");
                    }
                    backoff.reset();
                    said.clear();
                    PUSH_INTERVAL
                }
                Err(error) => {
                    let error = signalbox_sys::error_chain(&error);
                    // Logged once for each kind of error.
                    if error != said {
                        tracing::warn!(
                            balancer = url,
                            error,
                            "An update could not be sent to a balancer; others are not affected."
                        );
                        said = error;
                    }
                    backoff.pause()
                }
            },
        };
        if wait == Duration::MAX {
            if known.changed().await.is_err() {
                return;
            }
            continue;
        }
        // After a failure, a change does not shorten the pause: a balancer that is down is not asked ten times a
        // second.
        if said.is_empty() {
            tokio::select! {
                changed = known.changed() => if changed.is_err() { return },
                () = status_changed(&status, saw) => {}
                () = tokio::time::sleep(wait) => {}
            }
        } else {
            tokio::time::sleep(wait).await;
        }
    }
}

/// Returns when the agent has gained or lost sight of its cluster since the last report to the balancer.
async fn status_changed(status: &SourceStatus, saw: bool) {
    while status.connected() == saw {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Pushes knowledge to a balancer. `saw` is set to whether the report claims that the agent sees its cluster.
async fn push(
    remote: &ApiClient,
    path: &str,
    what: &ClusterDiscovery,
    status: &SourceStatus,
    saw: &mut bool,
) -> Result<(), ClientError> {
    *saw = status.connected();
    let mut body = json!(what);
    body["agent"] = report(status, *saw);
    remote.ask(Method::PUT, path, Some(body.to_string())).await.map(drop)
}

/// Returns the agent's own status for a balancer.
fn report(status: &SourceStatus, sees: bool) -> serde_json::Value {
    let error = (!sees).then(|| status.last_error().unwrap_or_else(|| "not connected".to_owned()));
    json!({
        "interval_seconds": PUSH_INTERVAL.as_secs(),
        "seconds_since_heard": status.staleness(),
        "last_error": error,
    })
}

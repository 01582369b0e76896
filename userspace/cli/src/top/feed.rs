//! Reads from the balancer: history and live figures, changes, and the answers for the current pane.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::Value;
use signalbox_api::live::HistoryAnswer;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::data::{LoggedEvent, Topic, Update};
use super::keys::Pane;
use super::text::{safe, safe_value};
use crate::client::{decode, follow};
use signalbox_sources::client::ApiClient;

/// Time before a lost stream is opened again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which answers are requested.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Time limit of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum silence of the stream of samples, which arrive each second.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum silence of the stream of changes, which has a comment each 15 seconds.
const EVENT_TIMEOUT: Duration = Duration::from_secs(40);
const HISTORY: &str = "/api/v1/history?hosts=all";

/// Starts the readers. They run until the set is dropped.
pub(super) fn start(
    client: &Arc<ApiClient>,
    updates: &mpsc::UnboundedSender<Update>,
    pane: watch::Receiver<Pane>,
) -> JoinSet<()> {
    let mut readers = JoinSet::new();
    readers.spawn(follow_samples(Arc::clone(client), updates.clone()));
    readers.spawn(follow_changes(Arc::clone(client), updates.clone()));
    readers.spawn(poll(Arc::clone(client), updates.clone(), pane));
    readers
}

/// Reads the data of the overview once.
pub(super) async fn present(client: &ApiClient) -> anyhow::Result<Vec<Update>> {
    let past = Update::Past(history(client).await?);
    let mut all = vec![past];
    for topic in [Topic::Status, Topic::Hosts] {
        all.push(Update::Answer(topic, read(client, topic.path()).await?));
    }
    Ok(all)
}

/// Reads an answer, with its text made safe.
async fn read(client: &ApiClient, path: &str) -> anyhow::Result<Value> {
    let answer = client.ask_with_timeout(ANSWER_TIMEOUT, Method::GET, path, None).await?;
    Ok(safe_value(answer))
}

async fn history(client: &ApiClient) -> anyhow::Result<HistoryAnswer> {
    decode(read(client, HISTORY).await?)
}

async fn follow_samples(client: Arc<ApiClient>, updates: mpsc::UnboundedSender<Update>) {
    loop {
        let ended = samples(&client, &updates).await;
        let why = ended
            .err()
            .map_or_else(|| "the balancer has ended the stream".to_owned(), |e| format!("{e:#}"));
        if updates.send(Update::Lost(safe(&why))).is_err() {
            return;
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

async fn samples(client: &ApiClient, updates: &mpsc::UnboundedSender<Update>) -> anyhow::Result<()> {
    updates.send(Update::Past(history(client).await?))?;
    follow(client, "/api/v1/live", SAMPLE_TIMEOUT, |kind, data| {
        match kind {
            "hello" => updates.send(Update::Hello(serde_json::from_str(data)?))?,
            "sample" => updates.send(Update::Sample(decode(safe_value(serde_json::from_str(data)?))?))?,
            // The figures are cumulative: only a point in the charts is missing.
            _ => {}
        }
        Ok(())
    })
    .await
}

async fn follow_changes(client: Arc<ApiClient>, updates: mpsc::UnboundedSender<Update>) {
    while !updates.is_closed() {
        // The stream of samples reports why there is none.
        let _ = follow(&client, "/api/v1/events", EVENT_TIMEOUT, |kind, data| {
            updates.send(Update::Event(LoggedEvent::now(safe(kind), safe(data))))?;
            Ok(())
        })
        .await;
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Requests the answers for the current pane repeatedly, and at once when the pane changes.
async fn poll(client: Arc<ApiClient>, updates: mpsc::UnboundedSender<Update>, mut pane: watch::Receiver<Pane>) {
    loop {
        let topics = pane.borrow_and_update().topics();
        for topic in topics.iter().copied().chain([Topic::Status]) {
            let update = match read(&client, topic.path()).await {
                Ok(answer) => Update::Answer(topic, answer),
                Err(why) => Update::Failed(topic, safe(&format!("{why:#}"))),
            };
            if updates.send(update).is_err() {
                return;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            changed = pane.changed() => if changed.is_err() { return },
        }
    }
}

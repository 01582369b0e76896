//! A table shared by several balancers, in an etcd (3.4 or later): reports by API, rotation and weights.
//!
//! Uses etcd's JSON gateway (`/v3/...`), so that no gRPC is needed. Writes are acknowledged when etcd has them. A watch
//! only shows that something has changed; then everything under the prefix is read again, which is not much.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use hyper::Method;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use signalbox_core::model::{Balancer, EtcdStore};

use crate::control::state_db::RecordChange;
use crate::source::backoff::Backoff;
use crate::source::client::{ApiClient, ClientError};

/// Time limit for an answer from one member, because the store waits for it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after a failure in which requests fail at once, without waiting for members again.
const FAILED_MEMBER_TTL: Duration = Duration::from_secs(10);
/// Maximum number of members that are asked before a request fails.
const MAX_MEMBERS_TRIED: usize = 2;
/// Interval of full reads without a change, in case a watch has died unnoticed.
const FULL_READ_INTERVAL: Duration = Duration::from_secs(30);
/// Time in which changes are collected before they are read together.
const SETTLE_INTERVAL: Duration = Duration::from_millis(50);
/// First and longest pause before the next attempt after a failure.
const RETRY_INTERVALS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// Key that exists if the table has been made.
const CREATED_KEY: &str = "meta/made";

/// Operations in one transaction: somewhat fewer than etcd's default limit (`--max-txn-ops`, 128).
const MAX_TXN_OPERATIONS: usize = 100;

/// Reason why etcd gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// No member answered. The source is the last member's error.
    #[error("no etcd member could be asked")]
    Unreachable(#[source] ClientError),
    #[error("no etcd member could be asked a moment ago: {0}")]
    BackingOff(String),
    #[error("etcd answers what is not understood: {0}")]
    UnexpectedAnswer(String),
    #[error("another balancer has changed the shared table at the same moment: ask again")]
    Conflict,
}

/// Records of the whole table, as of one revision.
#[derive(Debug, Default)]
pub struct SharedRecords {
    pub revision: u64,
    /// True if the table does not exist yet.
    pub is_new: bool,
    /// True if the table is older than before: it has been restored from a backup.
    pub is_rolled_back: bool,
    /// Records: kind, key, value.
    pub all: Vec<(String, String, Vec<u8>)>,
}

/// A client of etcd's members. Each request uses a separate connection.
pub struct Etcd {
    members: Vec<ApiClient>,
    prefix: String,
    /// Index of the member that answered last; time and reason of the last failure of all members.
    state: Mutex<(usize, Option<(Instant, String)>)>,
}

#[derive(Deserialize)]
struct EtcdResponse {
    header: ResponseHeader,
    #[serde(default)]
    kvs: Vec<KeyValue>,
    /// True if a transaction's comparison held.
    #[serde(default)]
    succeeded: bool,
}

/// Header of an answer. Numbers are in quotes (int64 in protobuf's JSON).
#[derive(Deserialize)]
struct ResponseHeader {
    revision: String,
}

#[derive(Deserialize)]
struct KeyValue {
    key: String,
    #[serde(default)]
    value: String,
}

impl EtcdResponse {
    fn revision(&self) -> Result<u64, EtcdError> {
        let revision = &self.header.revision;
        revision
            .parse()
            .map_err(|_| EtcdError::UnexpectedAnswer(format!("revision {revision:?}")))
    }
}

fn to_base64(bytes: impl AsRef<[u8]>) -> String {
    BASE64_STANDARD.encode(bytes)
}

fn from_base64(text: &str) -> Result<Vec<u8>, EtcdError> {
    BASE64_STANDARD
        .decode(text)
        .map_err(|error| EtcdError::UnexpectedAnswer(error.to_string()))
}

impl Etcd {
    #[must_use]
    pub fn new(settings: &EtcdStore) -> Arc<Self> {
        let member = |url: &String| {
            ApiClient::Balancer(Balancer {
                name: None,
                url: url.clone(),
                token_file: None,
                ca: settings.ca.clone(),
                identity: settings.identity.clone(),
            })
        };
        Arc::new(Self {
            members: settings.endpoints.iter().map(member).collect(),
            prefix: settings.prefix.clone(),
            state: Mutex::default(),
        })
    }

    /// Writes changes, unless another writer has written after revision `known`. Returns the revision after them. On
    /// return, a quorum of etcd's members has the changes.
    pub async fn put(&self, changes: &[RecordChange], known: u64) -> Result<u64, EtcdError> {
        let mut revision = known;
        for some in changes.chunks(MAX_TXN_OPERATIONS) {
            let mut operations: Vec<_> = some
                .iter()
                .map(|(kind, key, value)| {
                    let key = to_base64(format!("{}{kind}/{key}", self.prefix));
                    match value {
                        Some(value) => json!({ "requestPut": { "key": key, "value": to_base64(value) } }),
                        None => json!({ "requestDeleteRange": { "key": key } }),
                    }
                })
                .collect();
            // The mark distinguishes an empty table from one that does not exist yet.
            let mark = to_base64(format!("{}{CREATED_KEY}", self.prefix));
            operations.push(json!({ "requestPut": { "key": mark, "value": to_base64("1") } }));
            let mut unchanged = self.range();
            unchanged["target"] = json!("MOD");
            unchanged["result"] = json!("LESS");
            unchanged["mod_revision"] = json!((revision + 1).to_string());
            let body = json!({ "compare": [unchanged], "success": operations });
            let answer = parse_response(self.request("/v3/kv/txn", &body).await?)?;
            if !answer.succeeded {
                return Err(EtcdError::Conflict);
            }
            revision = answer.revision()?;
        }
        Ok(revision)
    }

    /// Reads all records under the prefix.
    pub async fn read_all(&self) -> Result<SharedRecords, EtcdError> {
        let answer = parse_response(self.request("/v3/kv/range", &self.range()).await?)?;
        let mut records = SharedRecords {
            revision: answer.revision()?,
            is_new: true,
            is_rolled_back: false,
            all: Vec::new(),
        };
        for pair in &answer.kvs {
            let key = String::from_utf8(from_base64(&pair.key)?)
                .map_err(|error| EtcdError::UnexpectedAnswer(error.to_string()))?;
            let Some((kind, key)) = key.strip_prefix(&self.prefix).and_then(|rest| rest.split_once('/')) else {
                continue;
            };
            records.is_new = false;
            records
                .all
                .push((kind.to_owned(), key.to_owned(), from_base64(&pair.value)?));
        }
        Ok(records)
    }

    /// Passes the whole table to `deliver`, now and after each change, until `deliver` returns false.
    pub async fn follow(self: Arc<Self>, deliver: impl Fn(SharedRecords) -> bool) {
        let mut backoff = Backoff::new(RETRY_INTERVALS.0, RETRY_INTERVALS.1, &self.prefix);
        let mut last = 0;
        loop {
            match self.read_all().await {
                Ok(mut records) => {
                    backoff.reset();
                    records.is_rolled_back = records.revision < last;
                    if records.is_rolled_back {
                        tracing::warn!(
                            revision = records.revision,
                            before = last,
                            "The shared table's revision has gone back: etcd was restored from a backup, or created \
                             again."
                        );
                    }
                    last = records.revision;
                    let next = records.revision + 1;
                    if !deliver(records) {
                        return;
                    }
                    self.wait_for_change(next).await;
                    tokio::time::sleep(SETTLE_INTERVAL).await;
                }
                Err(error) => {
                    tracing::warn!(
                        error = crate::sys::error_chain(&error),
                        "The shared table in etcd cannot be read: its last known content stays active."
                    );
                    tokio::time::sleep(backoff.pause()).await;
                }
            }
        }
    }

    /// Returns after a change, or a possible change, since `revision`.
    async fn wait_for_change(&self, revision: u64) {
        let mut create = self.range();
        create["start_revision"] = json!(revision.to_string());
        let body = json!({ "create_request": create }).to_string();
        let member = self.member();
        // The first line only shows that the watch has begun.
        let watch = self.members[member].stream_lines("/v3/watch", body, |line| !has_events(line));
        if let Ok(Err(error)) = tokio::time::timeout(FULL_READ_INTERVAL, watch).await {
            tracing::debug!(error = crate::sys::error_chain(&error), "A watch of etcd has ended.");
            self.next_member(member);
            tokio::time::sleep(RETRY_INTERVALS.0).await;
        }
    }

    fn range(&self) -> Value {
        let mut end = self.prefix.clone().into_bytes();
        // End of the range: the first key after all keys with the prefix, which ends in `/`.
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        json!({ "key": to_base64(&self.prefix), "range_end": to_base64(end) })
    }

    fn member(&self) -> usize {
        self.state.lock().0 % self.members.len()
    }

    fn next_member(&self, failed: usize) {
        let mut state = self.state.lock();
        if state.0 % self.members.len() == failed {
            state.0 = (failed + 1) % self.members.len();
        }
    }

    /// Asks members in turn until one answers.
    async fn request(&self, path: &str, body: &Value) -> Result<Value, EtcdError> {
        if let Some((when, why)) = &self.state.lock().1
            && when.elapsed() < FAILED_MEMBER_TTL
        {
            return Err(EtcdError::BackingOff(why.clone()));
        }
        let mut attempt = 0;
        loop {
            let member = self.member();
            let asked = self.members[member]
                .ask_with_timeout(REQUEST_TIMEOUT, Method::POST, path, Some(body.to_string()))
                .await;
            let error = match asked {
                Ok(answer) => {
                    self.state.lock().1 = None;
                    return Ok(answer);
                }
                // The member answers, so it is not at fault: others would refuse the request too.
                Err(error @ ClientError::Refused { status, .. }) if status.is_client_error() => {
                    return Err(EtcdError::Unreachable(error));
                }
                Err(error) => error,
            };
            self.next_member(member);
            attempt += 1;
            if attempt == self.members.len().min(MAX_MEMBERS_TRIED) {
                self.state.lock().1 = Some((Instant::now(), crate::sys::error_chain(&error)));
                return Err(EtcdError::Unreachable(error));
            }
        }
    }
}

fn parse_response(answer: Value) -> Result<EtcdResponse, EtcdError> {
    serde_json::from_value(answer).map_err(|error| EtcdError::UnexpectedAnswer(error.to_string()))
}

/// Returns whether a line of a watch reports a change, or the end of the watch: both are reasons to read.
fn has_events(line: &[u8]) -> bool {
    let Ok(line) = serde_json::from_slice::<Value>(line) else {
        return true;
    };
    let result = &line["result"];
    result.is_null() || result["events"].is_array() || result["canceled"] == true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcd_watch_lines_with_events_ends_or_errors_trigger_a_read() {
        for (line, wanted) in [
            (r#"{"result":{"header":{"revision":"3"},"created":true}}"#, false),
            (
                r#"{"result":{"header":{"revision":"4"},"events":[{"kv":{"key":"YQ=="}}]}}"#,
                true,
            ),
            (
                r#"{"result":{"header":{},"canceled":true,"compact_revision":"9"}}"#,
                true,
            ),
            (r#"{"error":{"message":"lost"}}"#, true),
            ("nonsense", true),
        ] {
            assert_eq!(has_events(line.as_bytes()), wanted, "{line}");
        }
    }
}

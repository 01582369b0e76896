//! Requests to a running signalbox over its admin socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use hyper::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize as _, Serialize};
use serde_json::Value;
use signalbox_api::problem::Problem;
use tokio::time::timeout;

use signalbox_sources::client::ApiClient;

/// Address of the signalbox that is asked.
#[derive(clap::Args)]
pub(super) struct SocketArgs {
    /// The admin socket of the running signalbox.
    #[arg(
        long,
        env = "SIGNALBOX_SOCKET",
        default_value = "/run/signalbox/admin.sock",
        value_name = "PATH"
    )]
    pub(super) socket: PathBuf,
}

/// GETs a path and returns the answer. The error contains the reason of a refusal.
pub(super) fn get(socket: &Path, path: &str) -> anyhow::Result<Value> {
    change(socket, &Method::GET, path, None)
}

/// GETs a path and returns the answer in its type.
pub(super) fn read<T: DeserializeOwned>(socket: &Path, path: &str) -> anyhow::Result<T> {
    decode(get(socket, path)?)
}

/// Sends a change and returns the answer in its type.
pub(super) fn send<T: DeserializeOwned>(
    socket: &Path,
    method: &Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> anyhow::Result<T> {
    let body = body.map(serde_json::to_value).transpose()?;
    decode(change(socket, method, path, body.as_ref())?)
}

/// Returns an answer in its type.
pub(super) fn decode<T: DeserializeOwned>(answer: Value) -> anyhow::Result<T> {
    serde_json::from_value(answer).context("the running signalbox has another version")
}

/// Sends a change and returns the answer. The error contains the reason of a refusal.
pub(super) fn change(socket: &Path, method: &Method, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
    success_or_error(path, ask(socket, method, path, body.map(ToString::to_string))?)
}

/// Posts any text as the body and returns the answer.
pub(super) fn post_text(socket: &Path, path: &str, body: String) -> anyhow::Result<Value> {
    success_or_error(path, ask(socket, &Method::POST, path, Some(body))?)
}

/// Posts any text, and returns status and answer, even of a refusal.
pub(super) fn post_text_raw(socket: &Path, path: &str, body: String) -> anyhow::Result<(StatusCode, Value)> {
    ask(socket, &Method::POST, path, Some(body))
}

/// Reads server-sent events until either side ends the stream: their kinds and data.
pub(super) fn events(
    socket: &Path,
    path: &str,
    each: impl FnMut(&str, &str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let client = ApiClient::Socket(socket.to_owned());
    block_on(follow(&client, path, Duration::MAX, each))
}

/// Reads a server's events until either side ends the stream, or nothing has arrived for `silence`.
pub(super) async fn follow(
    client: &ApiClient,
    path: &str,
    silence: Duration,
    mut each: impl FnMut(&str, &str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let silent = |_| anyhow!("no data has arrived for {} s", silence.as_secs());
    let sent = timeout(silence, client.send(Method::GET, path, None)).await;
    let (status, mut body) = sent.map_err(silent)??;
    if !status.is_success() {
        bail!("{path}: {status}");
    }
    let mut kind = String::new();
    while let Some(line) = timeout(silence, body.line(MAX_EVENT_BYTES)).await.map_err(silent)?? {
        match String::from_utf8_lossy(&line).trim_end().split_once(": ") {
            Some(("event", name)) => name.clone_into(&mut kind),
            Some(("data", data)) => each(&kind, data)?,
            _ => {}
        }
    }
    Ok(())
}

/// Maximum length of a line of server-sent events, in bytes.
const MAX_EVENT_BYTES: usize = 16 << 20;

pub(super) fn block_on<T>(asking: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(asking)
}

fn success_or_error(path: &str, (status, answer): (StatusCode, Value)) -> anyhow::Result<Value> {
    if !status.is_success() {
        match problem_text(&answer) {
            Some(detail) => bail!("{detail}"),
            None => bail!("{path}: {status}: {answer}"),
        }
    }
    Ok(answer)
}

/// Returns the explanation of a refusal.
pub(super) fn problem_text(answer: &Value) -> Option<String> {
    let problem: Problem = Problem::deserialize(answer).ok()?;
    Some(problem.detail)
}

fn ask(socket: &Path, method: &Method, path: &str, body: Option<String>) -> anyhow::Result<(StatusCode, Value)> {
    block_on(async {
        let client = ApiClient::Socket(socket.to_owned());
        let (status, body) = client.send(method.clone(), path, body).await?;
        // The size of an export is unlimited, and the socket of this machine's signalbox is trusted.
        let body = body.whole(usize::MAX).await?;
        let text = || Value::String(String::from_utf8_lossy(&body).into_owned());
        Ok((status, serde_json::from_slice(&body).unwrap_or_else(|_| text())))
    })
}

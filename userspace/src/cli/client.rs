//! Client of a running signalbox's admin socket.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

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

/// GETs a path and returns the JSON it answers.
pub(super) fn get(socket: &Path, path: &str) -> anyhow::Result<Value> {
    let (status, body) = ask(socket, &Method::GET, path, None)?;
    if !status.is_success() {
        bail!("{path}: {status}: {body}");
    }
    Ok(body)
}

/// Sends a change and returns the answer; the error repeats the reason of a refusal.
pub(super) fn change(socket: &Path, method: &Method, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
    success_or_error(path, ask(socket, method, path, body.map(ToString::to_string))?)
}

/// Posts any text as the body and returns the answer.
pub(super) fn post_text(socket: &Path, path: &str, body: String) -> anyhow::Result<Value> {
    success_or_error(path, ask(socket, &Method::POST, path, Some(body))?)
}

/// Posts any text and returns status and answer, also of a refusal.
pub(super) fn post_text_raw(socket: &Path, path: &str, body: String) -> anyhow::Result<(StatusCode, Value)> {
    ask(socket, &Method::POST, path, Some(body))
}

/// Reads server-sent events, until either side ends the stream: their kinds and data.
pub(super) fn events(
    socket: &Path,
    path: &str,
    mut each: impl FnMut(&str, &str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let mut response = send(socket, &Method::GET, path, String::new()).await?;
            if !response.status().is_success() {
                bail!("{path}: {}", response.status());
            }
            let (mut text, mut kind) = (String::new(), String::new());
            while let Some(frame) = response.frame().await {
                let Ok(data) = frame?.into_data() else { continue };
                text.push_str(&String::from_utf8_lossy(&data));
                while let Some(end) = text.find('\n') {
                    let line: String = text.drain(..=end).collect();
                    match line.trim_end().split_once(": ") {
                        Some(("event", name)) => name.clone_into(&mut kind),
                        Some(("data", data)) => each(&kind, data)?,
                        _ => {}
                    }
                }
            }
            Ok(())
        })
}

async fn send(
    socket: &Path,
    method: &Method,
    path: &str,
    body: String,
) -> anyhow::Result<hyper::Response<hyper::body::Incoming>> {
    let stream = UnixStream::connect(socket).await.with_context(|| {
        format!(
            "no signalbox answers on {} (is it running? --socket names another one)",
            socket.display()
        )
    })?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "signalbox")
        .body(Full::new(Bytes::from(body)))?;
    Ok(sender.send_request(request).await?)
}

fn success_or_error(path: &str, (status, answer): (StatusCode, Value)) -> anyhow::Result<Value> {
    if !status.is_success() {
        match answer.get("detail").and_then(Value::as_str) {
            Some(detail) => bail!("{detail}"),
            None => bail!("{path}: {status}: {answer}"),
        }
    }
    Ok(answer)
}

fn ask(socket: &Path, method: &Method, path: &str, body: Option<String>) -> anyhow::Result<(StatusCode, Value)> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let response = send(socket, method, path, body.unwrap_or_default()).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            let text = || Value::String(String::from_utf8_lossy(&body).into_owned());
            Ok((status, serde_json::from_slice(&body).unwrap_or_else(|_| text())))
        })
}

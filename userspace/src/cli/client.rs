//! Asks a running signalbox over its admin socket.

use std::path::Path;

use anyhow::{Context as _, bail};
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

/// GETs a path and returns the JSON it answers.
pub(super) fn get(socket: &Path, path: &str) -> anyhow::Result<Value> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let stream = UnixStream::connect(socket).await.with_context(|| {
                format!(
                    "no signalbox answers on {} (is it running? --socket names another one)",
                    socket.display()
                )
            })?;
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            let request = Request::get(path)
                .header("host", "signalbox")
                .body(Empty::<Bytes>::new())?;
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            if !status.is_success() {
                bail!("{path}: {status}: {}", String::from_utf8_lossy(&body));
            }
            Ok(serde_json::from_slice(&body)?)
        })
}

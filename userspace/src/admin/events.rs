//! `GET /api/v1/events`: changes as they happen (server-sent events).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use serde_json::json;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tokio_stream::{Stream, StreamExt as _};

use crate::control::Control;

/// Interval of keep-alive comments on a quiet connection: shorter than the usual time-outs of proxies.
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Streams changes, beginning with `hello`. A client that reads too slowly gets the number of changes that it has
/// `missed`, and loads the state again.
pub(super) async fn stream(State(control): State<Arc<Control>>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let changes = BroadcastStream::new(control.shared.changes.subscribe());
    let hello = Event::default()
        .event("hello")
        .data(json!({ "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id() }).to_string());
    let changes = changes.map(|change| match change {
        Ok(change) => Event::default().event(change.kind).data(change.data.to_string()),
        Err(BroadcastStreamRecvError::Lagged(n)) => Event::default().event("missed").data(n.to_string()),
    });
    Sse::new(tokio_stream::once(hello).chain(changes).map(Ok)).keep_alive(KeepAlive::new().interval(KEEPALIVE_INTERVAL))
}

//! `GET /api/v1/events`: changes as they happen (server-sent events).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use serde::Serialize;
use signalbox_api::live::Hello;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tokio_stream::{Stream, StreamExt as _};

use crate::control::Control;

/// Interval of keep-alive comments on a quiet connection: shorter than the usual time-outs of proxies.
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Makes an event of this kind.
pub(super) fn event(kind: &str, data: &impl Serialize) -> Event {
    let text = serde_json::to_string(data).unwrap_or_default();
    Event::default().event(kind).data(text)
}

/// Streams changes, beginning with `hello`. A client that reads too slowly gets the number of changes that it has
/// `missed`, and loads the state again.
pub(super) async fn stream(State(control): State<Arc<Control>>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let changes = BroadcastStream::new(control.shared.changes.subscribe());
    let hello = Hello {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: Some(std::process::id()),
        interval_ms: None,
    };
    let hello = event("hello", &hello);
    let changes = changes.map(|change| match change {
        Ok(change) => {
            let change = serde_json::to_value(&*change).unwrap_or_default();
            event(change["event"].as_str().unwrap_or_default(), &change["data"])
        }
        Err(BroadcastStreamRecvError::Lagged(n)) => Event::default().event("missed").data(n.to_string()),
    });
    Sse::new(tokio_stream::once(hello).chain(changes).map(Ok)).keep_alive(KeepAlive::new().interval(KEEPALIVE_INTERVAL))
}

//! `GET /api/v1/events`: changes as they happen (server-sent events).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{KeepAlive, Sse};
use signalbox_api::live::Hello;
use signalbox_api::streams::{ChangesEvent, ChangesNotice};
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tokio_stream::{Stream, StreamExt as _};

use super::reply::{EventStream, StreamedEvent, event};
use crate::control::Control;

/// Interval of keep-alive comments on a quiet connection: shorter than the usual time-outs of proxies.
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Streams changes, beginning with `hello`. A client that reads too slowly gets the number of changes that it has
/// `missed`, and loads the state again.
pub(super) async fn stream(
    State(control): State<Arc<Control>>,
) -> EventStream<ChangesEvent, impl Stream<Item = StreamedEvent>> {
    let changes = BroadcastStream::new(control.shared.changes.subscribe());
    let hello = Hello {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: Some(std::process::id()),
        interval_ms: None,
    };
    let hello = event(&ChangesNotice::Hello(hello));
    let changes = changes.map(|change| match change {
        Ok(change) => event(&*change),
        Err(BroadcastStreamRecvError::Lagged(n)) => event(&ChangesNotice::Missed(n)),
    });
    let events = Sse::new(tokio_stream::once(hello).chain(changes));
    events.keep_alive(KeepAlive::new().interval(KEEPALIVE_INTERVAL)).into()
}

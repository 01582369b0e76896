//! `GET /api/v1/live`, `GET /api/v1/history` and `GET /ws`: figures of the balancer and of each host, every second.

mod view;
pub(super) mod websocket;

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::sse::{KeepAlive, Sse};
use serde::Deserialize;
use signalbox_api::live::{Hello, HistoryAnswer};
use signalbox_api::streams::LiveEvent;
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tokio_stream::{Stream, StreamExt as _};

use super::events::KEEPALIVE_INTERVAL;
use super::reply::{ApiReply, EventStream, StreamedEvent, answer, event};
use crate::control::Control;
use crate::state::Shared;
use crate::state::series::{MAX_SAMPLES, SAMPLE_INTERVAL, Sample};

/// Takes a sample every second, until it is aborted. A late sample is not made up for.
pub(super) async fn sample(shared: Arc<Shared>) {
    let mut seconds = tokio::time::interval(SAMPLE_INTERVAL);
    seconds.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        seconds.tick().await;
        shared.series.sample(&shared);
    }
}

/// Streams samples, beginning with `hello` and the last sample. A sample has the list of hosts if it has changed, and
/// the figures of those hosts whose figures have changed. A client that reads too slowly gets the number of samples
/// that it has `missed`. No other data is lost, since the figures are cumulative.
pub(super) async fn stream(
    State(control): State<Arc<Control>>,
) -> EventStream<LiveEvent, impl Stream<Item = StreamedEvent>> {
    let (last, coming) = control.shared.series.subscribe();
    let hello = Hello {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: Some(std::process::id()),
        interval_ms: Some(SAMPLE_INTERVAL.as_millis() as u64),
    };
    let hello = event(&LiveEvent::Hello(hello));
    let mut before: Option<Arc<Sample>> = None;
    let samples = tokio_stream::iter(last.map(Ok)).chain(BroadcastStream::new(coming));
    let samples = samples.map(move |sample| match sample {
        Ok(sample) => {
            let change = event(&LiveEvent::Sample(view::change(before.as_deref(), &sample)));
            before = Some(sample);
            change
        }
        Err(BroadcastStreamRecvError::Lagged(n)) => event(&LiveEvent::Missed(n)),
    });
    let events = Sse::new(tokio_stream::once(hello).chain(samples));
    events.keep_alive(KeepAlive::new().interval(KEEPALIVE_INTERVAL)).into()
}

#[derive(Deserialize)]
pub(super) struct HistoryQuery {
    seconds: Option<usize>,
    hosts: Option<String>,
}

/// Returns the last samples, as one list per number.
pub(super) async fn history(
    State(control): State<Arc<Control>>,
    Query(query): Query<HistoryQuery>,
) -> ApiReply<HistoryAnswer> {
    let samples = control.shared.series.last(query.seconds.unwrap_or(MAX_SAMPLES));
    answer(view::history(&samples, query.hosts.as_deref().unwrap_or_default()))
}

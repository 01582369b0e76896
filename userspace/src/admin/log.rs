//! The access log in the API: whether it can be written, and reopening its file.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use signalbox_api::by_label;
use signalbox_api::status::{AccessLogView, ReopenAnswer};

use super::problem::problem;
use super::reply::{ApiReply, answer};
use crate::control::Control;
use crate::state::access_log::AccessLog;

/// Time limit for the writer's thread to open the file.
const REOPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the status of the access log, if it is on.
pub(super) fn view(log: &AccessLog) -> Option<AccessLogView> {
    Some(AccessLogView {
        to: log.target()?.to_string(),
        lines: log.written.get(),
        dropped: by_label(log.dropped()),
        error: log.error(),
    })
}

/// `POST /api/v1/log/reopen`: opens the file again, because it has been renamed. Answers when lines go to the new file.
pub(super) async fn reopen(State(control): State<Arc<Control>>) -> ApiReply<ReopenAnswer> {
    let log = &control.shared.log;
    if log.target().is_none() {
        let detail = "the configuration has no `log: { connections: { to: FILE } }`";
        return problem(StatusCode::CONFLICT, "Connections are not logged", detail);
    }
    let (wish, until) = (log.reopen(), Instant::now() + REOPEN_TIMEOUT);
    while !log.has_reopened(wish) && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let trouble = log.error();
    let trouble = trouble.or_else(|| {
        let late = !log.has_reopened(wish);
        late.then(|| "the thread that writes is blocked by its output: it opens the file when it can continue".into())
    });
    match trouble {
        None => answer(ReopenAnswer { log: view(log) }),
        Some(error) => problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "The access log cannot be written",
            &error,
        ),
    }
}

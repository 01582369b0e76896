//! Bodies of requests that make changes: read completely, and within a time limit, before the request is processed.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody as _, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use super::problem::problem;
use crate::state::Shared;

/// Maximum body size, which fits all routes of a large cluster.
pub(super) const MAX_BODY_BYTES: usize = 64 << 20;

/// Time limit for a body to arrive.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Limits of request bodies.
#[derive(Clone)]
pub(super) struct BodyLimits {
    pub(super) shared: Arc<Shared>,
    pub(super) body_timeout: Duration,
}

/// Reads a body before the request is processed. A change that has begun is never aborted: the limit is the client's.
pub(super) async fn read_whole(State(patience): State<BodyLimits>, request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let (head, body) = request.into_parts();
    // A request whose Content-Length is too large is refused before its body is sent.
    if body.size_hint().lower() > MAX_BODY_BYTES as u64 {
        return too_large();
    }
    match tokio::time::timeout(patience.body_timeout, to_bytes(body, MAX_BODY_BYTES)).await {
        Ok(Ok(body)) => next.run(Request::from_parts(head, Body::from(body))).await,
        Ok(Err(error)) if is_too_large(&error) => too_large(),
        Ok(Err(error)) => problem(
            StatusCode::BAD_REQUEST,
            "The body could not be read",
            &error.to_string(),
        ),
        Err(_) => {
            patience.shared.admin.refused.inc("body_timeout");
            let detail = format!("it must be here within {} s", patience.body_timeout.as_secs());
            problem(StatusCode::REQUEST_TIMEOUT, "The body took too long", &detail)
        }
    }
}

fn too_large() -> Response {
    let detail = format!("a body has at most {MAX_BODY_BYTES} bytes");
    problem(StatusCode::PAYLOAD_TOO_LARGE, "The body is too long", &detail)
}

fn is_too_large(error: &axum::Error) -> bool {
    let source = std::error::Error::source(error);
    source.is_some_and(<dyn std::error::Error>::is::<http_body_util::LengthLimitError>)
}

//! Errors of the API, as "problem details" (RFC 9457).

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

/// Makes an error answer as RFC 9457 wants it.
pub(super) fn problem(status: StatusCode, title: &str, detail: &str, more: &Value) -> Response {
    let mut body = json!({ "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail });
    if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
        body.extend(more.clone());
    }
    (
        status,
        [(header::CONTENT_TYPE, "application/problem+json")],
        body.to_string(),
    )
        .into_response()
}

/// Answer where a model or a difference cannot be shown: nothing says that there is nothing to show.
pub(super) fn not_shown(error: &serde_json::Error) -> Response {
    problem(
        StatusCode::INTERNAL_SERVER_ERROR,
        "The configuration cannot be shown",
        &error.to_string(),
        &json!({}),
    )
}

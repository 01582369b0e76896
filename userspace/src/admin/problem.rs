//! Errors of the API, as "problem details" (RFC 9457).

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Json, Response};
use serde::Serialize;
use signalbox_api::problem::{NoDetails, Problem};

/// Makes an error answer in the format of RFC 9457.
pub(super) fn problem<R: From<Response>>(status: StatusCode, title: &str, detail: &str) -> R {
    problem_with(status, title, detail, NoDetails {})
}

/// Makes an error answer with further fields.
pub(super) fn problem_with<R: From<Response>>(
    status: StatusCode,
    title: &str,
    detail: &str,
    more: impl Serialize,
) -> R {
    let problem = Problem {
        kind: "about:blank".to_owned(),
        title: title.to_owned(),
        status: status.as_u16(),
        detail: detail.to_owned(),
        more,
    };
    (
        status,
        [(header::CONTENT_TYPE, "application/problem+json")],
        Json(problem),
    )
        .into_response()
        .into()
}

/// Answer if a model or a difference cannot be serialized: an empty answer would mean that there is none.
pub(super) fn not_shown<R: From<Response>>(error: &serde_json::Error) -> R {
    problem(
        StatusCode::INTERNAL_SERVER_ERROR,
        "The configuration cannot be shown",
        &error.to_string(),
    )
}

/// Maximum number of bytes that are read of a framework error.
const MAX_ERROR_BYTES: usize = 4096;

/// Converts the framework's own errors to problems: an unknown path, a wrong method, a parameter that is not a number.
pub(super) async fn of_framework(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = next.run(request).await;
    let is_text = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_none_or(|kind| kind.as_bytes().starts_with(b"text/plain"));
    if !response.status().is_client_error() || !is_text {
        return response;
    }
    let (head, body) = response.into_parts();
    let said = to_bytes(body, MAX_ERROR_BYTES).await.unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let (title, detail) = described(head.status, &method, &path, &head.headers, said.trim());
    let mut response: Response = problem(head.status, title, &detail);
    if let Some(allowed) = head.headers.get(header::ALLOW) {
        response.headers_mut().insert(header::ALLOW, allowed.clone());
    }
    if method == Method::HEAD {
        *response.body_mut() = Body::empty();
    }
    response
}

/// Title and detail of a framework error with this text.
fn described(
    status: StatusCode,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    said: &str,
) -> (&'static str, String) {
    const LIST: &str = "GET /api/v1/openapi.json lists the paths and their parameters";
    match status {
        StatusCode::NOT_FOUND => ("There is no such path", format!("{path} is not known here: {LIST}")),
        StatusCode::METHOD_NOT_ALLOWED => {
            let allowed = headers.get(header::ALLOW).and_then(|allowed| allowed.to_str().ok());
            let allowed = allowed.unwrap_or("other methods").replace(',', ", ");
            (
                "The path does not take this method",
                format!("{path} takes {allowed}, not {method}: {LIST}"),
            )
        }
        StatusCode::BAD_REQUEST if !said.is_empty() => ("The request is not understood", format!("{said}: {LIST}")),
        other => {
            let said = if said.is_empty() {
                "the request is refused"
            } else {
                said
            };
            (
                other.canonical_reason().unwrap_or("The request is refused"),
                format!("{said}: {LIST}"),
            )
        }
    }
}

//! Rotation by API: lists subjects out of rotation and all jobs, starts jobs and cancels them.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Json, Response};
use serde::Deserialize;
use signalbox_api::problem::PeerResults;
use signalbox_api::rotations::{JobAnswer, OutView, RotationAnswer, RotationBody, RotationsAnswer};
use signalbox_core::routing::rotation::SubjectError;

use super::mutate::Requester;
use super::problem::{problem, problem_with};
use super::reply::{ApiReply, answer};
use crate::control::Control;
use crate::control::rotation_jobs::{RotateError, RotationRequest};

/// Maximum time to drain that is accepted, in seconds: a day.
const MAX_TIMEOUT_SECS: f64 = 86_400.0;

/// `GET /api/v1/rotations`: all subjects out of rotation (why, since when and by whom), and all jobs.
pub(super) async fn list(State(control): State<Arc<Control>>) -> ApiReply<RotationsAnswer> {
    let rotation = Arc::clone(&control.shared.snapshot.load().rotation);
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let out = rotation.0.iter().map(|(subject, out)| OutView {
        subject: subject.to_string(),
        reason: given(&out.reason),
        since: out.since,
        by: given(&out.by),
        job: out.job,
    });
    let mut jobs = Vec::new();
    for job in control.jobs.all() {
        jobs.push(control.job_view(&job).await);
    }
    answer(RotationsAnswer {
        rotations: out.collect(),
        jobs,
    })
}

pub(super) async fn start(
    State(control): State<Arc<Control>>,
    Extension(Requester(by)): Extension<Requester>,
    body: String,
) -> ApiReply<RotationAnswer> {
    let expected =
        r#"expected for example {"action": "out", "names": ["east-1"], "timeout": 120}; timeout is in seconds"#;
    let body: RotationBody = match serde_json::from_str(&body) {
        Ok(body) => body,
        Err(error) => return bad_request(&format!("{error}; {expected}")),
    };
    if body
        .timeout
        .is_some_and(|seconds| !(0.0..=MAX_TIMEOUT_SECS).contains(&seconds))
    {
        return bad_request("timeout is 0 to 86400 seconds");
    }
    let request = RotationRequest {
        action: body.action,
        names: body.names,
        timeout: body.timeout.map(Duration::from_secs_f64),
        force: body.force,
        reason: body.reason.trim().to_owned(),
        by,
    };
    let (outcome, parts) = if body.all_balancers {
        // In a separate task: a rotation that has begun is finished even if the client disconnects.
        let acting = Arc::clone(&control);
        let rotating = tokio::spawn(async move { acting.rotate_on_all_balancers(request).await });
        rotating.await.unwrap_or((Err(RotateError::ShuttingDown), Vec::new()))
    } else {
        (control.rotate(request).await, Vec::new())
    };
    let mut failed: Vec<_> = parts.iter().filter_map(|part| part.error.clone()).collect();
    if let (Err(error), false) = (&outcome, parts.is_empty()) {
        failed.push(format!("here: {error}"));
    }
    if !failed.is_empty() {
        return problem_with(
            StatusCode::BAD_GATEWAY,
            "Not all balancers have done it; those that are not named have",
            &failed.join("; "),
            PeerResults { balancers: parts },
        );
    }
    match outcome {
        Ok(job) => {
            let view = control.job_view(&job).await;
            let status = if job.ended.is_some() {
                StatusCode::OK
            } else {
                StatusCode::ACCEPTED
            };
            let balancers = parts;
            answer(RotationAnswer { job: view, balancers }).with_status(status)
        }
        Err(error) => refused(&error),
    }
}

/// Query with the balancer that has the job.
#[derive(Deserialize)]
pub(super) struct PeerJobQuery {
    url: String,
}

/// Returns a job of another balancer. This balancer asks it, because it knows the other's token.
pub(super) async fn peer_job(
    State(control): State<Arc<Control>>,
    Path(id): Path<u64>,
    Query(at): Query<PeerJobQuery>,
) -> ApiReply<JobAnswer> {
    match control.peer_job(&at.url, id).await {
        Some(Ok(answer)) => Json(answer).into_response().into(),
        Some(Err(error)) => {
            let error = crate::sys::error_chain(&error);
            problem(StatusCode::BAD_GATEWAY, "The balancer could not be asked", &error)
        }
        None => {
            let detail = format!("{} is not one of the configuration's `balancers`", at.url);
            problem(StatusCode::NOT_FOUND, "There is no such balancer", &detail)
        }
    }
}

pub(super) async fn job(State(control): State<Arc<Control>>, Path(id): Path<u64>) -> ApiReply<JobAnswer> {
    match control.jobs.get(id) {
        Some(job) => answer(JobAnswer {
            job: control.job_view(&job).await,
        }),
        None => problem(
            StatusCode::NOT_FOUND,
            "There is no such job",
            &format!("there is no job {id}"),
        ),
    }
}

pub(super) async fn cancel(State(control): State<Arc<Control>>, Path(id): Path<u64>) -> ApiReply<JobAnswer> {
    match control.cancel(id).await {
        Ok(job) => answer(JobAnswer {
            job: control.job_view(&job).await,
        }),
        Err(error) => refused(&error),
    }
}

fn bad_request(detail: &str) -> ApiReply<RotationAnswer> {
    problem(StatusCode::BAD_REQUEST, "The body is not understood", detail)
}

fn refused<R: From<Response>>(error: &RotateError) -> R {
    let status = match error {
        RotateError::Name(SubjectError::Address(_)) | RotateError::BadReason => StatusCode::BAD_REQUEST,
        RotateError::Name(_) | RotateError::NoJob(_) | RotateError::UnknownMachine(_) => StatusCode::NOT_FOUND,
        RotateError::NoNames => StatusCode::BAD_REQUEST,
        RotateError::NotOut(_) | RotateError::CoveredBy { .. } | RotateError::NoHostLeft(_) => StatusCode::CONFLICT,
        RotateError::StateDb(_) | RotateError::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
    };
    problem(
        status,
        "The rotation was refused; nothing has changed",
        &error.to_string(),
    )
}

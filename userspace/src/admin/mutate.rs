//! Changes by API over the unix socket: each is logged with its caller.

use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use signalbox_api::problem::ConfigMistakes;
use signalbox_api::weights::AppliedAnswer;
use tokio::net::UnixStream;

use super::problem::problem_with;
use super::reply::{ApiReply, answer};
use crate::control::event::Applied;
use crate::control::migration_step::FOLLOW_PATH;
use crate::control::{ChangeError, Control};

/// Peer of a connection to the unix socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnixPeer {
    uid: u32,
    pid: i32,
}

/// Author of a change, as text that is stored with the change.
#[derive(Clone, Debug)]
pub(super) struct Requester(pub(super) String);

impl UnixPeer {
    pub(super) fn of(stream: &UnixStream) -> Self {
        stream.peer_cred().map_or(Self { uid: u32::MAX, pid: -1 }, |cred| Self {
            uid: cred.uid(),
            pid: cred.pid().unwrap_or(-1),
        })
    }
}

/// Returns a user's name and number. Blocks: names may come from a directory on the network.
fn user(uid: u32) -> String {
    match nix::unistd::User::from_uid(uid.into()) {
        Ok(Some(user)) => format!("{} (uid {uid})", user.name),
        _ => format!("uid {uid}"),
    }
}

/// Whether a change is logged. Another balancer's migration asks twice a second, and its changes have their own lines.
pub(super) fn is_worth_a_line(path: &str, status: u16) -> bool {
    path != FOLLOW_PATH || status >= 400
}

/// Logs each change with its caller and its result.
pub(super) async fn audit(ConnectInfo(caller): ConnectInfo<UnixPeer>, mut request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let asker = tokio::task::spawn_blocking(move || user(caller.uid)).await;
    let asker = asker.unwrap_or_else(|_| format!("uid {}", caller.uid));
    request.extensions_mut().insert(Requester(asker));
    let response = next.run(request).await;
    let status = response.status().as_u16();
    if is_worth_a_line(&path, status) {
        tracing::info!(target: "signalbox::audit", uid = caller.uid, pid = caller.pid, %method, path, status, "Change requested.");
    }
    response
}

pub(super) fn apply_response(outcome: Result<Applied, ChangeError>) -> ApiReply<AppliedAnswer<Applied>> {
    match outcome {
        Ok(applied) => answer(AppliedAnswer { applied }),
        Err(refused) => problem_with(
            StatusCode::UNPROCESSABLE_ENTITY,
            "The change was refused; nothing has changed",
            &refused.error,
            ConfigMistakes { errors: refused.errors },
        ),
    }
}

pub(super) async fn reload(State(control): State<Arc<Control>>) -> ApiReply<AppliedAnswer<Applied>> {
    apply_response(control.reload("API").await)
}

pub(super) async fn config(State(control): State<Arc<Control>>, body: String) -> ApiReply<AppliedAnswer<Applied>> {
    apply_response(control.apply_override(&body, "API").await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_a_user_by_name_or_else_by_number() {
        assert_eq!(user(0), "root (uid 0)");
        assert_eq!(user(u32::MAX - 7), "uid 4294967288");
    }
}

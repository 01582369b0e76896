//! Requests to the API server, and the meaning of its answers.

use std::path::Path;
use std::time::Instant;

use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Response, StatusCode};
use serde::Deserialize;
use signalbox_core::model::kubernetes::ApiServerAccess;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::Timings;
use super::access::{Identity, ResolvedAccess, resolve};
use super::client::Client;
use super::kubeconfig::Exec;
use super::program::{self, ExecCredentialStatus};
use super::reachability::Reachability;
use super::server_tls::ClientCertificate;
use super::watch_error::WatchError;
use crate::body::Body;

/// Most bytes of a refusal that are read.
const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// Connection to an API server, shared by all feeds of a cluster.
pub(super) struct Connector {
    connection: ApiServerAccess,
    timings: Timings,
    state: Mutex<ConnectorState>,
    pub(super) reachability: Reachability,
}

/// State that is kept from one request to the next.
#[derive(Default)]
struct ConnectorState {
    ready: Option<ReadyClient>,
    /// Credentials from the program, and which program: it is not run again only because a connection was lost.
    exec_credential: Option<(Exec, ExecCredentialStatus)>,
    /// Last failure to get ready: requests that waited for it fail with it, instead of trying again themselves.
    failed: Option<(Instant, String)>,
    /// Number of clients made so far.
    clients: u64,
}

/// A client with its credentials.
#[derive(Clone)]
struct ReadyClient {
    client: Client,
    auth: RequestAuth,
    /// Description of the proxy, for messages.
    through: String,
    /// Number of the client: an error of an earlier client does not count against its successor.
    number: u64,
}

#[derive(Clone)]
enum RequestAuth {
    None,
    Header(HeaderValue),
    File(std::path::PathBuf),
}

impl Connector {
    pub(super) fn new(connection: ApiServerAccess, timings: Timings) -> Self {
        Self {
            connection,
            timings,
            state: Mutex::default(),
            reachability: Reachability::default(),
        }
    }

    /// Sends a GET of `path` (with its query).
    pub(super) async fn get(&self, path: &str) -> Result<Response<Incoming>, WatchError> {
        let outcome = self.ask(path).await;
        self.reachability.record_outcome(&outcome);
        outcome
    }

    /// Returns whether the server answers, with any status.
    pub(super) async fn answers(&self) -> bool {
        !matches!(self.get("/version").await, Err(WatchError::Unreachable(_)))
    }

    async fn ask(&self, path: &str) -> Result<Response<Incoming>, WatchError> {
        let ReadyClient {
            client,
            auth: proof,
            through,
            number,
        } = self.ready().await.map_err(WatchError::ConfigUnusable)?;
        let header = match proof {
            RequestAuth::None => None,
            RequestAuth::Header(value) => Some(value),
            RequestAuth::File(path) => Some(bearer_header(&path).await.map_err(WatchError::ConfigUnusable)?),
        };
        let response = client.get(path, header).map_err(WatchError::Failed)?;
        let response = match timeout(self.timings.answer_timeout, response).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                // The kubeconfig, the authorities or the address may have changed: they are read again.
                self.forget(number, false).await;
                // The outermost text, "client error (Connect)", says nothing to an operator.
                let cause = std::error::Error::source(&error).map(signalbox_sys::error_chain);
                let cause = cause.unwrap_or_else(|| signalbox_sys::error_chain(&error));
                return Err(WatchError::Unreachable(self.unreachable(&through, &cause)));
            }
            Err(_) => {
                self.forget(number, false).await;
                let cause = format!("no answer within {:?}", self.timings.answer_timeout);
                return Err(WatchError::Unreachable(self.unreachable(&through, &cause)));
            }
        };
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        Err(self.refused(response, number).await)
    }

    async fn refused(&self, response: Response<Incoming>, number: u64) -> WatchError {
        let status = response.status();
        let body = Body::new(response.into_body(), self.timings.answer_timeout);
        let body = body.whole(MAX_REFUSAL_BYTES).await.unwrap_or_default();
        let said = status_message(&body);
        match status {
            StatusCode::UNAUTHORIZED => {
                self.forget(number, true).await;
                let credentials = self.credentials();
                WatchError::Unauthorized(format!(
                    "the API server does not accept the credentials of {credentials} (401{said}): renew them"
                ))
            }
            StatusCode::FORBIDDEN => WatchError::Forbidden(said),
            StatusCode::NOT_FOUND => WatchError::Absent,
            StatusCode::GONE => WatchError::Expired,
            _ => WatchError::Failed(format!("the API server answers {}{said}", status.as_u16())),
        }
    }

    async fn ready(&self) -> Result<ReadyClient, String> {
        let asked = Instant::now();
        let mut state = self.state.lock().await;
        let has_expired = state
            .exec_credential
            .as_ref()
            .is_some_and(|(_, given)| given.has_expired());
        if let (Some(ready), false) = (&state.ready, has_expired) {
            return Ok(ready.clone());
        }
        if let Some((when, error)) = &state.failed
            && *when >= asked
        {
            return Err(error.clone());
        }
        let prepared = self.prepare(&mut state).await;
        match &prepared {
            Ok(ready) => state.ready = Some(ready.clone()),
            Err(error) => state.failed = Some((Instant::now(), error.clone())),
        }
        prepared
    }

    async fn prepare(&self, state: &mut ConnectorState) -> Result<ReadyClient, String> {
        let way = resolve(&self.connection).await;
        if let (Err(_), ApiServerAccess::Kubeconfig { path, .. }) = (&way, &self.connection) {
            self.reachability.set_files(vec![path.clone()]);
        }
        let mut way = way?;
        self.reachability.set_files(way.files.clone());
        let through = way
            .proxy
            .as_ref()
            .map(|proxy| format!(" through the proxy {}", proxy.shown()));
        let through = through.unwrap_or_default();
        let proof = match &way.identity {
            Identity::Anonymous => RequestAuth::None,
            Identity::Header(value) => RequestAuth::Header(secret_header(value, "the kubeconfig")?),
            Identity::File(path) => RequestAuth::File(path.clone()),
            Identity::Program(exec) => {
                let given = match state.exec_credential.take() {
                    Some((of, given)) if of == **exec && !given.has_expired() => given,
                    _ => program::run(exec, self.timings.program_timeout).await?,
                };
                state.exec_credential = Some(((**exec).clone(), given.clone()));
                apply_credential(&mut way, given)?
            }
        };
        let client = Client::new(&way).map_err(|error| format!("no connection can be prepared{through}: {error}"))?;
        state.clients += 1;
        Ok(ReadyClient {
            client,
            auth: proof,
            through,
            number: state.clients,
        })
    }

    /// Forgets the client, so that its files are read again. `credentials`: the program is run again, too.
    async fn forget(&self, number: u64, credentials: bool) {
        let mut state = self.state.lock().await;
        if state.clients != number {
            return;
        }
        state.ready = None;
        if credentials {
            state.exec_credential = None;
        }
    }

    fn unreachable(&self, through: &str, cause: &str) -> String {
        let at = match &self.connection {
            ApiServerAccess::InCluster => "the cluster's API server".to_owned(),
            ApiServerAccess::Kubeconfig { path, .. } => format!("the API server of {}", path.display()),
            ApiServerAccess::Url { url, .. } => url.clone(),
        };
        format!("{at} cannot be reached{through}: {cause}")
    }

    fn credentials(&self) -> String {
        match &self.connection {
            ApiServerAccess::InCluster => "the pod's service account".to_owned(),
            ApiServerAccess::Kubeconfig { path, .. } => path.display().to_string(),
            ApiServerAccess::Url { token: Some(path), .. } => path.display().to_string(),
            ApiServerAccess::Url { token: None, .. } => "nobody: `token_file` is not set".to_owned(),
        }
    }
}

/// Presents the credential of a program: a token in a header, or a certificate in the TLS handshake.
fn apply_credential(way: &mut ResolvedAccess, given: ExecCredentialStatus) -> Result<RequestAuth, String> {
    if let (Some(certificate), Some(key)) = (given.client_certificate_data, given.client_key_data) {
        way.tls.identity = Some(ClientCertificate {
            certificate: certificate.into_bytes(),
            key: key.into_bytes(),
        });
    }
    match given.token {
        Some(token) => Ok(RequestAuth::Header(secret_header(
            &format!("Bearer {}", token.trim()),
            "the program's answer",
        )?)),
        None => Ok(RequestAuth::None),
    }
}

fn secret_header(value: &str, holder: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::try_from(value)
        .map_err(|_| format!("the token in {holder} holds characters that no token has"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Makes the header for the token in a file. Editors end files with a newline, which a header must not contain.
async fn bearer_header(path: &Path) -> Result<HeaderValue, String> {
    let shown = path.display();
    let token = tokio::fs::read_to_string(path)
        .await
        .map_err(|error| format!("the token in {shown} cannot be read: {error}"))?;
    secret_header(&format!("Bearer {}", token.trim()), &shown.to_string())
}

/// Returns the server's message of a refusal, as the rest of a sentence.
fn status_message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Status {
        message: String,
    }
    match serde_json::from_slice::<Status>(body) {
        Ok(Status { message }) if !message.is_empty() => {
            let short: String = message.chars().filter(|c| !c.is_control()).take(300).collect();
            format!(", {short:?}")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_that_cannot_be_read_is_named() {
        let error = bearer_header("/nonexistent/t".as_ref()).await.unwrap_err();
        assert!(error.starts_with("the token in /nonexistent/t"), "{error}");
    }

    #[test]
    fn a_refusal_is_quoted_on_one_line() {
        assert_eq!(
            status_message(br#"{"message":"no\nrights","code":403}"#),
            ", \"norights\""
        );
        for nothing in ["", "{}", "<html>", r#"{"message":""}"#] {
            assert_eq!(status_message(nothing.as_bytes()), "");
        }
    }
}

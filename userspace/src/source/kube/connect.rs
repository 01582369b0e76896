//! Requests to the API server, and the meaning of its answers.

use std::path::Path;
use std::time::Instant;

use base64::Engine as _;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Response, StatusCode};
use serde::Deserialize;
use signalbox_core::model::kubernetes::Connection;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::Pace;
use super::client::Client;
use super::lines;
use super::program::{self, Given};
use super::reach::Reach;
use super::trouble::Trouble;
use super::way::{Way, Who, way};

/// Most bytes of a refusal that are read.
const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// Connection to an API server, shared by all feeds of a cluster.
pub(super) struct Connector {
    connection: Connection,
    pace: Pace,
    state: Mutex<State>,
    pub(super) reach: Reach,
}

/// State that is kept from one request to the next.
#[derive(Default)]
struct State {
    ready: Option<Ready>,
    /// Credentials from the program, and which program: it is not run again only because a connection was lost.
    given: Option<(String, Given)>,
    /// Last failure to get ready: requests that waited for it fail with it, instead of trying again themselves.
    failed: Option<(Instant, String)>,
    /// Number of clients made so far.
    made: u64,
}

/// A client with its credentials.
#[derive(Clone)]
struct Ready {
    client: Client,
    proof: Proof,
    /// Description of the proxy, for messages.
    through: String,
    /// Number of the client: an error of an earlier client does not count against its successor.
    number: u64,
}

#[derive(Clone)]
enum Proof {
    None,
    Header(HeaderValue),
    File(std::path::PathBuf),
}

impl Connector {
    pub(super) fn new(connection: Connection, pace: Pace) -> Self {
        Self {
            connection,
            pace,
            state: Mutex::default(),
            reach: Reach::default(),
        }
    }

    /// Sends a GET of `path` (with its query).
    pub(super) async fn get(&self, path: &str) -> Result<Response<Incoming>, Trouble> {
        let outcome = self.ask(path).await;
        self.reach.learn(&outcome);
        outcome
    }

    /// Returns whether the server answers, with whatever status.
    pub(super) async fn answers(&self) -> bool {
        !matches!(self.get("/version").await, Err(Trouble::Unreachable(_)))
    }

    async fn ask(&self, path: &str) -> Result<Response<Incoming>, Trouble> {
        let Ready {
            client,
            proof,
            through,
            number,
        } = self.ready().await.map_err(Trouble::Unprepared)?;
        let header = match proof {
            Proof::None => None,
            Proof::Header(value) => Some(value),
            Proof::File(path) => Some(bearer(&path).await.map_err(Trouble::Unprepared)?),
        };
        let response = client.get(path, header).map_err(Trouble::Failed)?;
        let response = match timeout(self.pace.answer, response).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                // The kubeconfig, the authorities or the address may have changed: they are read anew.
                self.forget(number, false).await;
                // The outermost text, "client error (Connect)", tells an operator nothing.
                let cause = std::error::Error::source(&error).map(crate::error_chain);
                let cause = cause.unwrap_or_else(|| crate::error_chain(&error));
                return Err(Trouble::Unreachable(self.unreachable(&through, &cause)));
            }
            Err(_) => {
                self.forget(number, false).await;
                let cause = format!("no answer within {:?}", self.pace.answer);
                return Err(Trouble::Unreachable(self.unreachable(&through, &cause)));
            }
        };
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        Err(self.refused(response, number).await)
    }

    async fn refused(&self, response: Response<Incoming>, number: u64) -> Trouble {
        let status = response.status();
        let body = lines::whole(response.into_body(), MAX_REFUSAL_BYTES, self.pace.answer)
            .await
            .unwrap_or_default();
        let said = message(&body);
        match status {
            StatusCode::UNAUTHORIZED => {
                self.forget(number, true).await;
                let credentials = self.credentials();
                Trouble::Unauthorized(format!(
                    "the API server does not accept the credentials of {credentials} (401{said}): renew them"
                ))
            }
            StatusCode::FORBIDDEN => Trouble::Forbidden(said),
            StatusCode::NOT_FOUND => Trouble::Absent,
            StatusCode::GONE => Trouble::Expired,
            _ => Trouble::Failed(format!("the API server answers {}{said}", status.as_u16())),
        }
    }

    async fn ready(&self) -> Result<Ready, String> {
        let asked = Instant::now();
        let mut state = self.state.lock().await;
        let has_expired = state.given.as_ref().is_some_and(|(_, given)| given.has_expired());
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

    async fn prepare(&self, state: &mut State) -> Result<Ready, String> {
        let way = way(&self.connection).await;
        if let (Err(_), Connection::Kubeconfig { path, .. }) = (&way, &self.connection) {
            self.reach.depends_on(vec![path.clone()]);
        }
        let mut way = way?;
        self.reach.depends_on(way.files.clone());
        let through = way
            .proxy
            .as_ref()
            .map(|proxy| format!(" through the proxy {}", proxy.shown()));
        let through = through.unwrap_or_default();
        let proof = match &way.who {
            Who::Plain => Proof::None,
            Who::Header(value) => Proof::Header(secret(value, "the kubeconfig")?),
            Who::File(path) => Proof::File(path.clone()),
            Who::Program(exec) => {
                let program = serde_json::to_string(exec).map_err(|error| error.to_string())?;
                let given = match state.given.take() {
                    Some((of, given)) if of == program && !given.has_expired() => given,
                    _ => program::run(exec, self.pace.program).await?,
                };
                state.given = Some((program, given.clone()));
                present(&mut way, given)?
            }
        };
        let client = Client::new(&way).map_err(|error| format!("no connection can be prepared{through}: {error}"))?;
        state.made += 1;
        Ok(Ready {
            client,
            proof,
            through,
            number: state.made,
        })
    }

    /// Forgets the client, so that its files are read again. `credentials`: the program is run again as well.
    async fn forget(&self, number: u64, credentials: bool) {
        let mut state = self.state.lock().await;
        if state.made != number {
            return;
        }
        state.ready = None;
        if credentials {
            state.given = None;
        }
    }

    fn unreachable(&self, through: &str, cause: &str) -> String {
        let at = match &self.connection {
            Connection::InCluster => "the cluster's API server".to_owned(),
            Connection::Kubeconfig { path, .. } => format!("the API server of {}", path.display()),
            Connection::Url { url, .. } => url.clone(),
        };
        format!("{at} cannot be reached{through}: {cause}")
    }

    fn credentials(&self) -> String {
        match &self.connection {
            Connection::InCluster => "the pod's service account".to_owned(),
            Connection::Kubeconfig { path, .. } => path.display().to_string(),
            Connection::Url { token: Some(path), .. } => path.display().to_string(),
            Connection::Url { token: None, .. } => "nobody: `token_file` is not set".to_owned(),
        }
    }
}

/// Presents what a program gave: a token in a header, or a certificate in the TLS handshake.
fn present(way: &mut Way, given: Given) -> Result<Proof, String> {
    if let (Some(certificate), Some(key)) = (given.client_certificate_data, given.client_key_data) {
        // A kubeconfig has both in base64.
        let encoded = |pem: String| base64::engine::general_purpose::STANDARD.encode(pem);
        way.config.auth_info.client_certificate_data = Some(encoded(certificate));
        way.config.auth_info.client_key_data = Some(encoded(key).into());
    }
    match given.token {
        Some(token) => Ok(Proof::Header(secret(
            &format!("Bearer {}", token.trim()),
            "the program's answer",
        )?)),
        None => Ok(Proof::None),
    }
}

fn secret(value: &str, holder: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::try_from(value)
        .map_err(|_| format!("the token in {holder} holds characters that no token has"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Makes the header for the token in a file. Editors end files with a newline, which a header must not contain.
async fn bearer(path: &Path) -> Result<HeaderValue, String> {
    let shown = path.display();
    let token = tokio::fs::read_to_string(path)
        .await
        .map_err(|error| format!("the token in {shown} cannot be read: {error}"))?;
    secret(&format!("Bearer {}", token.trim()), &shown.to_string())
}

/// Returns the server's message of a refusal, as the rest of a sentence.
fn message(body: &[u8]) -> String {
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
        let error = bearer("/nonexistent/t".as_ref()).await.unwrap_err();
        assert!(error.starts_with("the token in /nonexistent/t"), "{error}");
    }

    #[test]
    fn a_refusal_is_quoted_on_one_line() {
        assert_eq!(message(br#"{"message":"no\nrights","code":403}"#), ", \"norights\"");
        for nothing in ["", "{}", "<html>", r#"{"message":""}"#] {
            assert_eq!(message(nothing.as_bytes()), "");
        }
    }
}

//! The way to the API server, and what its answers mean.

use std::path::Path;
use std::time::Duration;

use hyper::header::{ACCEPT, AUTHORIZATION, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use kube::client::{Body, Client};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Config, Error};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use signalbox_core::model::kubernetes::Connection;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::lines;
use super::trouble::Trouble;

/// A connection takes no longer, or the server is as good as dead.
const CONNECT: Duration = Duration::from_secs(10);

/// How much of a refusal is read.
const REFUSAL: usize = 64 << 10;

/// Asks the server; shared by all feeds of a cluster.
pub(super) struct Connector {
    connection: Connection,
    answer: Duration,
    client: Mutex<Option<Client>>,
}

/// An error in words. Those of a program that gets credentials quote its environment and what it printed: secrets.
fn said(error: &Error) -> String {
    match error {
        Error::Auth(_) => "the credentials that the configuration names could not be had".to_owned(),
        error => crate::error_chain(error),
    }
}

impl Connector {
    /// `answer`: how long the server may take to begin one.
    pub(super) fn new(connection: Connection, answer: Duration) -> Self {
        Self {
            connection,
            answer,
            client: Mutex::default(),
        }
    }

    /// Gets what `path` (with its query) names.
    pub(super) async fn get(&self, path: &str) -> Result<Response<Body>, Trouble> {
        let client = self.client().await.map_err(Trouble::Unreachable)?;
        let mut request = Request::get(path).header(ACCEPT, "application/json");
        if let Connection::Url { token: Some(token), .. } = &self.connection {
            request = request.header(AUTHORIZATION, bearer(token).await.map_err(Trouble::Unauthorized)?);
        }
        let request = request
            .body(Body::empty())
            .map_err(|error| Trouble::Failed(error.to_string()))?;
        let response = match timeout(self.answer, client.send(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                // The kubeconfig, the authorities or the address may have changed meanwhile.
                self.forget().await;
                return Err(Trouble::Unreachable(self.unreachable(&error)));
            }
            Err(_) => {
                self.forget().await;
                return Err(Trouble::Unreachable(format!("no answer within {:?}", self.answer)));
            }
        };
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        let status = response.status();
        let body = lines::whole(response.into_body(), REFUSAL, self.answer)
            .await
            .unwrap_or_default();
        let said = message(&body);
        Err(match status {
            StatusCode::UNAUTHORIZED => {
                self.forget().await;
                let credentials = self.credentials();
                Trouble::Unauthorized(format!(
                    "the API server does not accept the credentials of {credentials} (401{said}): renew them"
                ))
            }
            StatusCode::FORBIDDEN => Trouble::Forbidden(said),
            StatusCode::NOT_FOUND => Trouble::Absent,
            StatusCode::GONE => Trouble::Expired,
            _ => Trouble::Failed(format!("the API server answers {}{said}", status.as_u16())),
        })
    }

    async fn client(&self) -> Result<Client, String> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let mut config = config(&self.connection).await?;
        config.connect_timeout = Some(CONNECT);
        // Feeds try again by themselves, and tell of it.
        config.default_retry = false;
        // A kubeconfig may name a program that gets the credentials, which kube runs here.
        let new = tokio::task::spawn_blocking(move || Client::try_from(config));
        let new = tokio::time::timeout(self.answer, new)
            .await
            .map_err(|_| "the program that gets the credentials does not end".to_owned())?;
        let new = new.map_err(|error| error.to_string())?.map_err(|error| said(&error))?;
        *client = Some(new.clone());
        Ok(new)
    }

    async fn forget(&self) {
        *self.client.lock().await = None;
    }

    fn unreachable(&self, error: &Error) -> String {
        let at = match &self.connection {
            Connection::InCluster => "the cluster's API server".to_owned(),
            Connection::Kubeconfig { path, .. } => format!("the API server of {}", path.display()),
            Connection::Url { url, .. } => url.clone(),
        };
        format!("{at} cannot be reached: {}", said(error))
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

/// The errors say what is to be mended.
async fn config(connection: &Connection) -> Result<Config, String> {
    match connection {
        Connection::InCluster => Config::incluster().map_err(|error| {
            let error = crate::error_chain(&error);
            format!("there is no service account: {error}: run in a pod that has one, or set `kubeconfig` or `url`")
        }),
        Connection::Kubeconfig { path, context } => {
            let shown = path.display();
            let kubeconfig = Kubeconfig::read_from(path)
                .map_err(|error| format!("the kubeconfig {shown} cannot be read: {}", crate::error_chain(&error)))?;
            let options = KubeConfigOptions {
                context: context.clone(),
                ..KubeConfigOptions::default()
            };
            Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .map_err(|error| format!("the kubeconfig {shown} is not usable: {}", crate::error_chain(&error)))
        }
        Connection::Url { url, ca, .. } => {
            let url: Uri = url
                .parse()
                .map_err(|error| format!("`{url}` is not an address: {error}"))?;
            let mut config = Config::new(url);
            config.root_cert = match ca {
                Some(path) => Some(authorities(path).await?),
                None => None,
            };
            Ok(config)
        }
    }
}

async fn authorities(path: &Path) -> Result<Vec<Vec<u8>>, String> {
    let shown = path.display();
    let pem = tokio::fs::read(path)
        .await
        .map_err(|error| format!("the authorities in {shown} cannot be read: {error}"))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found.iter().map(|one| one.to_vec()).collect()),
        Ok(_) => Err(format!(
            "{shown} holds no certificate in PEM: give the file of the authorities"
        )),
        Err(error) => Err(format!("{shown} is not PEM: {error}")),
    }
}

/// Read for each request, of which there are few: whoever rotates the token tells nobody.
async fn bearer(path: &Path) -> Result<HeaderValue, String> {
    let shown = path.display();
    let token = tokio::fs::read_to_string(path)
        .await
        .map_err(|error| format!("the token in {shown} cannot be read: {error}"))?;
    // Editors end files with a newline, which a header must not have.
    let mut value = HeaderValue::try_from(format!("Bearer {}", token.trim()))
        .map_err(|_| format!("the token in {shown} holds characters that no token has"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// What the server says in a refusal, as the rest of a sentence.
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
    async fn what_is_wrong_with_the_way_is_said_with_the_file() {
        let way = |connection| async move { config(&connection).await.unwrap_err() };
        let kubeconfig = Connection::Kubeconfig {
            path: "/nonexistent/k".into(),
            context: None,
        };
        assert!(
            way(kubeconfig)
                .await
                .starts_with("the kubeconfig /nonexistent/k cannot be read")
        );
        let url = |ca: &str| Connection::Url {
            url: "https://a.test".into(),
            token: None,
            ca: Some(ca.into()),
        };
        assert!(
            way(url("/nonexistent/ca"))
                .await
                .starts_with("the authorities in /nonexistent/ca cannot be read")
        );
        assert!(way(url("/dev/null")).await.contains("holds no certificate"));
        assert!(
            bearer("/nonexistent/t".as_ref())
                .await
                .unwrap_err()
                .starts_with("the token in /nonexistent/t")
        );
    }

    #[test]
    fn a_refusal_is_quoted_on_one_line() {
        assert_eq!(message(br#"{"message":"no\nrights","code":403}"#), ", \"norights\"");
        for nothing in ["", "{}", "<html>", r#"{"message":""}"#] {
            assert_eq!(message(nothing.as_bytes()), "");
        }
    }
}

//! Client of HTTP APIs: those of other balancers and of etcd's members by their URLs, and that of a signalbox on this
//! machine by its admin socket.
//!
//! Each request has a separate connection, because tokens and certificates are replaced under a running program.

use std::path::PathBuf;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioIo};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde_json::Value;
use signalbox_core::model::Balancer;
use tokio::net::UnixStream;

use crate::body::{Body, BodyError};
use crate::pem::{self, PemError};

/// Time limit of one request, from name resolution to the end of the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Most characters of a refusal that an error repeats.
const MAX_DETAIL_CHARS: usize = 500;
/// Largest answer in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Characters that are escaped in paths and queries: all but the unreserved ones (RFC 3986, section 2.3).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Percent-encodes text for a segment of a path, or a value of a query.
#[must_use]
pub fn percent_encoded(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, ESCAPED)
}

/// Reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{0:?} is not a URL such as https://balancer-1:8089/api/v1/status")]
    Url(String),
    #[error("reading {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Pem(#[from] PemError),
    #[error("no signalbox answers on {} (is it running? --socket names another one): {why}", path.display())]
    NoSocket { path: PathBuf, why: String },
    #[error("{server} does not answer: {why}")]
    Unreachable { server: String, why: String },
    #[error("{server} refuses: {status}: {detail}")]
    Refused {
        server: String,
        status: StatusCode,
        detail: String,
    },
}

/// Client of one server.
pub enum ApiClient {
    /// Another balancer or a member of etcd, by its URL and credentials.
    Balancer(Balancer),
    /// The signalbox that has this admin socket.
    Socket(PathBuf),
}

impl ApiClient {
    /// Sends a request and returns the answer, if it is a success.
    pub async fn ask(&self, method: Method, path: &str, body: Option<String>) -> Result<Value, ClientError> {
        self.ask_with_timeout(REQUEST_TIMEOUT, method, path, body).await
    }

    /// Sends a request as [`Self::ask`], with another time limit.
    pub async fn ask_with_timeout(
        &self,
        limit: Duration,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<Value, ClientError> {
        let exchange = async {
            let (status, body) = self.send(method, path, body).await?;
            self.decode_json(status, body).await
        };
        let asked = tokio::time::timeout(limit, exchange).await;
        asked.unwrap_or_else(|_| Err(self.unreachable(format!("no answer within {} s", limit.as_secs()))))
    }

    /// Sends a request whose answer does not end: `more` gets it line by line, until it returns false. An end is an
    /// error.
    pub async fn stream_lines(
        &self,
        path: &str,
        body: String,
        mut more: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), ClientError> {
        let (status, mut body) = self.send(Method::POST, path, Some(body)).await?;
        if !status.is_success() {
            return self.decode_json(status, body).await.map(drop);
        }
        while let Some(line) = body.line(MAX_ANSWER_BYTES).await.map_err(|why| self.broken(&why))? {
            if !more(&line) {
                return Ok(());
            }
        }
        Err(self.unreachable("the answer has ended".into()))
    }

    /// Sends a request and returns the answer, with any status.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<(StatusCode, Body), ClientError> {
        let base = match self {
            Self::Balancer(balancer) => balancer.url.trim_end_matches('/'),
            Self::Socket(_) => "http://signalbox",
        };
        let url = format!("{base}{path}");
        let uri: Uri = url.parse().map_err(|_| ClientError::Url(url))?;
        let mut request = Request::builder().method(method).uri(uri);
        if let Self::Balancer(Balancer {
            token_file: Some(file), ..
        }) = self
        {
            let token = tokio::fs::read_to_string(file).await;
            let token = token.map_err(|source| ClientError::File {
                path: file.clone(),
                source,
            })?;
            request = request.header("authorization", format!("Bearer {}", token.trim()));
        }
        let request = request.body(Full::new(Bytes::from(body.unwrap_or_default())));
        let request = request.map_err(|error| self.unreachable(error.to_string()))?;
        let response = self.connect(request)?.await.map_err(|error| self.failed(&error))?;
        let status = response.status();
        Ok((status, Body::new(response.into_body(), Duration::MAX)))
    }

    /// Connects as the server wants it, and sends the request.
    fn connect(&self, request: Request<Full<Bytes>>) -> Result<ResponseFuture, ClientError> {
        let mut client = Client::builder(TokioExecutor::new());
        client.pool_max_idle_per_host(0);
        let balancer = match self {
            Self::Socket(path) => {
                let path = path.clone();
                let connector = tower::service_fn(move |_: Uri| {
                    let path = path.clone();
                    Box::pin(async move { UnixStream::connect(path).await.map(TokioIo::new) })
                });
                return Ok(client.build(connector).request(request));
            }
            Self::Balancer(balancer) => balancer,
        };
        let mut connector = HttpConnector::new();
        match request.uri().scheme_str() {
            Some("http") => Ok(client.build(connector).request(request)),
            Some("https") => {
                connector.enforce_http(false);
                let tls = pem::client(balancer.ca.as_deref(), balancer.identity.as_ref())?;
                let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_only();
                Ok(client
                    .build(https.enable_http1().wrap_connector(connector))
                    .request(request))
            }
            _ => Err(ClientError::Url(request.uri().to_string())),
        }
    }

    async fn decode_json(&self, status: StatusCode, body: Body) -> Result<Value, ClientError> {
        let body = body.whole(MAX_ANSWER_BYTES).await.map_err(|why| self.broken(&why))?;
        let parsed = serde_json::from_slice::<Value>(&body);
        if status.is_success() {
            return parsed.map_err(|error| self.unreachable(format!("the answer is not JSON: {error}")));
        }
        let value = parsed.unwrap_or_default();
        let detail = value["detail"]
            .as_str()
            .map_or_else(|| String::from_utf8_lossy(&body).into_owned(), str::to_owned);
        Err(ClientError::Refused {
            server: self.shown(),
            status,
            // The detail is cut short, so that the other end cannot fill our log.
            detail: detail.chars().take(MAX_DETAIL_CHARS).collect(),
        })
    }

    /// Returns the error of a request that got no answer.
    fn failed(&self, error: &Error) -> ClientError {
        // The outermost text, "client error (Connect)", says nothing to an operator.
        let why = std::error::Error::source(error).map_or_else(|| error.to_string(), signalbox_sys::error_chain);
        match self {
            Self::Socket(path) if error.is_connect() => ClientError::NoSocket {
                path: path.clone(),
                why,
            },
            _ => self.unreachable(why),
        }
    }

    fn broken(&self, why: &BodyError) -> ClientError {
        self.unreachable(why.to_string())
    }

    fn unreachable(&self, why: String) -> ClientError {
        ClientError::Unreachable {
            server: self.shown(),
            why,
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Balancer(balancer) => balancer.url.clone(),
            Self::Socket(path) => path.display().to_string(),
        }
    }
}

#[cfg(test)]
mod tests;

//! Client of another signalbox's API, over HTTP or HTTPS: for agents that push, and for balancers that act together.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use signalbox_core::model::Balancer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use crate::source::pem::{self, PemError};

/// Time limit of one request, from name resolution to the end of the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Most characters of a refusal that an error repeats.
const MAX_DETAIL_CHARS: usize = 500;
/// Largest answer in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    #[error("{0:?} is not a URL such as https://balancer-1:8089")]
    Url(String),
    #[error("reading {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Pem(#[from] PemError),
    #[error("{url} does not answer: {why}")]
    Unreachable { url: String, why: String },
    #[error("{url} refuses: {status}: {detail}")]
    Refused {
        url: String,
        status: StatusCode,
        detail: String,
    },
}

/// Another balancer, by its URL and credentials.
pub struct RemoteBalancer(pub Balancer);

impl RemoteBalancer {
    /// Sends a request and returns the answer, if it is a success.
    pub async fn ask(&self, method: Method, path: &str, body: Option<String>) -> Result<Value, RemoteError> {
        self.ask_with_timeout(REQUEST_TIMEOUT, method, path, body).await
    }

    /// Sends a request as [`Self::ask`], with a time limit of its own.
    pub async fn ask_with_timeout(
        &self,
        patience: Duration,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<Value, RemoteError> {
        let exchange = async {
            let (status, mut body) = self.open(method, path, body).await?;
            let mut all = Vec::new();
            while let Some(some) = body.next().await.map_err(|why| self.unreachable(why))? {
                if all.len() + some.len() > MAX_ANSWER_BYTES {
                    return Err(self.unreachable("the answer is too long".into()));
                }
                all.extend_from_slice(&some);
            }
            Ok((status, all))
        };
        let asked = tokio::time::timeout(patience, exchange).await;
        let late = |_| self.unreachable(format!("no answer within {} s", patience.as_secs()));
        let (status, body) = asked.map_err(late)??;
        self.decode_json(status, &body)
    }

    /// Sends a request whose answer does not end: `more` gets it line by line, until it returns false. An end is an
    /// error.
    pub async fn stream_lines(
        &self,
        path: &str,
        body: String,
        mut more: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), RemoteError> {
        let (status, mut body) = self.open(Method::POST, path, Some(body)).await?;
        let mut line = Vec::new();
        while let Some(some) = body.next().await.map_err(|why| self.unreachable(why))? {
            if !status.is_success() {
                return self.decode_json(status, &some).map(drop);
            }
            for byte in some {
                if byte != b'\n' {
                    line.push(byte);
                } else if !more(&std::mem::take(&mut line)) {
                    return Ok(());
                }
            }
            if line.len() > MAX_ANSWER_BYTES {
                return Err(self.unreachable("a line is too long".into()));
            }
        }
        Err(self.unreachable("the answer has ended".into()))
    }

    fn decode_json(&self, status: StatusCode, body: &[u8]) -> Result<Value, RemoteError> {
        let parsed = serde_json::from_slice::<Value>(body);
        if status.is_success() {
            return parsed.map_err(|error| self.unreachable(format!("the answer is not JSON: {error}")));
        }
        let value = parsed.unwrap_or_default();
        let detail = value["detail"]
            .as_str()
            .map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned);
        // The detail is cut short, so that the other end cannot fill our log.
        let detail = detail.chars().take(MAX_DETAIL_CHARS).collect();
        Err(RemoteError::Refused {
            url: self.0.url.clone(),
            status,
            detail,
        })
    }

    fn unreachable(&self, why: String) -> RemoteError {
        RemoteError::Unreachable {
            url: self.0.url.clone(),
            why,
        }
    }

    async fn open(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<(StatusCode, ResponseBody), RemoteError> {
        let wrong = || RemoteError::Url(self.0.url.clone());
        let uri: Uri = self.0.url.trim_end_matches('/').parse().map_err(|_| wrong())?;
        let host = uri.host().ok_or_else(wrong)?.trim_matches(['[', ']']).to_owned();
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong()),
        };
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let authority = uri.authority().map_or_else(String::new, ToString::to_string);
        let mut request = Request::builder().method(method).uri(path).header("host", authority);
        if let Some(file) = &self.0.token_file {
            let token = read(file).await?;
            request = request.header(
                "authorization",
                format!("Bearer {}", String::from_utf8_lossy(&token).trim()),
            );
        }
        let request = request
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| self.unreachable(error.to_string()))?;
        let stream = connect(&host, port)
            .await
            .map_err(|error| self.unreachable(error.to_string()))?;
        if !secure {
            return send(stream, request).await.map_err(|why| self.unreachable(why));
        }
        let name = ServerName::try_from(host).map_err(|_| wrong())?;
        let connector = TlsConnector::from(Arc::new(pem::client(self.0.ca.as_deref(), self.0.identity.as_ref())?));
        let stream = connector
            .connect(name, stream)
            .await
            .map_err(|error| self.unreachable(format!("TLS: {error}")))?;
        send(stream, request).await.map_err(|why| self.unreachable(why))
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, RemoteError> {
    tokio::fs::read(path).await.map_err(|source| RemoteError::File {
        path: path.to_owned(),
        source,
    })
}

/// Connects to the first address that answers.
async fn connect(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("the name has no address");
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Body of an answer, with the task that drives its connection.
struct ResponseBody {
    body: Incoming,
    driver: JoinHandle<()>,
}

impl ResponseBody {
    /// Returns the next part; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, String> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(error.to_string()),
                Some(Ok(frame)) => {
                    // Trailers are ignored.
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, ResponseBody), String> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let driving = tokio::spawn(async move { drop(connection.await) });
    match sender.send_request(request).await {
        Ok(response) => {
            let status = response.status();
            let body = response.into_body();
            Ok((status, ResponseBody { body, driver: driving }))
        }
        Err(error) => {
            driving.abort();
            Err(error.to_string())
        }
    }
}

//! Another signalbox's API, over HTTP or HTTPS: for agents that push, and for balancers that act together.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use signalbox_core::model::Balancer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// For one request, from the name's look-up to the answer's end.
const PATIENCE: Duration = Duration::from_secs(30);
/// The largest answer.
const MOST_ANSWER: usize = 64 << 20;

/// Why a request came to nothing.
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
    #[error("{} holds no certificate or key that can be used: {why}", path.display())]
    Pem { path: PathBuf, why: String },
    #[error("{url} does not answer: {why}")]
    Unreachable { url: String, why: String },
    #[error("{url} refuses: {status}: {detail}")]
    Refused {
        url: String,
        status: StatusCode,
        detail: String,
    },
}

/// Another balancer.
pub struct Remote(pub Balancer);

impl Remote {
    /// Asks; the answer, if it is a good one.
    pub async fn ask(&self, method: Method, path: &str, body: Option<String>) -> Result<Value, RemoteError> {
        let unreachable = |why: String| RemoteError::Unreachable {
            url: self.0.url.clone(),
            why,
        };
        let asked = tokio::time::timeout(PATIENCE, self.exchange(method, path, body));
        let (status, body) = asked
            .await
            .map_err(|_| unreachable(format!("no answer within {} s", PATIENCE.as_secs())))??;
        let value = serde_json::from_slice(&body).unwrap_or_default();
        if status.is_success() {
            return Ok(value);
        }
        let detail = value["detail"]
            .as_str()
            .map_or_else(|| String::from_utf8_lossy(&body).into_owned(), str::to_owned);
        Err(RemoteError::Refused {
            url: self.0.url.clone(),
            status,
            detail,
        })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<(StatusCode, Bytes), RemoteError> {
        let unreachable = |why: String| RemoteError::Unreachable {
            url: self.0.url.clone(),
            why,
        };
        let wrong = || RemoteError::Url(self.0.url.clone());
        let uri: Uri = self.0.url.trim_end_matches('/').parse().map_err(|_| wrong())?;
        let host = uri.host().ok_or_else(wrong)?.trim_matches(['[', ']']).to_owned();
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong()),
        };
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", format!("{host}:{port}"));
        if let Some(file) = &self.0.token_file {
            let token = read(file).await?;
            request = request.header(
                "authorization",
                format!("Bearer {}", String::from_utf8_lossy(&token).trim()),
            );
        }
        let request = request
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| unreachable(error.to_string()))?;
        let stream = connect(&host, port)
            .await
            .map_err(|error| unreachable(error.to_string()))?;
        if !secure {
            return send(stream, request).await.map_err(unreachable);
        }
        let name = ServerName::try_from(host).map_err(|_| wrong())?;
        let connector = TlsConnector::from(Arc::new(self.tls().await?));
        let stream = connector
            .connect(name, stream)
            .await
            .map_err(|error| unreachable(format!("TLS: {error}")))?;
        send(stream, request).await.map_err(unreachable)
    }

    async fn tls(&self) -> Result<ClientConfig, RemoteError> {
        let mut roots = RootCertStore::empty();
        if let Some(path) = &self.0.ca {
            for certificate in certificates(path, &read(path).await?)? {
                roots.add(certificate).map_err(|error| pem(path, &error))?;
            }
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| pem(Path::new("-"), &error))?
            .with_root_certificates(roots);
        match &self.0.identity {
            Some((certificate, key)) => {
                let chain = certificates(certificate, &read(certificate).await?)?;
                let key_der = PrivateKeyDer::from_pem_slice(&read(key).await?).map_err(|error| pem(key, &error))?;
                builder
                    .with_client_auth_cert(chain, key_der)
                    .map_err(|error| pem(certificate, &error))
            }
            None => Ok(builder.with_no_client_auth()),
        }
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, RemoteError> {
    tokio::fs::read(path).await.map_err(|source| RemoteError::File {
        path: path.to_owned(),
        source,
    })
}

fn pem(path: &Path, why: &impl ToString) -> RemoteError {
    RemoteError::Pem {
        path: path.to_owned(),
        why: why.to_string(),
    }
}

/// The certificates of a PEM file; at least one.
pub(crate) fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, RemoteError> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(text)
        .collect::<Result<_, _>>()
        .map_err(|error| pem(path, &error))?;
    if all.is_empty() {
        return Err(pem(path, &"there is none"));
    }
    Ok(all)
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

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), String> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let driving = tokio::spawn(connection);
    let outcome = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MOST_ANSWER).collect().await;
        Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
    };
    let outcome = outcome.await;
    driving.abort();
    outcome
}

//! Serves the admin API's connections. Their number is bounded and counted separately from traffic, and requests have
//! time limits. An event stream lives as long as its client reads, and counts in the same limit.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tower::ServiceExt as _;

use super::connection_limit::{ConnectionLimiter, ConnectionPermit, LimitReached};
use super::mutate::UnixPeer;
use super::tls::{AdminCertificates, TcpPeer};
use crate::state::{AdminStats, Shared};

/// Time limit for a request's head, and for the pause between two requests.
pub(super) const HEAD_TIMEOUT: Duration = Duration::from_secs(20);
/// Time that sent bytes may stay unread, or unacknowledged, by the client.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum interval of warnings about refused connections, so that they do not fill the log.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Pause after a failed accept, most likely for lack of descriptors.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Server of one of the API's two sockets.
pub(super) struct Server {
    router: Router,
    limiter: ConnectionLimiter,
    shared: Arc<Shared>,
    head_timeout: Duration,
    warned: Option<Instant>,
}

impl Server {
    pub(super) fn new(router: Router, limiter: ConnectionLimiter, shared: &Arc<Shared>) -> Self {
        Self {
            router,
            limiter,
            shared: Arc::clone(shared),
            head_timeout: HEAD_TIMEOUT,
            warned: None,
        }
    }

    /// Serves TCP, with TLS if there are certificates.
    pub(super) async fn tcp(mut self, listener: TcpListener, mut certificates: Option<AdminCertificates>) {
        loop {
            let (stream, addr) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    accept_failed(&error).await;
                    continue;
                }
            };
            let permit = match self.limiter.acquire(Some(addr.ip().to_canonical())) {
                Ok(permit) => permit,
                Err(full) => {
                    self.refuse(full, Some(addr.ip()));
                    continue;
                }
            };
            // The kernel ends a connection whose client does not read. Without this the write would wait forever.
            let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(UNREAD_TIMEOUT));
            let acceptor = certificates.as_mut().map(AdminCertificates::acceptor);
            let (router, shared, head_timeout) = (self.router.clone(), Arc::clone(&self.shared), self.head_timeout);
            tokio::spawn(async move {
                let permit = Arc::new(permit);
                let counts = &shared.admin;
                let Some(acceptor) = acceptor else {
                    let certified = false;
                    let peer = TcpPeer { addr, certified };
                    return serve(stream, router, peer, permit, head_timeout, counts).await;
                };
                match handshake(acceptor, stream).await {
                    Some(stream) => {
                        let certified = stream.get_ref().1.peer_certificates().is_some();
                        let peer = TcpPeer { addr, certified };
                        serve(stream, router, peer, permit, head_timeout, counts).await;
                    }
                    None => counts.refused.inc("tls_handshake"),
                }
            });
        }
    }

    /// Serves the unix socket.
    pub(super) async fn unix(mut self, listener: UnixListener) {
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    accept_failed(&error).await;
                    continue;
                }
            };
            let permit = match self.limiter.acquire(None) {
                Ok(permit) => permit,
                Err(full) => {
                    self.refuse(full, None);
                    continue;
                }
            };
            let (router, shared, head_timeout) = (self.router.clone(), Arc::clone(&self.shared), self.head_timeout);
            tokio::spawn(async move {
                let caller = UnixPeer::of(&stream);
                serve(stream, router, caller, Arc::new(permit), head_timeout, &shared.admin).await;
            });
        }
    }

    fn refuse(&mut self, full: LimitReached, source: Option<IpAddr>) {
        self.shared.admin.refused.inc(full.label());
        if self.warned.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
            self.warned = Some(Instant::now());
            let source = source.map_or_else(|| "the unix socket".to_owned(), |source| source.to_string());
            tracing::warn!(
                source,
                limit = full.label(),
                "The admin API refuses connections: admin.max_connections says how many there may be."
            );
        }
    }
}

async fn accept_failed(error: &std::io::Error) {
    tracing::warn!(%error, "The admin API could not accept.");
    tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
}

async fn handshake(
    acceptor: tokio_rustls::TlsAcceptor,
    stream: TcpStream,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    let done = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
    done.ok()?.ok()
}

/// Answers a connection's requests, until the connection ends or exceeds a time limit. A WebSocket keeps the permit.
async fn serve<S, I>(
    stream: S,
    router: Router,
    info: I,
    permit: Arc<ConnectionPermit>,
    head_timeout: Duration,
    counts: &AdminStats,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    I: Clone + Send + Sync + 'static,
{
    let service = router.map_request(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(info.clone()));
        request.extensions_mut().insert(Arc::clone(&permit));
        request.map(Body::new)
    });
    let outcome = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
        .with_upgrades()
        .await;
    match outcome {
        Err(error) if error.is_timeout() => counts.refused.inc("head_timeout"),
        Err(error) => tracing::debug!(%error, "A connection to the admin API ended."),
        Ok(()) => {}
    }
}

#[cfg(test)]
mod tests;

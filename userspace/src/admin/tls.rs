//! The admin API over TLS, and who proves by a certificate who it is (mTLS).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use signalbox_core::model::AdminTls;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::pem;

/// For a handshake.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that have shaken hands and wait to be served.
const AT_ONCE: usize = 64;
/// Handshakes at once, of one address.
const OF_ONE: usize = 8;
/// And of all.
const OF_ALL: usize = 512;

/// Handshakes under way, by address.
type Places = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// One of them.
struct Place(Places, IpAddr);

impl Place {
    fn take(places: &Places, source: IpAddr) -> Option<Self> {
        let mut all = places.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = all.values().sum();
        let of_one = all.entry(source).or_default();
        if *of_one >= OF_ONE || total >= OF_ALL {
            return None;
        }
        *of_one += 1;
        Some(Self(Arc::clone(places), source))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_one) = all.get_mut(&self.1) {
            *of_one -= 1;
            if *of_one == 0 {
                all.remove(&self.1);
            }
        }
    }
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub addr: SocketAddr,
    /// It has shown a certificate that `client_ca` has signed.
    pub certified: bool,
}

impl Connected<IncomingStream<'_, TcpListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self {
            addr: *stream.remote_addr(),
            certified: false,
        }
    }
}

impl Connected<IncomingStream<'_, Secured>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Secured>) -> Self {
        *stream.remote_addr()
    }
}

/// A listener whose connections have shaken hands. One that takes its time holds up nobody.
pub(super) struct Secured {
    ready: mpsc::Receiver<(TlsStream<TcpStream>, Peer)>,
    local: SocketAddr,
}

impl Secured {
    /// The files are read now, so that a mistake is known at once, and again when they have changed.
    pub(super) fn new(listener: TcpListener, tls: &AdminTls) -> anyhow::Result<Self> {
        let local = listener.local_addr()?;
        let mut files = Files::new(tls.clone())?;
        let (sender, ready) = mpsc::channel(AT_ONCE);
        let places = Places::default();
        tokio::spawn(async move {
            loop {
                let (stream, addr) = match listener.accept().await {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "The admin API could not accept.");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                };
                // Who says nothing takes a place of its own address, and of nobody else's.
                let Some(place) = Place::take(&places, addr.ip()) else {
                    continue;
                };
                let (acceptor, sender) = (files.acceptor(), sender.clone());
                tokio::spawn(async move {
                    let handshake = tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await;
                    drop(place);
                    if let Ok(Ok(stream)) = handshake {
                        let certified = stream.get_ref().1.peer_certificates().is_some();
                        let _ = sender.send((stream, Peer { addr, certified })).await;
                    }
                });
            }
        });
        Ok(Self { ready, local })
    }
}

impl Listener for Secured {
    type Io = TlsStream<TcpStream>;
    type Addr = Peer;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.ready.recv().await {
            Some(connection) => connection,
            // The runtime is ending.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        Ok(Peer {
            addr: self.local,
            certified: false,
        })
    }
}

/// Certificate, key and authorities, as of when.
struct Files {
    tls: AdminTls,
    changed: Vec<Option<SystemTime>>,
    acceptor: TlsAcceptor,
}

impl Files {
    fn new(tls: AdminTls) -> anyhow::Result<Self> {
        Ok(Self {
            changed: changed(&tls),
            acceptor: load(&tls)?,
            tls,
        })
    }

    /// What the files say now; what they said last, if they cannot be used.
    fn acceptor(&mut self) -> TlsAcceptor {
        let now = changed(&self.tls);
        if now != self.changed {
            self.changed = now;
            match load(&self.tls) {
                Ok(acceptor) => self.acceptor = acceptor,
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::error!(
                        error,
                        "The admin API's new certificate cannot be used; the one in force stays."
                    );
                }
            }
        }
        self.acceptor.clone()
    }
}

fn changed(tls: &AdminTls) -> Vec<Option<SystemTime>> {
    let modified = |path: &PathBuf| std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
    [Some(&tls.cert), Some(&tls.key), tls.client_ca.as_ref()]
        .into_iter()
        .flatten()
        .map(modified)
        .collect()
}

fn load(tls: &AdminTls) -> anyhow::Result<TlsAcceptor> {
    let (chain, key) = (pem::certificates(&tls.cert)?, pem::key(&tls.key)?);
    let builder = ServerConfig::builder_with_provider(pem::provider()).with_safe_default_protocol_versions()?;
    let builder = match &tls.client_ca {
        Some(path) => {
            // Whoever has none may still look.
            let roots = Arc::new(pem::authorities(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, pem::provider())
                .allow_unauthenticated()
                .build()?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    Ok(TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key)?)))
}

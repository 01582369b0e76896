//! The admin API over TLS, and client certificates (mTLS).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use signalbox_core::model::AdminTls;
use signalbox_tls::provider::provider;
use tokio_rustls::TlsAcceptor;

use crate::source::pem;

/// Peer of a TLS connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct TcpPeer {
    pub addr: SocketAddr,
    /// True if the peer has shown a certificate signed by `client_ca`.
    pub certified: bool,
}

/// Certificate, key and authorities, with the time at which they were read.
pub(super) struct AdminCertificates {
    tls: AdminTls,
    modified: Vec<Option<SystemTime>>,
    acceptor: TlsAcceptor,
}

impl AdminCertificates {
    /// Reads the files, so that an error is reported at the start. They are read again when they have changed.
    pub(super) fn new(tls: AdminTls) -> anyhow::Result<Self> {
        Ok(Self {
            modified: modified_times(&tls),
            acceptor: load(&tls)?,
            tls,
        })
    }

    /// Returns an acceptor with the current files, or with the last good ones if those are unusable.
    pub(super) fn acceptor(&mut self) -> TlsAcceptor {
        let now = modified_times(&self.tls);
        if now != self.modified {
            self.modified = now;
            match load(&self.tls) {
                Ok(acceptor) => self.acceptor = acceptor,
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::error!(
                        error,
                        "The admin API's new certificate cannot be used; the current one stays active."
                    );
                }
            }
        }
        self.acceptor.clone()
    }
}

fn modified_times(tls: &AdminTls) -> Vec<Option<SystemTime>> {
    let modified = |path: &PathBuf| std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
    [Some(&tls.cert), Some(&tls.key), tls.client_ca.as_ref()]
        .into_iter()
        .flatten()
        .map(modified)
        .collect()
}

fn load(tls: &AdminTls) -> anyhow::Result<TlsAcceptor> {
    let (chain, key) = (pem::certificates(&tls.cert)?, pem::key(&tls.key)?);
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match &tls.client_ca {
        Some(path) => {
            // A client certificate is optional: a client without one may read.
            let roots = Arc::new(pem::authorities(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                .allow_unauthenticated()
                .build()?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    Ok(TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key)?)))
}

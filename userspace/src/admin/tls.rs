//! The admin API over TLS, and who proves by a certificate who it is (mTLS).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use signalbox_core::model::AdminTls;
use tokio_rustls::TlsAcceptor;

use crate::pem;

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub addr: SocketAddr,
    /// It has shown a certificate that `client_ca` has signed.
    pub certified: bool,
}

/// Certificate, key and authorities, as of when.
pub(super) struct Certificates {
    tls: AdminTls,
    changed: Vec<Option<SystemTime>>,
    acceptor: TlsAcceptor,
}

impl Certificates {
    /// The files are read now, so that a mistake is known at once, and again when they have changed.
    pub(super) fn new(tls: AdminTls) -> anyhow::Result<Self> {
        Ok(Self {
            changed: changed(&tls),
            acceptor: load(&tls)?,
            tls,
        })
    }

    /// What the files say now; what they said last, if they cannot be used.
    pub(super) fn acceptor(&mut self) -> TlsAcceptor {
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

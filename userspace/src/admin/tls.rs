//! The admin API over TLS, and client certificates (mTLS).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::{Error, ServerConfig};
use signalbox_core::model::AdminTls;
use signalbox_tls::host_fault::is_version_1;
use signalbox_tls::provider::provider;
use signalbox_tls::server::client_verifier;
use tokio_rustls::TlsAcceptor;

use crate::control::store::FileProblem;
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
            acceptor: load(&tls).map_err(|problem| anyhow::anyhow!("{}: {}", problem.key, problem.message))?,
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
                Err(problem) => {
                    tracing::error!(
                        key = problem.key,
                        error = problem.message,
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

/// Returns what is wrong with the files of the admin API's TLS at this moment.
#[must_use]
pub fn problem(tls: &AdminTls) -> Option<FileProblem> {
    load(tls).err()
}

fn load(tls: &AdminTls) -> Result<TlsAcceptor, FileProblem> {
    let of = |key: &str| {
        let key = format!("admin.tls{key}");
        move |error: &dyn std::fmt::Display| FileProblem::new(key.clone(), error)
    };
    let chain = pem::certificates(&tls.cert).map_err(|error| of(".cert")(&error))?;
    let key = pem::key(&tls.key).map_err(|error| of(".key")(&error))?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| of("")(&error))?;
    let builder = match &tls.client_ca {
        Some(path) => {
            // A client certificate is optional: a client without one may read.
            let verifier = client_verifier(path, true, provider());
            builder.with_client_cert_verifier(verifier.map_err(|error| of(".client_ca")(&error))?)
        }
        None => builder.with_no_client_auth(),
    };
    let config = builder.with_single_cert(chain, key);
    let config = config.map_err(|error| unusable(tls, &error))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Problem with a certificate and its key, of which both files can be read.
fn unusable(tls: &AdminTls, error: &Error) -> FileProblem {
    let (cert, key) = (tls.cert.display(), tls.key.display());
    match error {
        Error::InvalidCertificate(fault) if is_version_1(fault) => FileProblem::new(
            "admin.tls.cert",
            format!(
                "{cert} is of X.509 version 1, which the admin API cannot show: make one of version 3, as `openssl \
                 x509 -req` does with `-extfile`"
            ),
        ),
        Error::InvalidCertificate(_) => FileProblem::new("admin.tls.cert", format!("{cert} cannot be used: {error}")),
        Error::InconsistentKeys(_) => FileProblem::new(
            "admin.tls.key",
            format!("{key} is not the private key of {cert}: name the key that belongs to the certificate"),
        ),
        other => FileProblem::new("admin.tls.key", format!("{key} cannot be used: {other}")),
    }
}

//! Certificates, keys and certificate authorities from PEM files, for TLS.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use signalbox_tls::client::host_verifier;

/// Error of a PEM file: which file, and why it cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("reading {}: {why}", path.display())]
pub struct PemError {
    path: PathBuf,
    why: String,
}

fn pem_error(path: &Path, why: impl Display) -> PemError {
    PemError {
        path: path.to_owned(),
        why: why.to_string(),
    }
}

/// Reads the certificates of a file; at least one.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let all = CertificateDer::pem_file_iter(path).map_err(|error| pem_error(path, error))?;
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(|error| pem_error(path, error))?;
    if all.is_empty() {
        return Err(pem_error(path, "there is no certificate in it"));
    }
    Ok(all)
}

/// Reads the private key of a file.
pub fn key(path: &Path) -> Result<PrivateKeyDer<'static>, PemError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| pem_error(path, error))
}

/// Returns the TLS configuration of a client: trusts servers signed by the authorities `ca`, or none without; shows
/// certificate and key `identity`.
pub fn client(ca: Option<&Path>, identity: Option<&(PathBuf, PathBuf)>) -> Result<ClientConfig, PemError> {
    let builder = ClientConfig::builder_with_provider(signalbox_tls::provider::provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| pem_error(Path::new("-"), error))?;
    let builder = match ca {
        Some(ca) => {
            let verifier = host_verifier(ca).map_err(|error| pem_error(ca, error))?;
            builder.dangerous().with_custom_certificate_verifier(verifier)
        }
        None => builder.with_root_certificates(RootCertStore::empty()),
    };
    let Some((certificate, private)) = identity else {
        return Ok(builder.with_no_client_auth());
    };
    builder
        .with_client_auth_cert(certificates(certificate)?, key(private)?)
        .map_err(|error| pem_error(certificate, error))
}

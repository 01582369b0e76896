//! TLS to hosts: which of them are trusted, and the certificate that signalbox shows them.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use signalbox_core::model::tls::{BackendTls, HttpVersion};
use signalbox_core::wire::hostname::Hostname;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

use crate::certificate::{Certificate, CertificateError, CertificateSource};
use crate::given::GivenCertificates;
use crate::provider::provider;
use crate::roots::Authorities;
use crate::stream::TlsStream;
use crate::verifiers::HostVerifier;

/// Error of the TLS to a cluster's hosts.
#[derive(Debug, thiserror::Error)]
pub enum BackendTlsError {
    /// The file of authorities cannot be used.
    #[error("authorities of hosts: {}: {why}", path.display())]
    Ca {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        why: String,
    },
    /// The system has no authorities.
    #[error(
        "the system has no certificate authorities ({0}): install ca-certificates, or give `ca` or `verify: false`"
    )]
    NoSystemRoots(String),
    /// A file of the certificate that signalbox shows cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        #[source]
        source: std::io::Error,
    },
    /// The certificate that signalbox shows cannot be used.
    #[error(transparent)]
    Identity(#[from] CertificateError),
    /// The library refuses the combination.
    #[error("TLS to hosts: {0}")]
    Refused(String),
}

/// Configuration of handshakes with the hosts of a cluster.
#[derive(Clone, Debug)]
pub struct HostConfig {
    configured: Arc<ClientConfig>,
    /// Configuration that offers HTTP/1.1 alone.
    http1: Arc<ClientConfig>,
    offers_http2: bool,
}

impl HostConfig {
    /// Whether hosts are offered HTTP/2.
    #[must_use]
    pub const fn offers_http2(&self) -> bool {
        self.offers_http2
    }
}

/// Name that a host is asked for (SNI), or its address, which its certificate must have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostIdentity(ServerName<'static>);

impl HostIdentity {
    /// Identity by name, or by address where there is no name.
    #[must_use]
    pub fn new(name: Option<&Hostname>, address: IpAddr) -> Self {
        let named = name.and_then(|name| ServerName::try_from(name.as_str().to_owned()).ok());
        Self(named.unwrap_or_else(|| ServerName::from(address)))
    }
}

/// Shakes hands with a host. `may_be_http2`: it is offered what is configured, and HTTP/1.1 alone otherwise.
///
/// # Errors
///
/// If the connection ends, or the handshake fails ([`is_tls_error`]).
pub async fn connect(
    config: &HostConfig,
    host: HostIdentity,
    stream: TcpStream,
    may_be_http2: bool,
) -> io::Result<TlsStream> {
    let chosen = if may_be_http2 {
        &config.configured
    } else {
        &config.http1
    };
    let connector = TlsConnector::from(Arc::clone(chosen));
    connector.connect(host.0, stream).await.map(TlsStream::new)
}

/// Whether an error is of TLS: of the certificate, the name or the versions.
#[must_use]
pub fn is_tls_error(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    inner.is_some()
}

/// Makes the verifier of hosts' certificates by the authorities of a file.
///
/// # Errors
///
/// If the file cannot be used.
pub fn host_verifier(ca: &Path) -> Result<Arc<dyn ServerCertVerifier>, BackendTlsError> {
    let read = Authorities::of_file(ca);
    let mut authorities = read.map_err(|why| BackendTlsError::Ca {
        path: ca.to_owned(),
        why,
    })?;
    verifier(authorities.anchors(), authorities.given)
}

fn verifier(roots: RootCertStore, given: GivenCertificates) -> Result<Arc<dyn ServerCertVerifier>, BackendTlsError> {
    let authorities = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
    let authorities = authorities.map_err(|error| BackendTlsError::Refused(error.to_string()))?;
    Ok(Arc::new(HostVerifier::new(authorities, given)))
}

/// Builds the configuration of handshakes with the hosts of a cluster.
///
/// # Errors
///
/// If a file that the settings name cannot be used, or the system has no authorities where these are asked for.
pub fn backend_config(settings: &BackendTls) -> Result<HostConfig, BackendTlsError> {
    let refused = |error: &dyn std::fmt::Display| BackendTlsError::Refused(error.to_string());
    let verifier: Arc<dyn ServerCertVerifier> = match &settings.ca {
        _ if !settings.is_verified => Arc::new(AnyCertificate),
        Some(ca) => host_verifier(ca)?,
        None => verifier(system_roots()?, GivenCertificates::new(Vec::new()))?,
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(&error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match &settings.identity {
        Some((cert, key)) => {
            let identity = identity(cert, key)?;
            let shown = SingleCertAndKey::from(Arc::clone(identity.key()));
            builder.with_client_cert_resolver(Arc::new(shown))
        }
        None => builder.with_no_client_auth(),
    };
    let mut http1 = config.clone();
    http1.alpn_protocols = vec![HttpVersion::Http11.as_str().into()];
    config.alpn_protocols = settings.alpn.iter().map(|version| version.as_str().into()).collect();
    Ok(HostConfig {
        configured: Arc::new(config),
        http1: Arc::new(http1),
        offers_http2: settings.alpn.contains(&HttpVersion::Http2),
    })
}

/// Reads a certificate to be shown, and its key.
pub(crate) fn identity(cert: &Path, key: &Path) -> Result<Certificate, BackendTlsError> {
    let read = |path: &Path| {
        let text = std::fs::read(path).map_err(|source| BackendTlsError::Read {
            path: path.to_owned(),
            source,
        });
        text.map(Zeroizing::new)
    };
    Ok(Certificate::load(&CertificateSource {
        label: cert.display().to_string(),
        names: Vec::new(),
        chain: read(cert)?,
        key: read(key)?,
        pass_phrase: None,
        is_default: true,
    })?)
}

/// Reads the certificate authorities of the system.
///
/// # Errors
///
/// If there is none.
pub fn system_roots() -> Result<RootCertStore, BackendTlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let why = found
            .errors
            .first()
            .map_or_else(|| "none was found".to_owned(), ToString::to_string);
        return Err(BackendTlsError::NoSystemRoots(why));
    }
    Ok(roots)
}

/// Verifier that accepts any certificate: for health checks, which are not about identity, and for clusters with
/// `verify: false`.
#[derive(Debug)]
pub struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

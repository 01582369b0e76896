//! Mutual TLS between nodes: each has a certificate for its name in `ha.nodes`.
//!
//! The files are read for each handshake: certificates are replaced under a running program.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, ServerConfig};
use signalbox_core::model::ha::HaSync;
use signalbox_tls::provider::provider;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::source::pem::{self, PemError};

/// Reason why there is no TLS with another node.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsError {
    #[error(transparent)]
    Pem(#[from] PemError),
    #[error("ha.sync: {0}")]
    Settings(String),
    #[error("{0} is no name that a certificate can be for: ha.nodes needs names as in DNS")]
    Name(String),
    #[error("the TLS handshake has failed: {0}")]
    Handshake(std::io::Error),
    #[error("the peer's certificate is not for {node}: {why}")]
    OtherNode { node: String, why: String },
}

fn settings(error: &impl ToString) -> TlsError {
    TlsError::Settings(error.to_string())
}

fn server_name(node: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(node.to_owned()).map_err(|_| TlsError::Name(node.to_owned()))
}

/// Begins TLS with the node `peer`, which is to have a certificate for that name.
pub(super) async fn connect(
    sync: &HaSync,
    peer: &str,
    socket: TcpStream,
) -> Result<client::TlsStream<TcpStream>, TlsError> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| settings(&error))?
        .with_root_certificates(pem::authorities(&sync.ca)?)
        .with_client_auth_cert(pem::certificates(&sync.cert)?, pem::key(&sync.key)?)
        .map_err(|error| settings(&error))?;
    let connector = TlsConnector::from(Arc::new(config));
    let connecting = connector.connect(server_name(peer)?, socket);
    connecting.await.map_err(TlsError::Handshake)
}

/// Makes the configuration of handshakes that other nodes begin: each has to show a certificate.
pub(super) fn acceptor(sync: &HaSync) -> Result<TlsAcceptor, TlsError> {
    let roots = Arc::new(pem::authorities(&sync.ca)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
        .build()
        .map_err(|error| settings(&error))?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| settings(&error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(pem::certificates(&sync.cert)?, pem::key(&sync.key)?)
        .map_err(|error| settings(&error))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Checks that the certificate that a peer has shown is for the name that it gives itself.
pub(super) fn check_name(stream: &server::TlsStream<TcpStream>, node: &str) -> Result<(), TlsError> {
    let other = |why: String| TlsError::OtherNode {
        node: node.to_owned(),
        why,
    };
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let shown = shown.ok_or_else(|| other("it has shown none".to_owned()))?;
    let parsed = ParsedCertificate::try_from(shown).map_err(|error| other(error.to_string()))?;
    let name = server_name(node)?;
    rustls::client::verify_server_name(&parsed, &name).map_err(|error| other(error.to_string()))
}

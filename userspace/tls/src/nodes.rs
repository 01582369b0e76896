//! Mutual TLS between the nodes of a set: each has a certificate for its name.
//!
//! The files are read for each handshake: certificates are replaced under a running program.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::client::{self, BackendTlsError};
use crate::provider::provider;
use crate::roots::Authorities;
use crate::stream::TlsStream;

/// Files of a node.
#[derive(Clone, Debug)]
pub struct NodeFiles {
    /// PEM file with the node's certificate, for its name.
    pub cert: PathBuf,
    /// PEM file with the certificate's key.
    pub key: PathBuf,
    /// PEM file with the authorities that have signed the nodes' certificates.
    pub ca: PathBuf,
}

/// Reason why there is no TLS with another node.
#[derive(Debug, thiserror::Error)]
pub enum NodeTlsError {
    /// The file of authorities cannot be used.
    #[error("authorities of nodes: {}: {why}", path.display())]
    Ca {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        why: String,
    },
    /// The node's own certificate or key cannot be used.
    #[error(transparent)]
    Identity(#[from] BackendTlsError),
    /// The library refuses the combination.
    #[error("TLS between nodes: {0}")]
    Refused(String),
    /// No certificate can be for the name of a node.
    #[error("{0} is no name that a certificate can be for: nodes need names as in DNS")]
    Name(String),
    /// The handshake has failed: the peer is no node, or its certificate is not good.
    #[error("the TLS handshake has failed: {0}")]
    Handshake(io::Error),
    /// The peer's certificate is another node's.
    #[error("the peer's certificate is not for {node}: {why}")]
    OtherNode {
        /// Name that the peer gives itself.
        node: String,
        /// Reason.
        why: String,
    },
}

fn refused(error: &impl ToString) -> NodeTlsError {
    NodeTlsError::Refused(error.to_string())
}

impl NodeFiles {
    fn roots(&self) -> Result<rustls::RootCertStore, NodeTlsError> {
        let authorities = Authorities::of_file(&self.ca).map_err(|why| NodeTlsError::Ca {
            path: self.ca.clone(),
            why,
        })?;
        Ok(authorities.roots)
    }

    fn identity(&self) -> Result<Arc<SingleCertAndKey>, NodeTlsError> {
        let identity = client::identity(&self.cert, &self.key)?;
        Ok(Arc::new(SingleCertAndKey::from(Arc::clone(identity.key()))))
    }

    /// Begins TLS with the node `peer`, which is to have a certificate for that name.
    ///
    /// # Errors
    ///
    /// If a file cannot be used, or the handshake fails.
    pub async fn connect(&self, peer: &str, socket: TcpStream) -> Result<TlsStream, NodeTlsError> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| refused(&error))?
            .with_root_certificates(self.roots()?)
            .with_client_cert_resolver(self.identity()?);
        let connecting = TlsConnector::from(Arc::new(config)).connect(server_name(peer)?, socket);
        connecting.await.map(TlsStream::new).map_err(NodeTlsError::Handshake)
    }

    /// Shakes hands with another node, which has to show a certificate of the set's authorities.
    ///
    /// # Errors
    ///
    /// If a file cannot be used, or the handshake fails.
    pub async fn accept(&self, socket: TcpStream) -> Result<TlsStream, NodeTlsError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()?), provider())
            .build()
            .map_err(|error| refused(&error))?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| refused(&error))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(self.identity()?);
        let accepting = TlsAcceptor::from(Arc::new(config)).accept(socket);
        accepting.await.map(TlsStream::new).map_err(NodeTlsError::Handshake)
    }
}

/// Checks that the certificate that a peer has shown is for the name that it gives itself.
///
/// # Errors
///
/// If it is not.
pub fn check_name(stream: &TlsStream, node: &str) -> Result<(), NodeTlsError> {
    let other = |why: String| NodeTlsError::OtherNode {
        node: node.to_owned(),
        why,
    };
    let shown = stream
        .peer_certificate()
        .ok_or_else(|| other("it has shown none".to_owned()))?;
    let parsed = ParsedCertificate::try_from(shown).map_err(|error| other(error.to_string()))?;
    let name = server_name(node)?;
    rustls::client::verify_server_name(&parsed, &name).map_err(|error| other(error.to_string()))
}

fn server_name(node: &str) -> Result<ServerName<'static>, NodeTlsError> {
    ServerName::try_from(node.to_owned()).map_err(|_| NodeTlsError::Name(node.to_owned()))
}

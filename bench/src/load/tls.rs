//! The client side of TLS: a full handshake each time, with a host or balancer whose certificate is the lab's.

use std::sync::Arc;

use anyhow::Result;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};

use super::tickets::Tickets;

/// TLS client for one server name.
#[derive(Clone)]
pub(crate) struct Client {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    /// Whether connections resume sessions, as far as there are tickets.
    pub(super) resumes: bool,
}

impl Client {
    /// A client that accepts only this certificate: an answer then comes from one of the bench's hosts.
    pub(crate) fn new(name: &str, certificate: CertificateDer<'static>, resumes: bool) -> Result<Self> {
        // X25519 alone: the peers of a comparison have no post-quantum group.
        let provider = CryptoProvider {
            kx_groups: vec![aws_lc_rs::kx_group::X25519],
            ..aws_lc_rs::default_provider()
        };
        let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned(certificate)))
            .with_no_client_auth();
        config.resumption = if resumes {
            Resumption::store(Arc::new(Tickets::default()))
        } else {
            Resumption::disabled()
        };
        Ok(Self {
            config: Arc::new(config),
            name: ServerName::try_from(name.to_owned())?,
            resumes,
        })
    }

    /// The client, with HTTP/2 as its one protocol.
    pub(super) fn http2(mut self) -> Self {
        Arc::make_mut(&mut self.config).alpn_protocols = vec![b"h2".to_vec()];
        self
    }

    /// TLS state of a new connection.
    pub(super) fn connection(&self) -> Result<ClientConnection, Error> {
        ClientConnection::new(self.config.clone(), self.name.clone())
    }
}

/// Verifier that compares certificates and does not check signatures: checks are expensive, and the client's CPU time
/// is missing where the balancer is measured.
#[derive(Debug)]
struct Pinned(CertificateDer<'static>);

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if *end_entity == self.0 {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::General("not the hosts' certificate".into()))
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("not TLS 1.3".into()))
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::RSA_PSS_SHA256]
    }
}

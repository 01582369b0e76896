//! Verifiers of the certificates that hosts and clients show: webpki's, except for [certificates that are trusted
//! without it](crate::given).

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::given::{CLIENT_PURPOSE, GivenCertificates, SERVER_PURPOSE};

/// Verifier of hosts' certificates.
pub(crate) struct HostVerifier {
    authorities: Arc<WebPkiServerVerifier>,
    given: GivenCertificates,
}

impl std::fmt::Debug for HostVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostVerifier").finish_non_exhaustive()
    }
}

impl HostVerifier {
    pub(crate) const fn new(authorities: Arc<WebPkiServerVerifier>, given: GivenCertificates) -> Self {
        Self { authorities, given }
    }
}

impl ServerCertVerifier for HostVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(link) = self.given.trusted(certificate) else {
            return self
                .authorities
                .verify_server_cert(certificate, intermediates, name, ocsp_response, now);
        };
        link.verify_use(SERVER_PURPOSE, now)?;
        link.verify_name(name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self.given.trusted(certificate) {
            Some(link) => link.verify_tls12_signature(message, signed),
            None => self.authorities.verify_tls12_signature(message, certificate, signed),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self.given.trusted(certificate) {
            Some(link) => link.verify_tls13_signature(message, signed),
            None => self.authorities.verify_tls13_signature(message, certificate, signed),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

/// Verifier of clients' certificates.
pub(crate) struct ClientVerifier {
    authorities: Arc<dyn ClientCertVerifier>,
    given: GivenCertificates,
}

impl std::fmt::Debug for ClientVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientVerifier").finish_non_exhaustive()
    }
}

impl ClientVerifier {
    pub(crate) const fn new(authorities: Arc<dyn ClientCertVerifier>, given: GivenCertificates) -> Self {
        Self { authorities, given }
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.authorities.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.authorities.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let Some(link) = self.given.trusted(certificate) else {
            return self.authorities.verify_client_cert(certificate, intermediates, now);
        };
        link.verify_use(CLIENT_PURPOSE, now)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self.given.trusted(certificate) {
            Some(link) => link.verify_tls12_signature(message, signed),
            None => self.authorities.verify_tls12_signature(message, certificate, signed),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self.given.trusted(certificate) {
            Some(link) => link.verify_tls13_signature(message, signed),
            None => self.authorities.verify_tls13_signature(message, certificate, signed),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

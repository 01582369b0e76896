//! Verification of hosts' certificates: by authorities, or by a certificate that is itself given as one of them.
//!
//! HAProxy's `ca-file` takes a host's own certificate, whatever it says of its uses. Webpki refuses it where it is an
//! authority's (`basicConstraints CA:TRUE`, as `openssl req -x509` makes it), of X.509 version 1, or has no name but
//! its common name. Nobody but the key's owner can show it, so all that is left to check are name, time and purpose.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::verify_tls13_signature_with_raw_key;
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, PeerMisbehaved, SignatureScheme};
use signalbox_core::hostname::{Hostname, WildcardDepth};
use x509_cert::der::asn1::{AnyRef, ObjectIdentifier};
use x509_cert::der::{Decode as _, Encode as _};
use x509_cert::ext::pkix::{ExtendedKeyUsage, SubjectAltName};

use crate::chain::Link;
use crate::provider::provider;

/// Purposes that allow a server: `id-kp-serverAuth`, `anyExtendedKeyUsage`.
const SERVER_PURPOSES: [ObjectIdentifier; 2] = [
    ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.1"),
    ObjectIdentifier::new_unwrap("2.5.29.37.0"),
];

/// Verifier of hosts' certificates.
pub(crate) struct HostVerifier {
    authorities: Arc<WebPkiServerVerifier>,
    /// Certificates that are trusted themselves.
    given: Vec<Link>,
}

impl std::fmt::Debug for HostVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostVerifier").finish_non_exhaustive()
    }
}

impl HostVerifier {
    pub(crate) fn new(authorities: Arc<WebPkiServerVerifier>, given: Vec<CertificateDer<'static>>) -> Self {
        let given = given.into_iter().filter_map(Link::parse).collect();
        Self { authorities, given }
    }

    fn given(&self, certificate: &CertificateDer<'_>) -> Option<&Link> {
        self.given.iter().find(|link| link.der() == certificate)
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
        match self.given(certificate) {
            Some(given) => given.verify(name, now).map(|()| ServerCertVerified::assertion()),
            None => self
                .authorities
                .verify_server_cert(certificate, intermediates, name, ocsp_response, now),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self.given(certificate) {
            Some(given) => given.verify_tls12_signature(message, signed),
            None => self.authorities.verify_tls12_signature(message, certificate, signed),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let Some(given) = self.given(certificate) else {
            return self.authorities.verify_tls13_signature(message, certificate, signed);
        };
        let key = SubjectPublicKeyInfoDer::from(given.public_key()?);
        let algorithms = provider().signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signed, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

impl Link {
    /// Checks the time, the purpose and the name of a certificate that is trusted itself.
    fn verify(&self, name: &ServerName<'_>, now: UnixTime) -> Result<(), Error> {
        let (not_before, not_after) = self.validity();
        if now.as_secs() < not_before {
            let not_before = unix_time(not_before);
            return Err(CertificateError::NotValidYetContext { time: now, not_before }.into());
        }
        if now.as_secs() > not_after {
            let not_after = unix_time(not_after);
            return Err(CertificateError::ExpiredContext { time: now, not_after }.into());
        }
        let certificate = self.parsed.tbs_certificate();
        let is_server = match certificate.get_extension::<ExtendedKeyUsage>() {
            Ok(Some((_, purposes))) => purposes.0.iter().any(|purpose| SERVER_PURPOSES.contains(purpose)),
            Ok(None) => true,
            Err(_) => false,
        };
        if !is_server {
            return Err(CertificateError::InvalidPurpose.into());
        }
        match certificate.get_extension::<SubjectAltName>() {
            Ok(None) => self.verify_common_name(name),
            _ => verify_server_name(&ParsedCertificate::try_from(self.der())?, name),
        }
    }

    fn verify_common_name(&self, name: &ServerName<'_>) -> Result<(), Error> {
        let own = self.names(&mut Vec::new());
        let asked = Hostname::parse(name.to_str().as_bytes()).ok();
        if asked.is_some_and(|asked| own.iter().any(|own| own.matches(&asked, WildcardDepth::One))) {
            return Ok(());
        }
        Err(CertificateError::NotValidForNameContext {
            expected: name.to_owned(),
            presented: own.iter().map(ToString::to_string).collect(),
        }
        .into())
    }

    /// Public key as it stands in the certificate: algorithm and bits, in DER.
    fn public_key(&self) -> Result<Vec<u8>, Error> {
        let key = self.parsed.tbs_certificate().subject_public_key_info().to_der();
        key.map_err(|_| CertificateError::BadEncoding.into())
    }

    /// Checks a handshake's signature as webpki does, which does not read certificates of version 1: TLS 1.2 leaves
    /// open which of several algorithms a scheme stands for.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = provider().signature_verification_algorithms;
        let (_, candidates) = algorithms
            .mapping
            .iter()
            .find(|(scheme, _)| *scheme == signed.scheme)
            .ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
        let key = self.parsed.tbs_certificate().subject_public_key_info();
        let algorithm = key.algorithm.to_der().map_err(|_| CertificateError::BadEncoding)?;
        // The sequence's content, as the candidates have it.
        let algorithm = AnyRef::from_der(&algorithm).map_err(|_| CertificateError::BadEncoding)?;
        let bits = key.subject_public_key.as_bytes().ok_or(CertificateError::BadEncoding)?;
        let is_signed = candidates
            .iter()
            .filter(|candidate| candidate.public_key_alg_id().as_ref() == algorithm.value())
            .any(|candidate| candidate.verify_signature(bits, message, signed.signature()).is_ok());
        if is_signed {
            Ok(HandshakeSignatureValid::assertion())
        } else {
            Err(CertificateError::BadSignature.into())
        }
    }
}

fn unix_time(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests;

//! Certificates that are trusted without webpki's path: those that are themselves in the file of authorities, and those
//! of X.509 version 1 that one of them has signed.
//!
//! HAProxy's `ca-file` and `verify` take both. Webpki refuses a certificate of the file where it is an authority's
//! (`basicConstraints CA:TRUE`, as `openssl req -x509` makes it) or has no name except its common name, and reads no
//! certificate of version 1 (as `openssl x509 -req` makes it without extensions) at all. Nobody except the key's owner
//! can show one, so all that is left to check are signature, name, time and purpose. Version 1 has no constraints: it
//! never signs another certificate here.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::crypto::verify_tls13_signature_with_raw_key;
use rustls::pki_types::{
    CertificateDer, ServerName, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, PeerMisbehaved};
use signalbox_core::wire::hostname::{Hostname, WildcardDepth};
use x509_cert::Version;
use x509_cert::der::asn1::{AnyRef, ObjectIdentifier};
use x509_cert::der::{Decode as _, Encode};
use x509_cert::ext::pkix::{BasicConstraints, ExtendedKeyUsage, KeyUsage, NameConstraints, SubjectAltName};

use crate::chain::Link;
use crate::provider::provider;

/// Purpose that allows any use: `anyExtendedKeyUsage`.
const ANY_PURPOSE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.37.0");
/// Purpose of a server: `id-kp-serverAuth`.
pub(crate) const SERVER_PURPOSE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.1");
/// Purpose of a client: `id-kp-clientAuth`.
pub(crate) const CLIENT_PURPOSE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.2");

/// Certificates of a file of authorities.
pub(crate) struct GivenCertificates(Vec<Link>);

impl GivenCertificates {
    pub(crate) const fn new(certificates: Vec<Link>) -> Self {
        Self(certificates)
    }

    /// Returns the certificate if it is trusted without webpki's path.
    pub(crate) fn trusted(&self, certificate: &CertificateDer<'_>) -> Option<Link> {
        let is_given = self.0.iter().any(|link| link.der() == certificate);
        if !is_given && ParsedCertificate::try_from(certificate).is_ok() {
            return None;
        }
        let link = Link::parse(certificate.clone().into_owned())?;
        let is_signed = || link.is_version_1() && self.0.iter().any(|authority| authority.has_signed(&link));
        (is_given || is_signed()).then_some(link)
    }
}

impl Link {
    fn is_version_1(&self) -> bool {
        self.parsed.tbs_certificate().version() == Version::V1
    }

    /// Whether this authority has signed the certificate.
    fn has_signed(&self, certificate: &Self) -> bool {
        let (authority, signed) = (self.parsed.tbs_certificate(), certificate.parsed.tbs_certificate());
        // A common name is in no form that name constraints could be compared with.
        let is_unconstrained = matches!(authority.get_extension::<NameConstraints>(), Ok(None));
        if authority.subject() != signed.issuer() || !self.is_authority() || !is_unconstrained {
            return false;
        }
        let (Ok(message), Ok(scheme)) = (signed.to_der(), content(certificate.parsed.signature_algorithm())) else {
            return false;
        };
        let Some(signature) = certificate.parsed.signature().as_bytes() else {
            return false;
        };
        let algorithms = provider().signature_verification_algorithms.all;
        let candidates = algorithms
            .iter()
            .filter(|algorithm| algorithm.signature_alg_id().as_ref() == scheme);
        self.verifies(candidates.copied(), &message, signature).unwrap_or(false)
    }

    /// Whether the certificate may sign others (RFC 5280, section 6.1.4): it says so, or is self-signed and of version 1,
    /// which cannot.
    pub(crate) fn is_authority(&self) -> bool {
        let certificate = self.parsed.tbs_certificate();
        if self.is_version_1() {
            return certificate.subject() == certificate.issuer();
        }
        let is_authority = matches!(certificate.get_extension::<BasicConstraints>(), Ok(Some((_, basic))) if basic.ca);
        let signs = match certificate.get_extension::<KeyUsage>() {
            Ok(Some((_, usage))) => usage.key_cert_sign(),
            Ok(None) => true,
            Err(_) => false,
        };
        is_authority && signs
    }

    /// Checks the time and the purpose of a certificate that is trusted without webpki.
    pub(crate) fn verify_use(&self, purpose: ObjectIdentifier, now: UnixTime) -> Result<(), Error> {
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
        let has_purpose = match certificate.get_extension::<ExtendedKeyUsage>() {
            Ok(Some((_, purposes))) => purposes.0.iter().any(|has| [purpose, ANY_PURPOSE].contains(has)),
            Ok(None) => true,
            Err(_) => false,
        };
        if has_purpose {
            Ok(())
        } else {
            Err(CertificateError::InvalidPurpose.into())
        }
    }

    pub(crate) fn verify_name(&self, name: &ServerName<'_>) -> Result<(), Error> {
        match self.parsed.tbs_certificate().get_extension::<SubjectAltName>() {
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

    /// Checks a handshake's signature in TLS 1.3, whose schemes name the algorithm.
    pub(crate) fn verify_tls13_signature(
        &self,
        message: &[u8],
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(self.public_key()?);
        let algorithms = provider().signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signed, &algorithms)
    }

    /// Checks a handshake's signature in TLS 1.2 as webpki does, which does not read certificates of version 1: a
    /// scheme leaves open which of several algorithms it names.
    pub(crate) fn verify_tls12_signature(
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
        if self.verifies(candidates.iter().copied(), message, signed.signature())? {
            Ok(HandshakeSignatureValid::assertion())
        } else {
            Err(CertificateError::BadSignature.into())
        }
    }

    /// Whether a signature is of this certificate's key, by one of the algorithms.
    fn verifies<'a>(
        &self,
        mut candidates: impl Iterator<Item = &'a dyn SignatureVerificationAlgorithm>,
        message: &[u8],
        signature: &[u8],
    ) -> Result<bool, Error> {
        let key = self.parsed.tbs_certificate().subject_public_key_info();
        let algorithm = content(&key.algorithm)?;
        let bits = key.subject_public_key.as_bytes().ok_or(CertificateError::BadEncoding)?;
        Ok(candidates.any(|candidate| {
            candidate.public_key_alg_id().as_ref() == algorithm
                && candidate.verify_signature(bits, message, signature).is_ok()
        }))
    }
}

/// Content of a sequence, as rustls' identifiers of algorithms have it.
fn content(sequence: &impl Encode) -> Result<Vec<u8>, Error> {
    let bytes = sequence.to_der().map_err(|_| CertificateError::BadEncoding)?;
    let any = AnyRef::from_der(&bytes).map_err(|_| CertificateError::BadEncoding)?;
    Ok(any.value().to_vec())
}

fn unix_time(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests;

//! A certificate with its chain and key, checked when it is read and ready for handshakes.

mod fault;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use rustls::SignatureAlgorithm;
use rustls::sign::CertifiedKey;
use signalbox_core::routing::tls::names::{CertificateCandidate, KeyKind, Validity};
use signalbox_core::wire::hostname::{HostnamePattern, WildcardDepth};
use zeroize::Zeroizing;

use crate::chain;
use crate::keys::{KeyError, PrivateKey};

pub use fault::{CertificateError, CertificateFault, Warning};

pub(crate) use fault::time_text;

/// PEM texts of a certificate, and where they come from. `Debug` shows nothing of them.
#[derive(Clone, PartialEq, Eq)]
pub struct CertificateSource {
    /// File or alias: how messages name the certificate.
    pub label: String,
    /// Names for which the certificate answers. If empty, these are all of its subjectAltName. A certificate that
    /// comes from the owner of one alias must not answer for others, whatever it claims: for such, name the alias.
    pub names: Vec<HostnamePattern>,
    /// The certificate and its intermediates, in PEM. Zeroed like the key, which may stand in the same file.
    pub chain: Zeroizing<Vec<u8>>,
    /// Private key, in PEM.
    pub key: Zeroizing<Vec<u8>>,
    /// Pass phrase of the key.
    pub pass_phrase: Option<Zeroizing<Vec<u8>>>,
    /// Whether the certificate answers where no other does.
    pub is_default: bool,
}

impl fmt::Debug for CertificateSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CertificateSource({:?})", self.label)
    }
}

/// Certificate that handshakes can use.
#[derive(Clone)]
pub struct Certificate {
    /// File or alias.
    pub label: String,
    /// Names for which the certificate answers.
    pub names: Vec<HostnamePattern>,
    /// Names that the certificate covers, for which a browser may use a connection made with it.
    pub covers: Vec<HostnamePattern>,
    /// Kind of the key.
    pub kind: KeyKind,
    /// Subject of the certificate.
    pub subject: String,
    /// Subject of its issuer.
    pub issuer: String,
    /// First second of validity, since 1970.
    pub not_before: u64,
    /// Last second of validity, since 1970.
    pub not_after: u64,
    /// Whether the certificate answers where no other does.
    pub is_default: bool,
    /// Mistakes that do not hinder its use at any time.
    mistakes: Vec<Warning>,
    key: Arc<CertifiedKey>,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Certificate");
        shown.field("label", &self.label).field("names", &self.names);
        shown.field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Certificate {
    /// Reads and checks a certificate. Its times are not checked: see [`Self::validity`].
    pub fn load(source: &CertificateSource) -> Result<Self, CertificateError> {
        Self::check(source).map_err(|fault| CertificateError {
            label: source.label.clone(),
            fault,
        })
    }

    fn check(source: &CertificateSource) -> Result<Self, CertificateFault> {
        let mut warnings = Vec::new();
        let links = chain::read(&source.chain)?;
        let pass_phrase = source.pass_phrase.as_ref().map(|phrase| phrase.as_slice());
        let signing = PrivateKey::from_pem(&source.key, pass_phrase)?.signing_key()?;
        let spki = signing.public_key().ok_or(KeyError::Unusable)?;
        let chain = chain::order(links, &spki, &mut warnings)?;
        let leaf = &chain[0];
        let covers = leaf.names(&mut warnings);
        let names = if source.names.is_empty() {
            covers.clone()
        } else {
            source.names.clone()
        };
        if names.is_empty() && !source.is_default {
            return Err(CertificateFault::NoName);
        }
        let uncovered = names
            .iter()
            .filter(|name| !covers.iter().any(|cover| is_covered(name, cover)));
        warnings.extend(uncovered.map(|name| Warning::NotCovered { name: name.to_string() }));
        if leaf.has_weak_signature() {
            warnings.push(Warning::WeakSignature);
        }
        let (not_before, not_after) = leaf.validity();
        Ok(Self {
            label: source.label.clone(),
            names,
            covers,
            kind: kind(signing.algorithm())?,
            subject: leaf.subject(),
            issuer: leaf.issuer(),
            not_before,
            not_after,
            is_default: source.is_default,
            mistakes: warnings,
            key: Arc::new(CertifiedKey::new(
                chain.into_iter().map(chain::Link::into_der).collect(),
                signing,
            )),
        })
    }

    /// Mistakes that do not hinder its use at the time `now`, in seconds since 1970.
    pub fn warnings(&self, now: u64) -> impl Iterator<Item = Warning> {
        let of_time = match self.validity(now) {
            Validity::Valid => None,
            Validity::Expired => Some(Warning::Expired {
                until: time_text(self.not_after),
            }),
            Validity::NotYet => Some(Warning::NotYet {
                from: time_text(self.not_before),
            }),
        };
        of_time.into_iter().chain(self.mistakes.iter().cloned())
    }

    /// Whether the certificate is for a name: clients that ask for it accept the certificate.
    #[must_use]
    pub fn covers(&self, name: &HostnamePattern) -> bool {
        self.covers.iter().any(|cover| is_covered(name, cover))
    }

    /// Validity at the time `now`, in seconds since 1970.
    #[must_use]
    pub const fn validity(&self, now: u64) -> Validity {
        Validity::at(now, self.not_before, self.not_after)
    }

    pub(crate) fn candidate(&self, now: u64) -> CertificateCandidate {
        CertificateCandidate {
            names: self.names.clone(),
            kind: self.kind,
            validity: self.validity(now),
            not_after: self.not_after,
            is_default: self.is_default,
        }
    }

    /// Whether this is the same certificate for the same names.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.names == other.names && self.is_default == other.is_default && self.key.cert == other.key.cert
    }

    pub(crate) const fn key(&self) -> &Arc<CertifiedKey> {
        &self.key
    }
}

/// Whether a name of a certificate covers another name.
pub(crate) fn is_covered(name: &HostnamePattern, cover: &HostnamePattern) -> bool {
    match name {
        HostnamePattern::Exact(name) => cover.matches(name, WildcardDepth::One),
        HostnamePattern::Wildcard(_) => name == cover,
    }
}

fn kind(algorithm: SignatureAlgorithm) -> Result<KeyKind, KeyError> {
    match algorithm {
        SignatureAlgorithm::ECDSA => Ok(KeyKind::Ecdsa),
        SignatureAlgorithm::ED25519 => Ok(KeyKind::Ed25519),
        SignatureAlgorithm::RSA => Ok(KeyKind::Rsa),
        other => Err(KeyError::UnsupportedKind(format!("{other:?}"))),
    }
}

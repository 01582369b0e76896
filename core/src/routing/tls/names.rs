//! Which certificate answers for the name in a ClientHello: the exact name, then a wildcard of one label (RFC 9525,
//! section 6.3), then the default.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use crate::wire::hostname::{Hostname, HostnamePattern};

/// Kind of a certificate's key, in the order in which a server tries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyKind {
    /// ECDSA on one of NIST's curves: the cheapest for the server, and known to all clients of the last ten years.
    Ecdsa,
    /// Ed25519, which browsers do not offer.
    Ed25519,
    /// RSA of any size.
    Rsa,
}

const KINDS: usize = 3;

/// Validity of a certificate at the time when the table is built. The better one is the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Validity {
    /// The certificate's `notBefore` is in the future.
    NotYet,
    /// The certificate's `notAfter` is in the past.
    Expired,
    /// The certificate is valid now.
    Valid,
}

impl Validity {
    /// Validity at the time `now` of a certificate with these two times; all are seconds since 1970.
    #[must_use]
    pub const fn at(now: u64, not_before: u64, not_after: u64) -> Self {
        if now < not_before {
            Self::NotYet
        } else if now > not_after {
            Self::Expired
        } else {
            Self::Valid
        }
    }
}

/// Certificate as the table sees it.
#[derive(Clone, Debug)]
pub struct CertificateCandidate {
    /// Names for which the certificate answers.
    pub names: Vec<HostnamePattern>,
    /// Kind of the certificate's key.
    pub kind: KeyKind,
    /// Validity at the time when the table is built.
    pub validity: Validity,
    /// Time of the certificate's end, in seconds since 1970.
    pub not_after: u64,
    /// Whether the certificate answers where no other does.
    pub is_default: bool,
}

/// Certificates of one name: at most one for each kind of key, as positions in the list of candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slot([Option<usize>; KINDS]);

impl Slot {
    /// Takes the better one of two certificates of one kind: valid before expired, then the later end, then the first.
    fn offer(&mut self, at: usize, all: &[CertificateCandidate]) {
        let rank = |at: usize| (all[at].validity, all[at].not_after);
        let place = &mut self.0[all[at].kind as usize];
        if place.is_none_or(|held| rank(at) > rank(held)) {
            *place = Some(at);
        }
    }

    fn iter(self) -> impl Iterator<Item = usize> {
        self.0.into_iter().flatten()
    }
}

/// Immutable table from names to certificates.
#[derive(Clone, Debug, Default)]
pub struct NameTable {
    exact: HashMap<Hostname, Slot, foldhash::fast::RandomState>,
    /// By the part after the star and its dot.
    wildcard: HashMap<Hostname, Slot, foldhash::fast::RandomState>,
    default: Slot,
}

impl NameTable {
    /// Builds the table. Certificates are known by their position in `candidates`.
    #[must_use]
    pub fn new(candidates: &[CertificateCandidate]) -> Self {
        let mut table = Self::default();
        for (at, candidate) in candidates.iter().enumerate() {
            for name in &candidate.names {
                let slot = match name {
                    HostnamePattern::Exact(name) => table.exact.entry(name.clone()).or_default(),
                    HostnamePattern::Wildcard(suffix) => table.wildcard.entry(suffix.clone()).or_default(),
                };
                slot.offer(at, candidates);
            }
            if candidate.is_default {
                table.default.offer(at, candidates);
            }
        }
        table
    }

    /// Certificates that name `name`, best first: those of the exact name (ECDSA, Ed25519, RSA), then those of the
    /// wildcard, for a client that can verify none of the former. Empty if no certificate names it.
    pub fn find(&self, name: &Hostname) -> impl Iterator<Item = usize> + use<> {
        let exact = self.exact.get(name).copied().unwrap_or_default();
        let wildcard = parent(name).and_then(|parent| self.wildcard.get(&parent));
        exact.iter().chain(wildcard.copied().unwrap_or_default().iter())
    }

    /// Certificates for clients without a name, or with one that no certificate names: ECDSA, Ed25519, RSA.
    pub fn defaults(&self) -> impl Iterator<Item = usize> + use<> {
        self.default.iter()
    }

    /// Number of names, each wildcard counted once.
    #[must_use]
    pub fn len(&self) -> usize {
        self.exact.len() + self.wildcard.len()
    }

    /// Whether there is no name in the table.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Name without its first label; `None` for a single label.
pub(super) fn parent(name: &Hostname) -> Option<Hostname> {
    let (_, rest) = name.as_str().split_once('.')?;
    Hostname::parse(rest.as_bytes()).ok()
}

//! All certificates of a process, as an immutable table.

use std::sync::Arc;

use arc_swap::ArcSwap;
use signalbox_core::routing::tls::names::NameTable;
use signalbox_core::wire::hostname::Hostname;

use crate::certificate::{Certificate, CertificateError, CertificateSource};

/// Certificates by name. Never changed: another one takes its place in [`SharedCertificates`].
#[derive(Clone, Debug, Default)]
pub struct CertificateStore {
    certificates: Vec<Arc<Certificate>>,
    table: NameTable,
    next_change: Option<u64>,
}

/// The certificates in force, of all listeners.
pub type SharedCertificates = Arc<ArcSwap<CertificateStore>>;

impl CertificateStore {
    /// Builds the table for the time `now`, in seconds since 1970. Of several certificates of one name and kind of
    /// key, a valid one goes before one that is expired or not yet valid, then the one that ends last.
    #[must_use]
    pub fn new(certificates: Vec<Arc<Certificate>>, now: u64) -> Self {
        let candidates: Vec<_> = certificates.iter().map(|one| one.candidate(now)).collect();
        let times = certificates
            .iter()
            .flat_map(|one| [one.not_before, one.not_after.saturating_add(1)]);
        Self {
            table: NameTable::new(&candidates),
            next_change: times.filter(|time| *time > now).min(),
            certificates,
        }
    }

    /// Loads the certificates of `sources`. Those that cannot be used are reported and leave the others.
    #[must_use]
    pub fn load(sources: &[CertificateSource], now: u64) -> (Self, Vec<CertificateError>) {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for source in sources {
            match Certificate::load(source) {
                Ok(certificate) => good.push(Arc::new(certificate)),
                Err(error) => bad.push(error),
            }
        }
        (Self::new(good, now), bad)
    }

    /// Returns these certificates in the table of another time.
    #[must_use]
    pub fn at(&self, now: u64) -> Self {
        Self::new(self.certificates.clone(), now)
    }

    /// Certificates that answer for `name`, best first: of the exact name before the wildcard's, ECDSA before RSA.
    /// Without default ones; empty if no certificate names it.
    pub fn named(&self, name: &Hostname) -> impl Iterator<Item = &Arc<Certificate>> {
        self.table.find(name).map(|at| &self.certificates[at])
    }

    /// Certificates for clients without a name, or with one that no certificate names.
    pub fn defaults(&self) -> impl Iterator<Item = &Arc<Certificate>> {
        self.table.defaults().map(|at| &self.certificates[at])
    }

    /// All certificates, in the order of their sources.
    #[must_use]
    pub fn certificates(&self) -> &[Arc<Certificate>] {
        &self.certificates
    }

    /// Number of names, each wildcard counted once.
    #[must_use]
    pub fn names(&self) -> usize {
        self.table.len()
    }

    /// When a certificate next becomes valid or ends, in seconds since 1970: time for [`Self::at`].
    #[must_use]
    pub const fn next_change(&self) -> Option<u64> {
        self.next_change
    }
}

//! Certificate authorities of a file.

use std::path::Path;

use rustls::pki_types::{CertificateDer, Der, TrustAnchor};
use rustls::{DistinguishedName, RootCertStore};

use crate::chain::Link;
use crate::given::GivenCertificates;
use crate::pem::{PemError, sections};

/// Certificates of a file that the configuration calls `ca`.
pub(crate) struct Authorities {
    /// The authorities among them: a client's or host's own certificate signs nothing.
    pub(crate) roots: RootCertStore,
    pub(crate) given: GivenCertificates,
    /// Names of all of them, of which clients choose their certificate's issuer.
    pub(crate) names: Vec<DistinguishedName>,
}

impl Authorities {
    /// Reads a PEM file.
    pub(crate) fn of_file(path: &Path) -> Result<Self, String> {
        let text = std::fs::read(path).map_err(|error| error.to_string())?;
        let sections = sections(&text).map_err(|error: PemError| error.to_string())?;
        let certificates = sections.iter().filter(|section| section.label == "CERTIFICATE");
        let parsed = certificates.map(|section| {
            let link = Link::parse(CertificateDer::from(section.content.to_vec()));
            link.ok_or_else(|| format!("the certificate of line {} is not one of X.509", section.line))
        });
        let parsed: Vec<_> = parsed.collect::<Result<_, _>>()?;
        if parsed.is_empty() {
            return Err("there is no certificate in it".to_owned());
        }
        Self::new(parsed)
    }

    /// Tells authorities from other certificates.
    pub(crate) fn new(certificates: Vec<Link>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for link in certificates.iter().filter(|link| link.is_authority()) {
            let added = roots.add(link.der().clone());
            added.map_err(|error| format!("the authority {} cannot be used: {error}", link.subject()))?;
        }
        let names = certificates.iter().filter_map(Link::subject_der);
        Ok(Self {
            roots,
            names: names.map(DistinguishedName::from).collect(),
            given: GivenCertificates::new(certificates),
        })
    }

    /// Returns the authorities for rustls, which refuses an empty list.
    pub(crate) fn anchors(&mut self) -> RootCertStore {
        let mut roots = std::mem::replace(&mut self.roots, RootCertStore::empty());
        if roots.is_empty() {
            roots.roots.push(nobody());
        }
        roots
    }
}

/// Authority whose public key is none, so that it has signed nothing.
fn nobody() -> TrustAnchor<'static> {
    TrustAnchor {
        subject: Der::from_slice(&[]),
        subject_public_key_info: Der::from_slice(&[]),
        name_constraints: None,
    }
}

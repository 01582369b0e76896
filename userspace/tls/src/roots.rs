//! Certificate authorities of a file.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

use crate::pem::{PemError, sections};

/// Reads the authorities of a PEM file.
pub(crate) fn of_file(path: &Path) -> Result<RootCertStore, String> {
    with_certificates(path).map(|(roots, _)| roots)
}

/// Reads the authorities of a PEM file, and returns their certificates, too.
pub(crate) fn with_certificates(path: &Path) -> Result<(RootCertStore, Vec<CertificateDer<'static>>), String> {
    let text = std::fs::read(path).map_err(|error| error.to_string())?;
    let sections = sections(&text).map_err(|error: PemError| error.to_string())?;
    let (mut roots, mut certificates) = (RootCertStore::empty(), Vec::new());
    for section in sections.iter().filter(|section| section.label == "CERTIFICATE") {
        let certificate = CertificateDer::from(section.content.to_vec());
        let added = roots.add(certificate.clone());
        added.map_err(|error| format!("the certificate of line {}: {error}", section.line))?;
        certificates.push(certificate);
    }
    if roots.is_empty() {
        return Err("there is no certificate in it".to_owned());
    }
    Ok((roots, certificates))
}

//! Certificate chains: the certificate of the key first, each issuer after it (RFC 8446, section 4.4.2).

use rustls::pki_types::CertificateDer;
use signalbox_core::wire::hostname::HostnamePattern;
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{Decode as _, Encode as _};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::spki::SubjectPublicKeyInfoRef;

use crate::certificate::{CertificateFault, Warning};
use crate::pem::sections;

/// Signatures that clients no longer accept: MD5 and SHA-1 with RSA, SHA-1 with ECDSA.
const WEAK_SIGNATURES: [&str; 3] = ["1.2.840.113549.1.1.4", "1.2.840.113549.1.1.5", "1.2.840.10045.4.1"];

/// Certificate of a chain, as it came and parsed.
pub(crate) struct Link {
    der: CertificateDer<'static>,
    /// Lenient about serial numbers and the like, which private authorities get wrong and clients accept.
    pub(crate) parsed: CertificateInner<Raw>,
}

/// Reads the certificates of PEM text, of which keys and parameters are left out.
pub(crate) fn read(text: &[u8]) -> Result<Vec<Link>, CertificateFault> {
    let sections = sections(text)?;
    let mut links = Vec::new();
    for section in sections {
        if !matches!(section.label.as_str(), "CERTIFICATE" | "X509 CERTIFICATE") {
            continue;
        }
        let link = Link::parse(CertificateDer::from(section.content.to_vec()));
        links.push(link.ok_or(CertificateFault::NotX509 { line: section.line })?);
    }
    if links.is_empty() {
        return Err(CertificateFault::Missing);
    }
    Ok(links)
}

/// Puts the certificate of the public key `spki` (DER) first and the issuers after it, as far as they are there.
/// Issuers are found by name; signatures are not checked, since clients do.
pub(crate) fn order(
    mut links: Vec<Link>,
    spki: &[u8],
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Link>, CertificateFault> {
    let wrong_key = || CertificateFault::WrongKey {
        subject: links[0].subject(),
    };
    let leaf = links.iter().position(|link| link.has_key(spki)).ok_or_else(wrong_key)?;
    let mut is_reordered = leaf != 0;
    let mut chain = vec![links.remove(leaf)];
    loop {
        let last = &chain[chain.len() - 1].parsed;
        let (issuer, subject) = (last.tbs_certificate().issuer(), last.tbs_certificate().subject());
        if issuer == subject {
            break;
        }
        let Some(next) = links
            .iter()
            .position(|link| link.parsed.tbs_certificate().subject() == issuer)
        else {
            break;
        };
        is_reordered |= next != 0;
        chain.push(links.remove(next));
    }
    if is_reordered {
        warnings.push(Warning::Reordered);
    }
    if !links.is_empty() {
        let subjects = links.iter().map(Link::subject).collect();
        warnings.push(Warning::NotOfChain { subjects });
    }
    Ok(chain)
}

impl Link {
    /// Parses a certificate; `None` where it is none.
    pub(crate) fn parse(der: CertificateDer<'static>) -> Option<Self> {
        let parsed = CertificateInner::<Raw>::from_der(&der).ok()?;
        Some(Self { der, parsed })
    }

    pub(crate) const fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    pub(crate) fn into_der(self) -> CertificateDer<'static> {
        self.der
    }

    pub(crate) fn subject_der(&self) -> Option<Vec<u8>> {
        self.parsed.tbs_certificate().subject().to_der().ok()
    }

    pub(crate) fn subject(&self) -> String {
        self.parsed.tbs_certificate().subject().to_string()
    }

    pub(crate) fn issuer(&self) -> String {
        self.parsed.tbs_certificate().issuer().to_string()
    }

    /// First and last second of validity, since 1970.
    pub(crate) fn validity(&self) -> (u64, u64) {
        let validity = self.parsed.tbs_certificate().validity();
        let seconds = |time: x509_cert::time::Time| time.to_unix_duration().as_secs();
        (seconds(validity.not_before), seconds(validity.not_after))
    }

    pub(crate) fn has_weak_signature(&self) -> bool {
        let oid = self.parsed.signature_algorithm().oid;
        WEAK_SIGNATURES
            .iter()
            .any(|weak| ObjectIdentifier::new(weak) == Ok(oid))
    }

    /// Whether this is the certificate of the public key. Parameters of the algorithm are not compared: some
    /// authorities leave out the NULL of RSA.
    fn has_key(&self, spki: &[u8]) -> bool {
        let own = self.parsed.tbs_certificate().subject_public_key_info().to_der();
        let own = own.as_deref().map(SubjectPublicKeyInfoRef::from_der);
        match (own, SubjectPublicKeyInfoRef::from_der(spki)) {
            (Ok(Ok(own)), Ok(key)) => {
                own.algorithm.oid == key.algorithm.oid && own.subject_public_key == key.subject_public_key
            }
            _ => false,
        }
    }

    /// Host names of the subjectAltName, or the common name if it has none (RFC 9525 forbids the latter; browsers
    /// refuse it, old clients do not).
    pub(crate) fn names(&self, warnings: &mut Vec<Warning>) -> Vec<HostnamePattern> {
        let certificate = self.parsed.tbs_certificate();
        let alternative = certificate.get_extension::<SubjectAltName>().ok().flatten();
        let alternative = alternative.map(|(_, names)| names.0).unwrap_or_default();
        let mut names = Vec::new();
        for name in &alternative {
            let GeneralName::DnsName(name) = name else {
                continue;
            };
            match HostnamePattern::parse(name.as_ref()) {
                Ok(name) => names.push(name),
                Err(_) => warnings.push(Warning::BadName { name: name.to_string() }),
            }
        }
        if !names.is_empty() {
            return names;
        }
        let common = certificate.subject().common_name().ok().flatten();
        let common = common.and_then(|name| HostnamePattern::parse(&name.value()).ok());
        if let Some(name) = &common {
            warnings.push(Warning::CommonName { name: name.to_string() });
        }
        common.into_iter().collect()
    }
}

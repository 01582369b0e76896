//! Certificate that a client has shown, as text for hosts.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::Decode as _;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::name::Name;
use x509_cert::time::Time;

use crate::provider::sha1;

/// Attribute of a name: commonName.
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// Certificate that a client has shown, and that has been verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownCertificate {
    /// The certificate in Base64.
    pub base64: String,
    /// SHA-1 digest of the certificate, in hexadecimal digits.
    pub sha1: String,
    /// Subject, each attribute behind a `/`.
    pub subject: String,
    /// First commonName of the subject; empty for none.
    pub common_name: String,
    /// Issuer, each attribute behind a `/`.
    pub issuer: String,
    /// First second of validity, `YYMMDDhhmmssZ`.
    pub not_before: String,
    /// Last second of validity, `YYMMDDhhmmssZ`.
    pub not_after: String,
}

impl ShownCertificate {
    /// Reads a certificate; `None` where it is none.
    #[must_use]
    pub fn read(der: &[u8]) -> Option<Self> {
        let parsed = CertificateInner::<Raw>::from_der(der).ok()?;
        let certificate = parsed.tbs_certificate();
        let subject = certificate.subject();
        let validity = certificate.validity();
        let common_name = subject.iter().find(|attribute| attribute.oid == COMMON_NAME);
        let common_name = common_name.map(ToString::to_string).unwrap_or_default();
        Some(Self {
            base64: BASE64_STANDARD.encode(der),
            sha1: sha1(der).iter().map(|byte| format!("{byte:02X}")).collect(),
            subject: text_of(subject),
            common_name: common_name.split_once('=').map_or("", |(_, name)| name).to_owned(),
            issuer: text_of(certificate.issuer()),
            not_before: digits(validity.not_before),
            not_after: digits(validity.not_after),
        })
    }
}

fn text_of(name: &Name) -> String {
    name.iter().map(|attribute| format!("/{attribute}")).collect()
}

fn digits(time: Time) -> String {
    let time = time.to_date_time();
    format!(
        "{:02}{:02}{:02}{:02}{:02}{:02}Z",
        time.year() % 100,
        time.month(),
        time.day(),
        time.hour(),
        time.minutes(),
        time.seconds()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_told_as_text() {
        let mut params = rcgen::CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(rcgen::DnType::OrganizationName, "Shop, Inc");
        params.distinguished_name.push(rcgen::DnType::CommonName, "alice");
        (params.not_before, params.not_after) = (rcgen::date_time_ymd(2026, 1, 2), rcgen::date_time_ymd(2027, 11, 30));
        let key = rcgen::KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap().der().to_vec();
        let shown = ShownCertificate::read(&der).unwrap();
        assert_eq!(shown.subject, "/O=Shop\\, Inc/CN=alice");
        assert_eq!((shown.issuer, shown.common_name.as_str()), (shown.subject, "alice"));
        assert_eq!(
            (shown.not_before.as_str(), shown.not_after.as_str()),
            ("260102000000Z", "271130000000Z")
        );
        assert_eq!(BASE64_STANDARD.decode(&shown.base64).unwrap(), der);
        assert_eq!(shown.sha1.len(), 40);
        assert_eq!(ShownCertificate::read(b"none"), None);
    }
}

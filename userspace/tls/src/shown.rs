//! Certificate that a client has shown, as text for hosts.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::Decode as _;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::name::Name;
use x509_cert::time::Time;

use crate::provider::sha1;

/// OpenSSL's short name of a commonName.
const COMMON_NAME: &str = "CN";

/// OpenSSL's short names of attributes.
const SHORT_NAMES: [(ObjectIdentifier, &str); 32] = {
    const fn of(oid: &str, name: &'static str) -> (ObjectIdentifier, &'static str) {
        (ObjectIdentifier::new_unwrap(oid), name)
    }
    [
        of("2.5.4.3", COMMON_NAME),
        of("2.5.4.4", "SN"),
        of("2.5.4.5", "serialNumber"),
        of("2.5.4.6", "C"),
        of("2.5.4.7", "L"),
        of("2.5.4.8", "ST"),
        of("2.5.4.9", "street"),
        of("2.5.4.10", "O"),
        of("2.5.4.11", "OU"),
        of("2.5.4.12", "title"),
        of("2.5.4.13", "description"),
        of("2.5.4.15", "businessCategory"),
        of("2.5.4.16", "postalAddress"),
        of("2.5.4.17", "postalCode"),
        of("2.5.4.18", "postOfficeBox"),
        of("2.5.4.20", "telephoneNumber"),
        of("2.5.4.41", "name"),
        of("2.5.4.42", "GN"),
        of("2.5.4.43", "initials"),
        of("2.5.4.44", "generationQualifier"),
        of("2.5.4.46", "dnQualifier"),
        of("2.5.4.65", "pseudonym"),
        of("2.5.4.72", "role"),
        of("2.5.4.97", "organizationIdentifier"),
        of("0.9.2342.19200300.100.1.1", "UID"),
        of("0.9.2342.19200300.100.1.3", "mail"),
        of("0.9.2342.19200300.100.1.25", "DC"),
        of("1.2.840.113549.1.9.1", "emailAddress"),
        of("1.2.840.113549.1.9.2", "unstructuredName"),
        of("1.3.6.1.4.1.311.60.2.1.1", "jurisdictionL"),
        of("1.3.6.1.4.1.311.60.2.1.2", "jurisdictionST"),
        of("1.3.6.1.4.1.311.60.2.1.3", "jurisdictionC"),
    ]
};

/// Certificate that a client has shown, and that has been verified. Names are as HAProxy writes them: with OpenSSL's
/// short names of attributes and the bytes of their values, of which control characters are percent-encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownCertificate {
    /// The certificate in Base64.
    pub base64: String,
    /// SHA-1 digest of the certificate, in hexadecimal digits.
    pub sha1: String,
    /// Subject, each attribute behind a `/`.
    pub subject: Vec<u8>,
    /// First commonName of the subject; empty for none.
    pub common_name: Vec<u8>,
    /// Issuer, each attribute behind a `/`.
    pub issuer: Vec<u8>,
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
        let common_name = subject
            .iter()
            .find(|attribute| short_name(attribute.oid) == Some(COMMON_NAME));
        Some(Self {
            base64: BASE64_STANDARD.encode(der),
            sha1: sha1(der).iter().map(|byte| format!("{byte:02X}")).collect(),
            subject: text_of(subject),
            common_name: common_name.map(value_of).unwrap_or_default(),
            issuer: text_of(certificate.issuer()),
            not_before: digits(validity.not_before),
            not_after: digits(validity.not_after),
        })
    }
}

fn text_of(name: &Name) -> Vec<u8> {
    let mut text = Vec::new();
    for attribute in name.iter() {
        let kind = short_name(attribute.oid).map_or_else(|| attribute.oid.to_string(), str::to_owned);
        text.extend_from_slice(format!("/{kind}=").as_bytes());
        text.extend(value_of(attribute));
    }
    text
}

fn short_name(kind: ObjectIdentifier) -> Option<&'static str> {
    SHORT_NAMES.iter().find(|(oid, _)| *oid == kind).map(|(_, name)| *name)
}

/// Value of an attribute, without control characters: none may end a field.
fn value_of(attribute: &AttributeTypeAndValue) -> Vec<u8> {
    let mut text = Vec::new();
    for byte in attribute.value.value() {
        if byte.is_ascii_control() {
            text.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            text.push(*byte);
        }
    }
    text
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
        let email = rcgen::DnType::CustomDnType(vec![1, 2, 840, 113_549, 1, 9, 1]);
        for (kind, value) in [
            (rcgen::DnType::OrganizationName, "Shop, \"Inc\" + \u{e4}\\"),
            (rcgen::DnType::CommonName, "alice\r\nX: 50%\u{7f}"),
            (email, "a@b.test"),
            (rcgen::DnType::CustomDnType(vec![2, 5, 4, 5]), "7"),
            (rcgen::DnType::CustomDnType(vec![1, 2, 3, 4]), "own"),
        ] {
            params.distinguished_name.push(kind, value);
        }
        (params.not_before, params.not_after) = (rcgen::date_time_ymd(2026, 1, 2), rcgen::date_time_ymd(2027, 11, 30));
        let key = rcgen::KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap().der().to_vec();
        let shown = ShownCertificate::read(&der).unwrap();
        let name = "alice%0D%0AX: 50%%7F";
        let subject = format!("/O=Shop, \"Inc\" + \u{e4}\\/CN={name}/emailAddress=a@b.test/serialNumber=7/1.2.3.4=own");
        assert_eq!(String::from_utf8(shown.subject.clone()).unwrap(), subject);
        assert_eq!(
            (shown.issuer, shown.common_name.as_slice()),
            (shown.subject, name.as_bytes())
        );
        assert_eq!(
            (shown.not_before.as_str(), shown.not_after.as_str()),
            ("260102000000Z", "271130000000Z")
        );
        assert_eq!(BASE64_STANDARD.decode(&shown.base64).unwrap(), der);
        assert_eq!(shown.sha1.len(), 40);
        assert_eq!(ShownCertificate::read(b"none"), None);
    }
}

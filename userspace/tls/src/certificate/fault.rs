//! Mistakes in certificates: those that forbid to use one, and those that do not.

use std::time::Duration;

use x509_cert::der::DateTime;

use crate::keys::KeyError;
use crate::pem::PemError;

/// Error of a certificate, with the file or alias.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("certificate {label}: {fault}")]
pub struct CertificateError {
    /// File or alias.
    pub label: String,
    /// Reason, with the remedy.
    #[source]
    pub fault: CertificateFault,
}

/// Why a certificate cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateFault {
    /// A file cannot be read.
    #[error("{path} cannot be read: {why}")]
    File {
        /// Path of the file.
        path: String,
        /// The system's words.
        why: String,
    },
    /// The name of a file is no host name.
    #[error("{name:?}, for which the file is named, is not a host name")]
    FileName {
        /// Name of the file, decoded.
        name: String,
    },
    /// There is no certificate in the text.
    #[error("there is no certificate: a PEM section `CERTIFICATE` is expected")]
    Missing,
    /// A section is no certificate.
    #[error("the PEM section of line {line} is not an X.509 certificate")]
    NotX509 {
        /// Number of the section's first line.
        line: usize,
    },
    /// The text is no PEM.
    #[error(transparent)]
    Pem(#[from] PemError),
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The key is another one's.
    #[error("the private key does not belong to the certificate ({subject}), nor to another one of its chain")]
    WrongKey {
        /// Subject of the first certificate.
        subject: String,
    },
    /// There is no host name.
    #[error("the certificate has no host name (subjectAltName without dNSName), and is not the default one")]
    NoName,
}

/// Mistake that a certificate is used with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// A name of the certificate is no host name.
    #[error("the subjectAltName {name:?} is not a host name and is left out")]
    BadName {
        /// Text of the name.
        name: String,
    },
    /// The name stands only in the subject.
    #[error(
        "the certificate names {name} only as its common name, which browsers ignore: have it issued with a subjectAltName"
    )]
    CommonName {
        /// The common name.
        name: String,
    },
    /// The certificate's time is over.
    #[error("the certificate has expired: it was valid until {until}")]
    Expired {
        /// Last second of its validity.
        until: String,
    },
    /// The certificate's time has not come.
    #[error("the certificate is not valid yet: it is from {from} on")]
    NotYet {
        /// First second of its validity.
        from: String,
    },
    /// The certificate is not valid for a name that it answers for.
    #[error("the certificate does not cover {name}, so clients will refuse it")]
    NotCovered {
        /// Name of the source.
        name: String,
    },
    /// Certificates of the chain that lead nowhere.
    #[error("left out of the chain, since they issued none of it: {}", subjects.join("; "))]
    NotOfChain {
        /// Their subjects.
        subjects: Vec<String>,
    },
    /// The chain was in another order.
    #[error("the chain is not in order and is sent sorted: the key's certificate first, each issuer after it")]
    Reordered,
    /// The signature is one that clients refuse.
    #[error("the certificate is signed with SHA-1 or MD5, which clients refuse")]
    WeakSignature,
}

/// Time in seconds since 1970, as people read it.
pub(crate) fn time_text(seconds: u64) -> String {
    let time = DateTime::from_unix_duration(Duration::from_secs(seconds));
    time.map_or_else(|_| "a time beyond the year 9999".to_owned(), |time| time.to_string())
}

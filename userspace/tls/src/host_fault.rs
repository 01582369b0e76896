//! Reason why a handshake with a host has failed, for people.

use std::io;

use rustls::{CertificateError, Error};

use crate::certificate::time_text;

/// Setting that names the authorities which a host's certificate needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthoritySetting {
    /// `backend_tls.ca` of the cluster; without it, the system's authorities.
    BackendTls,
    /// `https.ca` of the health check.
    HealthCheck,
}

impl AuthoritySetting {
    const fn key(self) -> &'static str {
        match self {
            Self::BackendTls => "`backend_tls.ca`",
            Self::HealthCheck => "`https.ca` of the health check",
        }
    }
}

/// Reason why a handshake with a host has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTlsFault {
    /// The reason; the same for all names that the host is asked for.
    pub reason: String,
    /// Name that the host was asked for, where its certificate has others.
    pub asked: Option<String>,
}

impl HostTlsFault {
    /// Reason of an error; `None` where it is none of TLS. `authorities`: the setting that the certificate is verified by.
    #[must_use]
    pub fn of(error: &io::Error, authorities: AuthoritySetting) -> Option<Self> {
        let error = error.get_ref()?.downcast_ref::<Error>()?;
        let reason = match error {
            Error::InvalidCertificate(fault) => format!("its certificate {}", certificate_reason(fault, authorities)),
            other => other.to_string(),
        };
        let asked = match error {
            Error::InvalidCertificate(CertificateError::NotValidForNameContext { expected, .. }) => {
                Some(expected.to_str().into_owned())
            }
            _ => None,
        };
        Some(Self { reason, asked })
    }
}

/// Whether a certificate is refused because it is of X.509 version 1.
#[must_use]
pub fn is_version_1(fault: &CertificateError) -> bool {
    // The error is of webpki, whose errors rustls does not export: only the text tells it.
    matches!(fault, CertificateError::Other(other) if other.to_string() == "UnsupportedCertVersion")
}

fn certificate_reason(fault: &CertificateError, authorities: AuthoritySetting) -> String {
    let ca = authorities.key();
    match fault {
        CertificateError::UnknownIssuer => match authorities {
            AuthoritySetting::BackendTls => {
                format!("is signed by no authority of {ca} (of the system, where there is no `ca`)")
            }
            AuthoritySetting::HealthCheck => format!("is signed by no authority of {ca}"),
        },
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("has expired: it was valid until {}", time_text(not_after.as_secs()))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("is not valid yet: it is from {} on", time_text(not_before.as_secs()))
        }
        CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => {
            format!("has no subjectAltName, and its common name counts only if it is in {ca} itself")
        }
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names: Vec<_> = presented.iter().map(|name| plain(name)).collect();
            format!("is for other names than that which is asked for: {}", names.join(", "))
        }
        fault if is_version_1(fault) => format!("is of X.509 version 1, and no authority of {ca} has signed it"),
        // An authority's own certificate, and the like.
        CertificateError::Other(other) => format!("is taken only if it is in {ca} itself ({other})"),
        other => format!("cannot be used: {other}"),
    }
}

/// Name out of `DnsName("a.test")` or `IpAddress(10.1.0.2)`.
fn plain(presented: &str) -> &str {
    let inner = presented.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.map_or(presented, |inner| inner.trim_matches('"'))
}

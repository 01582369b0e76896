//! Reason why a handshake with a host has failed, for people.

use std::io;

use rustls::{CertificateError, Error};

use crate::certificate::time_text;

/// Reason why a handshake with a host has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTlsFault {
    /// The reason; the same for all names that the host is asked for.
    pub reason: String,
    /// Name that the host was asked for, where its certificate has others.
    pub asked: Option<String>,
}

impl HostTlsFault {
    /// Reason of an error; `None` where it is none of TLS.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<Self> {
        let error = error.get_ref()?.downcast_ref::<Error>()?;
        let reason = match error {
            Error::InvalidCertificate(fault) => format!("its certificate {}", certificate_reason(fault)),
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

fn certificate_reason(fault: &CertificateError) -> String {
    match fault {
        CertificateError::UnknownIssuer => {
            "is signed by no authority of `backend_tls.ca` (of the system, where there is no `ca`)".to_owned()
        }
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("has expired: it was valid until {}", time_text(not_after.as_secs()))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("is not valid yet: it is from {} on", time_text(not_before.as_secs()))
        }
        CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => {
            "has no subjectAltName, and its common name counts only if it is in `backend_tls.ca` itself".to_owned()
        }
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names: Vec<_> = presented.iter().map(|name| plain(name)).collect();
            format!("is for other names than that which is asked for: {}", names.join(", "))
        }
        // An authority's own certificate, one of X.509 version 1, and the like.
        CertificateError::Other(other) => {
            format!("is taken only if it is in `backend_tls.ca` itself ({other})")
        }
        other => format!("cannot be used: {other}"),
    }
}

/// Name out of `DnsName("a.test")` or `IpAddress(10.1.0.2)`.
fn plain(presented: &str) -> &str {
    let inner = presented.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.map_or(presented, |inner| inner.trim_matches('"'))
}

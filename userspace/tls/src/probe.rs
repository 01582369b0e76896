//! TLS of probes: any certificate is taken, and looked at.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use signalbox_core::availability::migration::probe::ShownCertificate;
use signalbox_core::routing::tls::names::Validity;
use signalbox_core::wire::hostname::{Hostname, HostnamePattern};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::certificate::{is_covered, time_text};
use crate::chain::Link;
use crate::client::{AnyCertificate, system_roots};

/// Connector of probes: without ALPN, so that hosts speak HTTP/1.1.
#[derive(Clone)]
pub struct ProbeConnector {
    connector: TlsConnector,
    /// Authorities that this machine trusts; `None` where it has none.
    trusted: Option<Arc<dyn ServerCertVerifier>>,
}

impl ProbeConnector {
    /// A connector.
    ///
    /// # Errors
    ///
    /// If the provider of cryptography lacks the protocol versions.
    pub fn new() -> Result<Self, rustls::Error> {
        let mut config = ClientConfig::builder_with_provider(crate::provider::provider())
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate))
            .with_no_client_auth();
        // A session that another host has begun would show that host's certificate.
        config.resumption = Resumption::disabled();
        let verifier =
            |roots| WebPkiServerVerifier::builder_with_provider(Arc::new(roots), crate::provider::provider()).build();
        let trusted = system_roots().ok().and_then(|roots| verifier(roots).ok());
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config)),
            trusted: trusted.map(|verifier| verifier as Arc<dyn ServerCertVerifier>),
        })
    }

    /// Shakes hands for a name. Returns also the certificate shown.
    ///
    /// # Errors
    ///
    /// If the connection ends, or the handshake fails.
    pub async fn connect(
        &self,
        name: &Hostname,
        stream: TcpStream,
        now: UnixTime,
    ) -> io::Result<(TlsStream<TcpStream>, Option<ShownCertificate>)> {
        let server = ServerName::try_from(name.as_str().to_owned()).map_err(io::Error::other)?;
        let stream = self.connector.connect(server.clone(), stream).await?;
        let chain = stream.get_ref().1.peer_certificates();
        let shown = chain.and_then(<[_]>::split_first).map(|(leaf, issuers)| {
            let is_trusted = |verifier: &Arc<dyn ServerCertVerifier>| {
                verifier.verify_server_cert(leaf, issuers, &server, &[], now).is_ok()
            };
            let is_trusted = self.trusted.as_ref().is_some_and(is_trusted);
            judge(leaf, name, now.as_secs(), is_trusted)
        });
        Ok((stream, shown))
    }
}

/// Examines a certificate that was shown for a name, at a time in seconds since 1970.
fn judge(der: &CertificateDer<'_>, name: &Hostname, now: u64, is_trusted: bool) -> ShownCertificate {
    let Some(link) = Link::parse(der.clone().into_owned()) else {
        return ShownCertificate {
            fault: Some("the certificate cannot be read".to_owned()),
            is_trusted,
            issuer: String::new(),
        };
    };
    ShownCertificate {
        fault: fault(&link, name, now),
        is_trusted,
        issuer: link.issuer(),
    }
}

fn fault(link: &Link, name: &Hostname, now: u64) -> Option<String> {
    let names = link.names(&mut Vec::new());
    let wanted = HostnamePattern::Exact(name.clone());
    if !names.iter().any(|shown| is_covered(&wanted, shown)) {
        let shown = names.first().map_or_else(|| link.subject(), ToString::to_string);
        return Some(format!("the certificate is for {shown}, and not for {}", name.as_str()));
    }
    let (not_before, not_after) = link.validity();
    match Validity::at(now, not_before, not_after) {
        Validity::Valid => None,
        Validity::Expired => Some(format!("the certificate has expired on {}", time_text(not_after))),
        Validity::NotYet => Some(format!("the certificate begins on {}", time_text(not_before))),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn a_certificate_must_be_for_the_name_and_now() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["*.apps.test".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        let certificate = params.self_signed(&key).unwrap();
        let fault = |name: &str, now| {
            let name = Hostname::parse(name.as_bytes()).unwrap();
            judge(certificate.der(), &name, now, false).fault
        };
        let within = 1_590_000_000;
        assert_eq!(fault("shop.apps.test", within), None);
        let other = fault("shop.test", within).unwrap();
        assert_eq!(other, "the certificate is for *.apps.test, and not for shop.test");
        let late = fault("shop.apps.test", 1_700_000_000).unwrap();
        assert!(late.contains("expired on 2021"), "{late}");
        let early = fault("shop.apps.test", 1_500_000_000).unwrap();
        assert!(early.contains("begins on 2020"), "{early}");
        let name = Hostname::parse(b"a.test").unwrap();
        assert!(
            judge(&CertificateDer::from(vec![1, 2]), &name, 0, false)
                .fault
                .is_some()
        );
    }
}

//! The certificate of a handshake, by the name in the ClientHello (SNI) and the signatures that the client verifies.

use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use signalbox_core::wire::hostname::Hostname;

use crate::certificate::Certificate;
use crate::store::{CertificateStore, SharedCertificates};

/// Chooses among the certificates in force, without a lock.
#[derive(Debug)]
pub struct CertificateResolver {
    certificates: SharedCertificates,
    strict_sni: bool,
}

impl CertificateResolver {
    /// Resolver of a listener. With `strict_sni` a client has to name a host that a certificate names, and the default
    /// certificates are not used.
    #[must_use]
    pub const fn new(certificates: SharedCertificates, strict_sni: bool) -> Self {
        Self {
            certificates,
            strict_sni,
        }
    }

    /// Whether a handshake with this name must fail, so that the listener sends the alert `unrecognized_name` (RFC 6066,
    /// section 3) and closes instead: rustls would say `access_denied`.
    #[must_use]
    pub fn refuses(&self, name: Option<&Hostname>) -> bool {
        self.choose(&self.certificates.load(), name, &[]).is_none()
    }

    /// Certificates of which a handshake with this name gets one.
    pub fn candidates<'a>(
        &self,
        store: &'a CertificateStore,
        name: Option<&Hostname>,
    ) -> impl Iterator<Item = &'a Arc<Certificate>> {
        let mut named = name.into_iter().flat_map(|name| store.named(name)).peekable();
        let has_none = named.peek().is_none() && !self.strict_sni;
        named.chain(store.defaults().filter(move |_| has_none))
    }

    /// Certificate of a handshake: the first that the client can verify. If there is none such, the best one, which
    /// has the handshake fail with `handshake_failure`.
    #[must_use]
    pub fn choose(
        &self,
        store: &CertificateStore,
        name: Option<&Hostname>,
        offered: &[SignatureScheme],
    ) -> Option<Arc<Certificate>> {
        let mut named = name.into_iter().flat_map(|name| store.named(name)).peekable();
        if named.peek().is_some() {
            first_usable(named, offered)
        } else if self.strict_sni {
            None
        } else {
            first_usable(store.defaults(), offered)
        }
    }
}

fn first_usable<'a>(
    candidates: impl Iterator<Item = &'a Arc<Certificate>>,
    offered: &[SignatureScheme],
) -> Option<Arc<Certificate>> {
    let mut best = None;
    for candidate in candidates {
        if candidate.key().key.choose_scheme(offered).is_some() {
            return Some(Arc::clone(candidate));
        }
        best.get_or_insert(candidate);
    }
    best.cloned()
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello
            .server_name()
            .and_then(|name| Hostname::parse(name.as_bytes()).ok());
        let chosen = self.choose(&self.certificates.load(), name.as_ref(), hello.signature_schemes());
        chosen.map(|certificate| Arc::clone(certificate.key()))
    }
}

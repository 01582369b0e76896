//! TLS configurations of a listener: one for each ALPN list, which share certificates and tickets.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use signalbox_core::model::tls_profile::{KeyExchangeGroup, Profile};

use crate::profile;
use crate::resolver::CertificateResolver;
use crate::roots::Authorities;
use crate::tickets::{Clock, TicketSecret, Ticketer};
use crate::verifiers::ClientVerifier;

/// Protocols that a handshake offers by ALPN (RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alpn {
    /// `http/1.1`, then `http/1.0`.
    Http1,
    /// `h2`, then `http/1.1` and `http/1.0`.
    Http2,
    /// No ALPN, for what is not HTTP.
    None,
}

impl Alpn {
    const ALL: [Self; 3] = [Self::Http1, Self::Http2, Self::None];

    fn protocols(self) -> Vec<Vec<u8>> {
        match self {
            // `http/1.0` for clients that offer nothing else, such as curl --http1.0.
            Self::Http1 => [&b"http/1.1"[..], b"http/1.0"].map(Vec::from).to_vec(),
            Self::Http2 => [&b"h2"[..], b"http/1.1", b"http/1.0"].map(Vec::from).to_vec(),
            Self::None => Vec::new(),
        }
    }
}

/// Whether clients show a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// Clients are not asked.
    #[default]
    None,
    /// Clients are asked; one that they show has to be signed by an authority of the file.
    Optional(PathBuf),
    /// Clients have to show one that is signed by an authority of the file.
    Required(PathBuf),
}

/// Policy of a listener's handshakes.
#[derive(Clone, Debug)]
pub struct ServerPolicy {
    /// Name of the policy: sessions are resumed only where it is the same.
    pub label: String,
    /// Versions and cipher suites.
    pub profile: Profile,
    /// Groups of the key exchange, best first.
    pub groups: Vec<KeyExchangeGroup>,
    /// Client certificates.
    pub client_auth: ClientAuth,
}

/// Error of a policy.
#[derive(Debug, thiserror::Error)]
pub enum ServerPolicyError {
    /// The file of authorities cannot be used.
    #[error("client certificates: {}: {why}", path.display())]
    ClientCa {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        why: String,
    },
    /// No group is left.
    #[error("`groups` is empty: name at least one, such as X25519")]
    NoGroup,
    /// The library refuses the combination.
    #[error("TLS policy: {0}")]
    Refused(#[from] rustls::Error),
}

/// Configuration of handshakes, which they share.
pub type HandshakeConfig = Arc<ServerConfig>;

/// Configurations of a policy. Looked up without a lock.
#[derive(Clone, Debug)]
pub struct ServerConfigs([Arc<ServerConfig>; 3]);

impl ServerConfigs {
    /// Builds the configurations. Tickets are off without a secret, and where clients show certificates: a resumed
    /// session is not verified again.
    pub fn new(
        policy: &ServerPolicy,
        resolver: Arc<CertificateResolver>,
        tickets: Option<(&TicketSecret, Clock)>,
    ) -> Result<Self, ServerPolicyError> {
        if policy.groups.is_empty() {
            return Err(ServerPolicyError::NoGroup);
        }
        let provider = profile::provider(policy.profile, &policy.groups);
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(profile::versions(policy.profile))?;
        let builder = match &policy.client_auth {
            ClientAuth::None => builder.with_no_client_auth(),
            ClientAuth::Optional(ca) | ClientAuth::Required(ca) => {
                let is_optional = matches!(policy.client_auth, ClientAuth::Optional(_));
                builder.with_client_cert_verifier(client_verifier(ca, is_optional, provider)?)
            }
        };
        let mut config = builder.with_cert_resolver(resolver);
        // Sessions live in tickets only: a cache in memory has a lock, and is lost at a restart.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        match tickets {
            Some((secret, clock)) if policy.client_auth == ClientAuth::None => {
                config.ticketer = Arc::new(Ticketer::new(secret, &policy.label, clock));
            }
            _ => config.send_tls13_tickets = 0,
        }
        let with = |alpn: Alpn| {
            let mut config = config.clone();
            config.alpn_protocols = alpn.protocols();
            Arc::new(config)
        };
        Ok(Self(Alpn::ALL.map(with)))
    }

    /// Configuration for handshakes that offer `alpn`.
    #[must_use]
    pub const fn get(&self, alpn: Alpn) -> &Arc<ServerConfig> {
        &self.0[alpn as usize]
    }
}

/// Makes the verifier of clients' certificates by the authorities of a file.
///
/// # Errors
///
/// If the file cannot be used.
pub fn client_verifier(
    ca: &Path,
    is_optional: bool,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, ServerPolicyError> {
    let mut authorities = Authorities::of_file(ca).map_err(|why| client_ca(ca, &why))?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities.anchors()), provider)
        .clear_root_hint_subjects()
        .add_root_hint_subjects(authorities.names);
    let verifier = if is_optional {
        verifier.allow_unauthenticated()
    } else {
        verifier
    };
    let verifier = verifier.build().map_err(|error| client_ca(ca, &error.to_string()))?;
    Ok(Arc::new(ClientVerifier::new(verifier, authorities.given)))
}

fn client_ca(path: &Path, why: &str) -> ServerPolicyError {
    ServerPolicyError::ClientCa {
        path: path.to_owned(),
        why: why.to_owned(),
    }
}

//! The cryptography of all TLS of the process: AWS-LC, by aws-lc-rs. Another provider of the same interface (ring) is
//! one `use` away.

use std::sync::Arc;

pub(crate) use aws_lc_rs::{aead, digest, hkdf, rand};
pub(crate) use rustls::crypto::aws_lc_rs as rustls_provider;

use rustls::crypto::CryptoProvider;

/// Returns the provider with everything that it can do. Listeners take a part of it: see [`crate::profile`].
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls_provider::default_provider())
}

/// Returns the SHA-1 digest of some bytes: no secret rests on it, the handshake of WebSocket has it (RFC 6455).
#[must_use]
pub fn sha1(bytes: &[u8]) -> Vec<u8> {
    digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, bytes)
        .as_ref()
        .to_vec()
}

/// Makes the provider the one that libraries take when they name none. To be called first of all; later calls do
/// nothing.
pub fn install() {
    // An error says that a provider is installed already.
    let _ = rustls_provider::default_provider().install_default();
}

//! Profiles of TLS, as rustls has them: versions, cipher suites and groups.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::version::{TLS12, TLS13};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};
use signalbox_core::model::tls_profile::{KeyExchangeGroup, Profile};

use crate::provider::rustls_provider::{cipher_suite as suite, default_provider, kx_group};

static MODERN: [SupportedCipherSuite; 3] = [
    suite::TLS13_AES_128_GCM_SHA256,
    suite::TLS13_AES_256_GCM_SHA384,
    suite::TLS13_CHACHA20_POLY1305_SHA256,
];

static INTERMEDIATE: [SupportedCipherSuite; 9] = [
    suite::TLS13_AES_128_GCM_SHA256,
    suite::TLS13_AES_256_GCM_SHA384,
    suite::TLS13_CHACHA20_POLY1305_SHA256,
    suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];

static MODERN_VERSIONS: [&SupportedProtocolVersion; 1] = [&TLS13];
static INTERMEDIATE_VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

/// Versions of a profile.
#[must_use]
pub const fn versions(profile: Profile) -> &'static [&'static SupportedProtocolVersion] {
    match profile {
        Profile::Modern => &MODERN_VERSIONS,
        Profile::Intermediate => &INTERMEDIATE_VERSIONS,
    }
}

/// Returns the provider with the cipher suites of `profile` and the `groups`, in this order of preference.
#[must_use]
pub fn provider(profile: Profile, groups: &[KeyExchangeGroup]) -> Arc<CryptoProvider> {
    let suites = match profile {
        Profile::Modern => MODERN.to_vec(),
        Profile::Intermediate => INTERMEDIATE.to_vec(),
    };
    Arc::new(CryptoProvider {
        cipher_suites: suites,
        kx_groups: groups.iter().map(|group| implementation(*group)).collect(),
        ..default_provider()
    })
}

fn implementation(group: KeyExchangeGroup) -> &'static dyn SupportedKxGroup {
    match group {
        KeyExchangeGroup::X25519MlKem768 => kx_group::X25519MLKEM768,
        KeyExchangeGroup::X25519 => kx_group::X25519,
        KeyExchangeGroup::P256 => kx_group::SECP256R1,
        KeyExchangeGroup::P384 => kx_group::SECP384R1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(profile: Profile) -> Vec<String> {
        let suites = provider(profile, &KeyExchangeGroup::ALL).cipher_suites.clone();
        suites.iter().map(|suite| format!("{:?}", suite.suite())).collect()
    }

    #[test]
    fn profiles_have_forward_secrecy_and_aead_only() {
        let modern = names(Profile::Modern);
        assert!(modern.iter().all(|name| name.starts_with("TLS13_")), "{modern:?}");
        assert_eq!(versions(Profile::Modern), [&TLS13]);
        let intermediate = names(Profile::Intermediate);
        assert_eq!(intermediate.len(), 9);
        let good = |name: &String| name.starts_with("TLS13_") || name.starts_with("TLS_ECDHE_");
        assert!(intermediate.iter().all(good), "{intermediate:?}");
        assert!(
            !intermediate.iter().any(|name| name.contains("CBC")),
            "{intermediate:?}"
        );
    }

    #[test]
    fn groups_keep_their_order() {
        let groups = [KeyExchangeGroup::P384, KeyExchangeGroup::X25519MlKem768];
        let provider = provider(Profile::Modern, &groups);
        let names: Vec<_> = provider
            .kx_groups
            .iter()
            .map(|group| format!("{:?}", group.name()))
            .collect();
        assert_eq!(names, ["secp384r1", "X25519MLKEM768"]);
    }
}

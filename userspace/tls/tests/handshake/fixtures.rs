//! Certificates for tests, made anew in each run.
#![allow(
    dead_code,
    reason = "shared by unit tests and integration tests, of which each uses a part"
)]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::OnceLock;

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, PKCS_RSA_SHA256};

/// Authority that issues certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

/// Certificate, without its issuers, and key, in PEM.
#[derive(Clone)]
pub(crate) struct Issued {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn root(name: &str) -> Self {
        let (params, key) = (authority(name), KeyPair::generate().unwrap());
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    pub(crate) fn intermediate(&self, name: &str) -> Self {
        let (params, key) = (authority(name), KeyPair::generate().unwrap());
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Certificate with an ECDSA key.
    pub(crate) fn ecdsa(&self, names: &[&str]) -> Issued {
        self.issue(params(names), &KeyPair::generate().unwrap())
    }

    /// Certificate with the RSA key of all tests, since making one takes long.
    pub(crate) fn rsa(&self, names: &[&str]) -> Issued {
        self.issue(params(names), rsa_key())
    }

    pub(crate) fn issue(&self, params: CertificateParams, key: &KeyPair) -> Issued {
        Issued {
            cert: params.signed_by(key, &self.issuer).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }
}

pub(crate) fn rsa_key() -> &'static KeyPair {
    static KEY: OnceLock<KeyPair> = OnceLock::new();
    KEY.get_or_init(|| KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap())
}

pub(crate) fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = named("leaf");
    params
}

pub(crate) fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name = named(name);
    params
}

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::ResolvesServerCert;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, SupportedProtocolVersion};

use super::*;
use crate::fixtures::{named, params, rsa_key};
use crate::host_fault::{AuthoritySetting, HostTlsFault};
use crate::roots::Authorities;
use crate::verifiers::HostVerifier;

const NAME: &str = "a.test";

fn own(change: impl FnOnce(&mut CertificateParams), key: &KeyPair) -> CertificateDer<'static> {
    let mut params = params(&[NAME]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    change(&mut params);
    params.self_signed(key).unwrap().der().clone()
}

/// Shakes hands with a host that shows `certificate` and has `key`, where `given` is the file of authorities.
fn shake_hands(
    certificate: &CertificateDer<'static>,
    key: &KeyPair,
    given: &CertificateDer<'static>,
    version: &'static SupportedProtocolVersion,
) -> Result<(), Error> {
    let mut read = Authorities::new(vec![Link::parse(given.clone()).unwrap()]).unwrap();
    let authorities = WebPkiServerVerifier::builder_with_provider(Arc::new(read.anchors()), provider());
    let verifier = HostVerifier::new(authorities.build().unwrap(), read.given);
    let client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let key = provider().key_provider.load_private_key(key).unwrap();
    let shown = SingleCertAndKey::from(CertifiedKey::new(vec![certificate.clone()], key));
    let shown: Arc<dyn ResolvesServerCert> = Arc::new(shown);
    let server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[version])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(shown);
    let name = ServerName::try_from(NAME).unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    let mut bytes = Vec::new();
    while client.is_handshaking() || server.is_handshaking() {
        bytes.clear();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut &bytes[..]).unwrap();
        server.process_new_packets().unwrap();
        bytes.clear();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut &bytes[..]).unwrap();
        client.process_new_packets()?;
    }
    Ok(())
}

fn reason(result: Result<(), Error>) -> String {
    let error = std::io::Error::other(result.unwrap_err());
    HostTlsFault::of(&error, AuthoritySetting::BackendTls).unwrap().reason
}

#[test]
fn a_given_certificate_is_trusted_with_its_own_key() {
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    for version in rustls::ALL_VERSIONS {
        for key in [&key, rsa_key()] {
            for names in [&[NAME][..], &["*.test"], &[]] {
                let own = own(
                    |params| {
                        params.subject_alt_names = self::params(names).subject_alt_names;
                        params.distinguished_name = named(NAME);
                    },
                    key,
                );
                let shaken = shake_hands(&own, key, &own, version);
                assert_eq!(shaken.is_ok(), names != ["*.test"], "{version:?} {names:?} {shaken:?}");
            }
        }
        let own = own(|_| {}, &key);
        let forged = shake_hands(&own, &other, &own, version);
        assert_eq!(forged, Err(CertificateError::BadSignature.into()), "{version:?}");
    }
}

#[test]
fn a_given_certificate_has_its_name_time_and_purpose() {
    let key = KeyPair::generate().unwrap();
    let version = rustls::ALL_VERSIONS[0];
    let refused = |change: &dyn Fn(&mut CertificateParams)| {
        let own = own(change, &key);
        reason(shake_hands(&own, &key, &own, version))
    };
    assert_eq!(
        refused(&|of| *of = params(&["b.test", "c.test"])),
        "its certificate is for other names than that which is asked for: b.test, c.test"
    );
    assert_eq!(
        refused(&|of| {
            of.subject_alt_names.clear();
            of.distinguished_name = named("b.test");
        }),
        "its certificate is for other names than that which is asked for: b.test"
    );
    assert_eq!(
        refused(&|of| of.not_after = date_time_ymd(2020, 2, 3)),
        "its certificate has expired: it was valid until 2020-02-03T00:00:00Z"
    );
    assert_eq!(
        refused(&|of| of.not_before = date_time_ymd(4000, 1, 1)),
        "its certificate is not valid yet: it is from 4000-01-01T00:00:00Z on"
    );
    let purpose = refused(&|of| of.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]);
    assert!(purpose.starts_with("its certificate cannot be used: "), "{purpose}");
}

#[test]
fn a_certificate_that_is_not_given_is_refused_with_the_reason() {
    let key = KeyPair::generate().unwrap();
    let version = rustls::ALL_VERSIONS[0];
    let given = own(|_| {}, &KeyPair::generate().unwrap());
    let refused = |change: &dyn Fn(&mut CertificateParams)| {
        let shown = own(change, &key);
        reason(shake_hands(&shown, &key, &given, version))
    };
    // The names are those of the given one, and the key is not.
    assert!(refused(&|_| {}).starts_with("its certificate is taken only if it is in `backend_tls.ca` itself"));
    let stranger = refused(&|of| {
        of.is_ca = IsCa::NoCa;
        of.distinguished_name = named("stranger");
    });
    assert!(
        stranger.starts_with("its certificate is signed by no authority of `backend_tls.ca`"),
        "{stranger}"
    );
}

/// The owner of a host's certificate cannot make certificates of other hosts.
#[test]
fn a_given_certificate_signs_only_as_an_authority() {
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let version = rustls::ALL_VERSIONS[0];
    for (is_ca, usages, signs) in [
        (IsCa::Ca(BasicConstraints::Unconstrained), &[][..], true),
        (
            IsCa::Ca(BasicConstraints::Unconstrained),
            &[KeyUsagePurpose::KeyCertSign],
            true,
        ),
        (
            IsCa::Ca(BasicConstraints::Unconstrained),
            &[KeyUsagePurpose::DigitalSignature],
            false,
        ),
        (IsCa::ExplicitNoCa, &[KeyUsagePurpose::DigitalSignature], false),
        (IsCa::NoCa, &[], false),
    ] {
        let mut params = params(&[NAME]);
        params.distinguished_name = named("host");
        (params.is_ca, params.key_usages) = (is_ca, usages.to_vec());
        let given = params.self_signed(&key).unwrap().der().clone();
        let signed = self::params(&[NAME])
            .signed_by(&other, &Issuer::new(params, &key))
            .unwrap();
        assert_eq!(
            shake_hands(&given, &key, &given, version),
            Ok(()),
            "{is_ca:?} {usages:?}"
        );
        let shaken = shake_hands(signed.der(), &other, &given, version);
        assert_eq!(shaken.is_ok(), signs, "{is_ca:?} {usages:?} {shaken:?}");
    }
}

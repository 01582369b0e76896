use std::sync::Arc;

use rustls::AlertDescription;
use signalbox_tls::server::{Alpn, ClientAuth};

use crate::client::{config, config_with, connect, is, only_signatures};
use crate::fixtures::Authority;
use crate::server::{Setup, source};

#[test]
fn the_certificate_is_that_of_the_name() {
    let root = Authority::root("root");
    let (exact, wildcard) = (root.ecdsa(&["a.test"]), root.ecdsa(&["*.w.test"]));
    let default = root.ecdsa(&["default.test", "unknown.test", "y.x.w.test"]);
    let mut fallback = source("default", &default);
    // Covers more than it answers for, so that a client that gets it for another name is content.
    fallback.names = vec![signalbox_core::wire::hostname::HostnamePattern::parse("default.test").unwrap()];
    fallback.is_default = true;
    let setup = Setup::new(&[source("exact", &exact), source("wildcard", &wildcard), fallback]);
    let server = setup.start();
    let client = Arc::new(config(&root));
    let seen = |name: &str| connect(&client, server.address, name).unwrap();
    assert!(is(&seen("a.test"), &exact));
    assert!(is(&seen("A.Test"), &exact));
    assert!(is(&seen("x.w.test"), &wildcard));
    assert!(is(&seen("default.test"), &default));
    assert!(is(&seen("unknown.test"), &default));
    assert!(is(&seen("y.x.w.test"), &default));
    assert_eq!(seen("a.test").alpn.as_deref(), Some(&b"h2"[..]));
    let mut silent = config(&root);
    silent.enable_sni = false;
    let seen = connect(&Arc::new(silent), server.address, "default.test").unwrap();
    assert!(is(&seen, &default));
}

#[test]
fn a_client_gets_ecdsa_unless_it_verifies_only_rsa() {
    let root = Authority::root("root");
    let (ecdsa, rsa) = (root.ecdsa(&["a.test"]), root.rsa(&["a.test"]));
    let setup = Setup::new(&[source("rsa", &rsa), source("ecdsa", &ecdsa)]);
    let server = setup.start();
    for (client, expected) in [
        (config(&root), &ecdsa),
        (only_signatures(&root, "ECDSA"), &ecdsa),
        (only_signatures(&root, "RSA"), &rsa),
    ] {
        let seen = connect(&Arc::new(client), server.address, "a.test").unwrap();
        assert!(is(&seen, expected));
    }
}

#[test]
fn a_client_that_verifies_none_of_the_certificates_is_refused() {
    let root = Authority::root("root");
    let server = Setup::new(&[source("ecdsa", &root.ecdsa(&["a.test"]))]).start();
    let error = connect(&Arc::new(only_signatures(&root, "RSA")), server.address, "a.test").unwrap_err();
    assert!(format!("{error:?}").contains("HandshakeFailure"), "{error:?}");
}

#[test]
fn an_unknown_name_is_refused_by_strict_sni_with_its_alert() {
    let root = Authority::root("root");
    let known = root.ecdsa(&["a.test", "unknown.test"]);
    let mut known_source = source("a", &known);
    known_source.names = vec![signalbox_core::wire::hostname::HostnamePattern::parse("a.test").unwrap()];
    known_source.is_default = true;
    let mut setup = Setup::new(&[known_source]);
    setup.strict_sni = true;
    let server = setup.start();
    let client = Arc::new(config(&root));
    assert!(is(&connect(&client, server.address, "a.test").unwrap(), &known));
    let alert = |name: &str, sni: bool| {
        let mut client = config(&root);
        client.enable_sni = sni;
        let error = connect(&Arc::new(client), server.address, name).unwrap_err();
        let rustls = error.into_inner().unwrap();
        match rustls.downcast_ref::<rustls::Error>() {
            Some(rustls::Error::AlertReceived(alert)) => *alert,
            other => panic!("no alert: {other:?}"),
        }
    };
    assert_eq!(alert("unknown.test", true), AlertDescription::UnrecognisedName);
    assert_eq!(alert("a.test", false), AlertDescription::UnrecognisedName);
}

#[test]
fn http2_is_offered_only_where_the_listener_says_so() {
    let root = Authority::root("root");
    let mut setup = Setup::new(&[source("a", &root.ecdsa(&["a.test"]))]);
    let client = Arc::new(config(&root));
    for (alpn, expected) in [
        (Alpn::Http1, Some(&b"http/1.1"[..])),
        (Alpn::Http2, Some(&b"h2"[..])),
        (Alpn::None, None),
    ] {
        setup.alpn = alpn;
        let server = setup.start();
        let seen = connect(&client, server.address, "a.test").unwrap();
        assert_eq!(seen.alpn.as_deref(), expected);
    }
}

#[test]
fn client_certificates_are_asked_for_as_the_policy_says() {
    let (root, clients) = (Authority::root("root"), Authority::root("clients"));
    let ca = std::env::temp_dir().join(format!("signalbox-tls-clients-{}.pem", std::process::id()));
    std::fs::write(&ca, &clients.pem).unwrap();
    let (good, bad) = (clients.ecdsa(&["user"]), root.ecdsa(&["user"]));
    let mut setup = Setup::new(&[source("a", &root.ecdsa(&["a.test"]))]);
    for (auth, nothing, stranger) in [
        (ClientAuth::Optional(ca.clone()), true, false),
        (ClientAuth::Required(ca.clone()), false, false),
        (ClientAuth::None, true, true),
    ] {
        setup.policy.client_auth = auth.clone();
        let server = setup.start();
        let may = |identity| {
            let provider = signalbox_tls::provider::provider();
            let client = Arc::new(config_with(&root, provider, rustls::ALL_VERSIONS, identity));
            let first = connect(&client, server.address, "a.test");
            // A resumed session would show no certificate again.
            if let (Ok(_), false) = (&first, auth == ClientAuth::None) {
                let again = connect(&client, server.address, "a.test").unwrap();
                assert_ne!(again.kind, rustls::HandshakeKind::Resumed, "{auth:?}");
            }
            first.is_ok()
        };
        assert_eq!(
            (may(None), may(Some(&good)), may(Some(&bad))),
            (nothing, true, stranger),
            "{auth:?}"
        );
    }
    std::fs::remove_file(&ca).unwrap();
}

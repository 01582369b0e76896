//! Certificates that clients show, and clients that break off or say nothing.

use std::io::Write as _;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::scene::{HTTPS, body, certificate, certificates, connect, trusting, try_connect};
use crate::http_request::scene::{Client, WebHost};
use crate::lab::{Lab, SOON, Signalbox, eventually, hello, privileged};

const ROUTE: &str = "{ host: a.test, clusters: { east-1: 1 } }";

#[test]
fn clients_without_a_certificate_are_refused_where_one_is_required() {
    if !privileged("clients_without_a_certificate_are_refused_where_one_is_required") {
        return;
    }
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let (pem, client_pem) = (
        certificate(&lab, "lb", &["a.test"]),
        certificate(&lab, "client", &["client.test"]),
    );
    let listener = |required: bool| {
        format!(
            ", termination: edge, client_certificates: {{ ca: {}, required: {required} }}",
            client_pem.display()
        )
    };
    let text = |required| body(&listener(required), &certificates(&pem), &[("east-1", "")], &[ROUTE]);
    let sb = Signalbox::start(&lab, &text(true));
    sb.wait_healthy(&["east-1"]);
    // In TLS 1.3 the client has finished before the balancer looks at its certificate.
    let mut without = connect(&lab, "a.test");
    let _ = without.inner().write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let error = without.try_answer("GET").err().unwrap();
    assert!(error.to_string().contains("CertificateRequired"), "{error}");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&pem).unwrap()).unwrap();
    let own = (
        vec![CertificateDer::from_pem_file(&client_pem).unwrap()],
        PrivateKeyDer::from_pem_file(&client_pem).unwrap(),
    );
    let settings = ClientConfig::builder_with_provider(signalbox_tls::provider::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(own.0, own.1)
        .unwrap();
    let mut with = try_connect(&lab, "a.test", Arc::new(settings)).unwrap();
    assert_eq!(with.get("a.test", "/").status, 200);
    let failed = "signalbox_tls_handshake_failures_total{listener=\"https\",reason=\"no_client_certificate\"}";
    assert!(eventually(SOON, || sb.metric(failed) > 0.5));
    sb.reload(&text(false));
    assert_eq!(connect(&lab, "a.test").get("a.test", "/").status, 200);
}

#[test]
fn handshakes_that_are_not_finished_end_in_time_and_are_counted() {
    if !privileged("handshakes_that_are_not_finished_end_in_time_and_are_counted") {
        return;
    }
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let extra = format!(
        "{}\ntimeouts: {{ peek_tls: 1s }}\ntls: {{ groups: [X25519MLKEM768, X25519] }}",
        certificates(&pem)
    );
    let sb = Signalbox::start(&lab, &body(", termination: edge", &extra, &[("east-1", "")], &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    let failures = |reason: &str| {
        sb.metric(&format!(
            "signalbox_tls_handshake_failures_total{{listener=\"https\",reason=\"{reason}\"}}"
        ))
    };
    // A ClientHello whose key shares are no keys.
    let mut wrong = Client::on(lab.client.connect(HTTPS));
    let message = hello::client_hello(Some("a.test"));
    wrong.inner().write_all(&hello::records(&message, 1)).unwrap();
    assert!(eventually(SOON, || failures("malformed") > 0.5));
    drop(wrong);
    // A client with none of the groups that are served.
    let mut provider = (*signalbox_tls::provider::provider()).clone();
    provider
        .kx_groups
        .retain(|group| group.name() == rustls::NamedGroup::secp384r1);
    let other = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    assert!(try_connect(&lab, "a.test", Arc::new(other)).is_err());
    assert!(eventually(SOON, || failures("incompatible") > 0.5));
    // A client that trusts nobody breaks off.
    let nobody = ClientConfig::builder_with_provider(signalbox_tls::provider::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    assert!(try_connect(&lab, "a.test", Arc::new(nobody)).is_err());
    assert!(eventually(SOON, || failures("certificate_refused") > 0.5));
    // A client that never answers the ServerHello.
    let name = rustls::pki_types::ServerName::try_from("a.test").unwrap();
    let mut session = rustls::ClientConnection::new(Arc::new(trusting(&lab)), name).unwrap();
    let mut silent = lab.client.connect(HTTPS);
    session.write_tls(&mut silent).unwrap();
    assert!(eventually(SOON, || failures("timeout") > 0.5));
    assert!(Client::on(silent).try_answer("GET").is_err());
    assert!(eventually(SOON, || sb.flow_count() == 0));
}

//! Certificates that clients show, and clients that break off or say nothing.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::host_certificates::openssl;
use super::scene::{HTTPS, body, certificate, certificates, connect, trusting, try_connect};
use crate::connection::access_log::{lines, log_at};
use crate::http::request::scene::{Client, WebHost, field};
use crate::lab::{Lab, SOON, Signalbox, eventually, hello, lab_test};

/// Settings of a client that shows the certificate of a file.
pub(super) fn showing(lab: &Lab, pem: &Path) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_file_iter(lab.dir().join("ca.pem")).unwrap() {
        roots.add(authority.unwrap()).unwrap();
    }
    ClientConfig::builder_with_provider(signalbox_tls::provider::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![CertificateDer::from_pem_file(pem).unwrap()],
            PrivateKeyDer::from_pem_file(pem).unwrap(),
        )
        .unwrap()
}

pub(super) const ROUTE: &str = "{ host: a.test, clusters: { east-1: 1 } }";

#[lab_test]
fn clients_without_a_required_certificate_are_refused() {
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
    let log = lab.dir().join("access.log");
    let settings = format!("{}\n{}", certificates(&pem), log_at(&log, ""));
    let text = |required| body(&listener(required), &settings, &[("east-1", "")], &[ROUTE]);
    let sb = Signalbox::start(&lab, &text(true));
    sb.wait_healthy(&["east-1"]);
    // In TLS 1.3 the client has finished before the balancer looks at its certificate.
    let mut without = connect(&lab, "a.test");
    let _ = without.inner().write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let error = without.try_answer("GET").err().unwrap();
    assert!(error.to_string().contains("CertificateRequired"), "{error}");
    let mut with = try_connect(&lab, "a.test", Arc::new(showing(&lab, &client_pem))).unwrap();
    assert_eq!(with.get("a.test", "/").status, 200);
    let failed = "signalbox_tls_handshake_failures_total{listener=\"https\",reason=\"no_client_certificate\"}";
    assert!(eventually(SOON, || sb.metric(failed) > 0.5));
    assert!(eventually(SOON, || lines(&log).len() == 2), "{:?}", lines(&log));
    for line in lines(&log) {
        assert_eq!(line["protocol"], "https", "{line}");
    }
    sb.reload(&text(false));
    assert_eq!(connect(&lab, "a.test").get("a.test", "/").status, 200);
}

#[lab_test]
fn client_certificates_that_openssl_makes_are_taken() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let make = |words: &str| openssl(&lab, words);
    // Two authorities of one name: the second signs what the first has not.
    // The third is the certificate of a client, which signs nothing.
    for (authority, more) in [
        ("ca", ""),
        ("other", ""),
        ("leaf", " -addext basicConstraints=critical,CA:FALSE"),
    ] {
        make(&format!(
            "req -x509 -newkey rsa:2048 -nodes -keyout {authority}.key -days 2 -subj /CN=clients -out {authority}.crt{more}"
        ));
        make("req -newkey rsa:2048 -nodes -keyout client.key -subj /CN=someone -out client.csr");
        make(&format!(
            "x509 -req -in client.csr -CA {authority}.crt -CAkey {authority}.key -CAcreateserial -days 2 -out client.crt"
        ));
        join(&lab, &["client.crt", "client.key"], &format!("by-{authority}.pem"));
    }
    make("req -x509 -newkey rsa:2048 -nodes -keyout own.key -days 2 -subj /CN=own -out own.crt");
    join(&lab, &["own.crt", "own.key"], "own.pem");
    join(&lab, &["leaf.crt", "leaf.key"], "leaf.pem");
    join(&lab, &["ca.crt", "own.crt", "leaf.crt"], "clients.pem");
    let listener = format!(
        ", termination: edge, client_certificates: {{ ca: {}, required: true }}",
        lab.dir().join("clients.pem").display()
    );
    let sb = Signalbox::start(&lab, &body(&listener, &certificates(&pem), &[("east-1", "")], &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    // The rustls of other tests cannot show a certificate of version 1.
    for (pem, is_served) in [
        ("by-ca.pem", true),
        ("own.pem", true),
        ("by-other.pem", false),
        ("leaf.pem", true),
        ("by-leaf.pem", false),
    ] {
        let file = |name: &str| lab.dir().join(name).display().to_string();
        let (ca, cert) = (file("ca.pem"), file(pem));
        let resolve = ["--resolve", "a.test:443:10.1.0.1", "https://a.test/"];
        let curl = [
            "curl",
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "--cacert",
            &ca,
            "--cert",
            &cert,
        ];
        let answer = lab.client.output(&[&curl[..], &resolve].concat());
        assert_eq!(
            String::from_utf8_lossy(&answer.stdout) == "200",
            is_served,
            "{pem}: {answer:?}"
        );
    }
}

/// Joins files of the lab into one.
fn join(lab: &Lab, from: &[&str], to: &str) {
    let text = |name: &&str| std::fs::read_to_string(lab.dir().join(name)).unwrap();
    std::fs::write(lab.dir().join(to), from.iter().map(text).collect::<String>()).unwrap();
}

#[lab_test]
fn an_authority_taken_out_of_the_file_lets_no_new_client_in() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let clients = ["one", "two"].map(|name| certificate(&lab, name, &["client.test"]));
    let authorities = clients.each_ref().map(|file| std::fs::read_to_string(file).unwrap());
    let file = lab.dir().join("authorities.pem");
    std::fs::write(&file, authorities.concat()).unwrap();
    let listener = format!(
        ", termination: edge, client_certificates: {{ ca: {}, required: true }}",
        file.display()
    );
    let text = body(&listener, &certificates(&pem), &[("east-1", "")], &[ROUTE]);
    let sb = Signalbox::start(&lab, &text);
    sb.wait_healthy(&["east-1"]);
    // Each client has the same settings: a session that could be resumed would be.
    let settings = clients.map(|file| Arc::new(showing(&lab, &file)));
    let is_served = |who: usize| {
        let Ok(mut client) = try_connect(&lab, "a.test", Arc::clone(&settings[who])) else {
            return false;
        };
        let asked = client.inner().write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
        asked.is_ok() && client.try_answer("GET").is_ok_and(|answer| answer.status == 200)
    };
    assert!(is_served(0) && is_served(1));
    std::fs::write(&file, &authorities[1]).unwrap();
    assert!(eventually(SOON, || !is_served(0)), "{}", sb.proc.log());
    assert!(is_served(1));
    // A file without certificates leaves the previous ones in use.
    std::fs::write(&file, "nothing").unwrap();
    let is_told = || {
        sb.proc
            .log()
            .contains("A file that the configuration names cannot be used")
    };
    assert!(eventually(SOON, is_told), "{}", sb.proc.log());
    assert!(is_served(1) && !is_served(0));
}

#[lab_test]
fn hosts_learn_of_the_certificate_from_the_balancer_alone() {
    let lab = Lab::new();
    let east = WebHost::start(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let client_pem = certificate(&lab, "client", &["client.test"]);
    let text = |fields: &str| {
        let listener = format!(
            ", termination: edge, client_certificates: {{ ca: {}, required: false{fields} }}",
            client_pem.display()
        );
        body(&listener, &certificates(&pem), &[("east-1", "")], &[ROUTE])
    };
    let sb = Signalbox::start(&lab, &text(""));
    sb.wait_healthy(&["east-1"]);
    let shown = CertificateDer::from_pem_file(&client_pem).unwrap();
    let base64 = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, &shown);
    let settings = Arc::new(showing(&lab, &client_pem));
    let forged =
        "GET / HTTP/1.1\r\nHost: a.test\r\nClient-Cert: :AA==:\r\nX-SSL-Client-CN: \"root\"\r\nX_SSL: 1\r\n\r\n";
    let told = |name: &str| {
        let head = east.take().remove(0);
        let told: Vec<_> = head
            .lines()
            .filter(|line| {
                let line = line.to_ascii_lowercase().replace('_', "-");
                line.starts_with("client-cert") || line.starts_with("x-ssl")
            })
            .map(str::to_owned)
            .collect();
        (told, field(&head, name).map(str::to_owned))
    };
    let mut with = try_connect(&lab, "a.test", Arc::clone(&settings)).unwrap();
    // Each request of a connection has the fields.
    for _ in 0..2 {
        with.send(forged);
        assert_eq!(with.answer("GET").status, 200);
        assert_eq!(told("x").0, [format!("Client-Cert: :{base64}:")]);
    }
    // Without a certificate no field is sent, in TLS or not.
    let mut without = connect(&lab, "a.test");
    without.send(forged);
    assert_eq!(without.answer("GET").status, 200);
    assert!(told("x").0.is_empty());
    let mut plain = Client::connect(&lab);
    plain.send(forged);
    assert_eq!(plain.answer("GET").status, 200);
    assert!(told("x").0.is_empty());
    sb.reload(&text(", fields: x-ssl"));
    let mut with = try_connect(&lab, "a.test", settings).unwrap();
    with.send(forged);
    assert_eq!(with.answer("GET").status, 200);
    let (lines, name) = told("x-ssl-client-cn");
    assert_eq!(lines.len(), 9, "{lines:?}");
    assert_eq!(name.as_deref(), Some("client"));
    assert!(lines.contains(&format!("X-SSL-Client-DER: {base64}")), "{lines:?}");
    sb.reload(&text(", fields: off"));
    plain.send(forged);
    assert_eq!(plain.answer("GET").status, 200);
    assert_eq!(told("x").0.len(), 3, "nobody is told, and nothing is removed");
}

#[lab_test]
fn handshakes_that_are_not_finished_end_in_time_and_are_counted() {
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
    // A client without trusted authorities breaks off.
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

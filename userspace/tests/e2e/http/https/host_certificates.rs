//! Certificates of hosts: which are trusted, and the reports about those that are not.

use std::process::Command;

use super::scene::{body, certificate, certificates, connect};
use crate::lab::{Lab, Router, SOON, Signalbox, eventually, lab_test};

const ROUTES: [&str; 1] = ["{ host: a.test, clusters: { east-1: 1 }, tls: { termination: reencrypt } }"];

/// Version 1, signed by an authority.
const SIGNED: &str = "version 1, signed";

/// Runs openssl in the lab's directory.
pub(super) fn openssl(lab: &Lab, words: &str) {
    let made = Command::new("openssl")
        .current_dir(lab.dir())
        .args(words.split_whitespace())
        .output();
    let made = made.unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{words}: {said}");
}

/// Has openssl make a certificate of a host, with its key.
fn make(lab: &Lab, words: &str) {
    let (dir, pem) = (lab.dir(), lab.dir().join("east-1.pem"));
    let openssl = |words: &str| openssl(lab, words);
    let key = "-newkey rsa:2048 -nodes -keyout host.key";
    if words == SIGNED {
        openssl("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -days 2 -subj /CN=authority -out host-ca.crt");
        openssl(&format!("req {key} -subj /CN=a.test -out host.csr"));
        openssl("x509 -req -in host.csr -CA host-ca.crt -CAkey ca.key -CAcreateserial -days 2 -out host.crt");
    } else if words == "version 1" {
        openssl(&format!("req {key} -subj /CN=a.test -out host.csr"));
        openssl("x509 -req -in host.csr -signkey host.key -days 2 -out host.crt");
    } else {
        openssl(&format!("req -x509 {key} -days 2 {words} -out host.crt"));
    }
    let text = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    std::fs::write(pem, text("host.crt") + &text("host.key")).unwrap();
}

fn start(lab: &Lab, ca: &str) -> Signalbox {
    let pem = certificate(lab, "lb", &["a.test"]);
    let keys = format!("backend_tls: {{ ca: {} }}", lab.dir().join(ca).display());
    let sb = Signalbox::start(lab, &body("", &certificates(&pem), &[("east-1", &keys)], &ROUTES));
    sb.wait_healthy(&["east-1"]);
    sb
}

#[lab_test]
fn a_hosts_own_certificate_as_ca_is_trusted() {
    let lab = Lab::new();
    let kinds = [
        "-subj /CN=any -addext subjectAltName=DNS:a.test",
        "-subj /CN=a.test",
        "version 1",
    ];
    for versions in ["ssl_protocols TLSv1.2;", "ssl_protocols TLSv1.3;"] {
        let mut host = Router::nginx_with(&lab, "east-1", "", versions);
        for kind in kinds {
            make(&lab, kind);
            host.restart();
            let sb = start(&lab, "host.crt");
            let answer = connect(&lab, "a.test").get("a.test", "/");
            assert_eq!(answer.status, 200, "{versions} {kind}: {}", sb.host("east-1"));
            assert!(sb.host("east-1")["tls_fault"].is_null());
        }
    }
}

#[lab_test]
fn a_hosts_certificate_of_version_1_is_trusted_by_its_authority() {
    let lab = Lab::new();
    let mut host = Router::nginx_with(&lab, "east-1", "", "");
    make(&lab, SIGNED);
    host.restart();
    let sb = start(&lab, "host-ca.crt");
    let answer = connect(&lab, "a.test").get("a.test", "/");
    assert_eq!(answer.status, 200, "{}", sb.host("east-1"));
}

#[lab_test]
fn why_a_host_is_not_trusted_is_told_once() {
    let lab = Lab::new();
    let mut host = Router::start(&lab, "east-1");
    make(&lab, "-subj /CN=any -addext subjectAltName=DNS:b.test,DNS:c.test");
    host.restart();
    let sb = start(&lab, "host.crt");
    let mut client = connect(&lab, "a.test");
    for _ in 0..3 {
        assert_eq!(client.get("a.test", "/").status, 503);
    }
    let told = "its certificate is for other names than that which is asked for: b.test, c.test";
    assert!(
        eventually(SOON, || sb.host("east-1")["tls_fault"] == told),
        "{}",
        sb.host("east-1")
    );
    let listed = sb.cli(&["hosts"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains(told), "{listed:?}");
    // Another reason is another line, and a host that is trusted again is without one.
    make(&lab, "-subj /CN=any -addext subjectAltName=DNS:a.test");
    std::fs::copy(lab.dir().join("lb.pem"), lab.dir().join("other.pem")).unwrap();
    let keys = |ca: &str| format!("backend_tls: {{ ca: {} }}", lab.dir().join(ca).display());
    let with = |ca: &str| {
        let pem = certificates(&lab.dir().join("lb.pem"));
        body("", &pem, &[("east-1", &keys(ca))], &ROUTES)
    };
    host.restart();
    sb.reload(&with("other.pem"));
    assert_eq!(client.get("a.test", "/").status, 503);
    let is_told = |told: &str| {
        let fault = || sb.host("east-1")["tls_fault"].as_str().map(str::to_owned);
        eventually(SOON, || fault().is_some_and(|fault| fault.starts_with(told)))
    };
    let told = "its certificate is taken only if it is in `backend_tls.ca` itself";
    assert!(is_told(told), "{}", sb.host("east-1"));
    make(&lab, "version 1");
    host.restart();
    assert_eq!(client.get("a.test", "/").status, 503);
    let told = "its certificate is of X.509 version 1, and no authority of `backend_tls.ca` has signed it";
    assert!(is_told(told), "{}", sb.host("east-1"));
    sb.reload(&with("host.crt"));
    assert!(eventually(SOON, || client.get("a.test", "/").status == 200));
    assert!(eventually(SOON, || sb.host("east-1")["tls_fault"].is_null()));
    let log = sb.proc.log();
    assert_eq!(log.matches("Host is not trusted").count(), 3, "{log}");
    assert!(log.contains("\"asked\":\"a.test\""), "{log}");
}

//! Certificates that come, change and go while the balancer runs, and some that cannot be used.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::scene::{body, certificate, connect, is_shown, trusting, try_connect};
use crate::http::request::scene::WebHost;
use crate::lab::{Lab, SOON, Signalbox, StopOnDrop, eventually, lab_test, signalbox};

const ROUTE: &str = "{ host: a.test, clusters: { east-1: 1 } }";

fn text(certificates: &str) -> String {
    let extra = format!("certificates: [{certificates}]");
    body(
        ", termination: edge, strict_sni: true",
        &extra,
        &[("east-1", "")],
        &[ROUTE],
    )
}

#[lab_test]
fn a_certificate_directory_is_watched_and_no_handshake_fails() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let directory = lab.dir().join("certs.d");
    std::fs::create_dir(&directory).unwrap();
    let sb = Signalbox::start(&lab, &text(&format!("{{ directory: {} }}", directory.display())));
    sb.wait_healthy(&["east-1"]);
    let pems: Vec<_> = (0..50)
        .map(|n| certificate(&lab, &format!("lb-{n}"), &["a.test"]))
        .collect();
    let install = |pem: &std::path::Path| {
        // As tools do: written beside, then renamed over.
        std::fs::copy(pem, directory.join(".new")).unwrap();
        std::fs::rename(directory.join(".new"), directory.join("a.pem")).unwrap();
    };
    let mut settings = trusting(&lab);
    // A resumed session shows the certificate of its first handshake.
    settings.resumption = rustls::client::Resumption::disabled();
    let settings = Arc::new(settings);
    let none = try_connect(&lab, "a.test", Arc::clone(&settings));
    assert!(none.is_err(), "there is no certificate");
    install(&pems[0]);
    let shown = |pem: &std::path::Path| {
        let client = try_connect(&lab, "a.test", Arc::clone(&settings));
        client.is_ok_and(|mut client| is_shown(&mut client, pem))
    };
    assert!(eventually(SOON, || shown(&pems[0])));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let handshakes = scope.spawn(|| {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                let mut client = try_connect(&lab, "a.test", Arc::clone(&settings)).unwrap();
                assert_eq!(client.get("a.test", "/").status, 200);
                count += 1;
            }
            count
        });
        let stop = StopOnDrop(&is_over);
        for pem in &pems[1..] {
            install(pem);
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let is_last = eventually(SOON, || shown(&pems[49]));
        drop(stop);
        assert!(handshakes.join().unwrap() > 10);
        assert!(is_last);
    });
    let listed = sb.json("/api/v1/certificates");
    assert_eq!(listed["certificates"][0]["names"], serde_json::json!(["a.test"]));
    let cli = sb.cli(&["certificates"]);
    assert!(String::from_utf8_lossy(&cli.stdout).contains("a.pem"), "{cli:?}");
    // Half a file: the previous certificate stays, and the mistake is shown.
    std::fs::write(directory.join("a.pem"), "-----BEGIN CERTIFICATE-----\nhalf").unwrap();
    let errors = || sb.json("/api/v1/certificates")["errors"].as_array().map_or(0, Vec::len);
    assert!(eventually(SOON, || errors() == 1));
    assert!(shown(&pems[49]));
    std::fs::remove_file(directory.join("a.pem")).unwrap();
    assert!(eventually(SOON, || {
        try_connect(&lab, "a.test", Arc::clone(&settings)).is_err()
    }));
    assert_eq!(errors(), 0);
}

#[lab_test]
fn a_configuration_with_an_unusable_certificate_is_refused() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let (pem, other) = (
        certificate(&lab, "lb", &["a.test"]),
        certificate(&lab, "other", &["b.test"]),
    );
    let sb = Signalbox::start(&lab, &text(&format!("{{ cert: {} }}", pem.display())));
    sb.wait_healthy(&["east-1"]);
    assert_eq!(connect(&lab, "a.test").get("a.test", "/").status, 200);
    let wrong = text(&format!("{{ cert: {}, key: {} }}", pem.display(), other.display()));
    sb.write(&wrong);
    let refused = sb.unix("POST", "/api/v1/reload", "");
    assert_ne!(refused.status, 200);
    assert!(refused.body.contains("lb.pem"), "{}", refused.body);
    assert_eq!(
        connect(&lab, "a.test").get("a.test", "/").status,
        200,
        "the last good state stays"
    );
    let file = signalbox::write_config(&lab, "wrong", &wrong);
    let checked = signalbox::check(&file);
    assert!(!checked.status.success(), "{checked:?}");
    assert!(
        String::from_utf8_lossy(&checked.stderr).contains("lb.pem"),
        "{checked:?}"
    );
}

#[lab_test]
fn certificates_come_and_go_by_api_and_outlive_the_process() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let text = body(", termination: edge, strict_sni: true", "", &[("east-1", "")], &[ROUTE]);
    let mut sb = Signalbox::start(&lab, &text);
    sb.wait_healthy(&["east-1"]);
    let (first, second) = (
        certificate(&lab, "first", &["a.test"]),
        certificate(&lab, "second", &["a.test"]),
    );
    let mut settings = trusting(&lab);
    settings.resumption = rustls::client::Resumption::disabled();
    let settings = Arc::new(settings);
    let shown = |pem: &std::path::Path| {
        let client = try_connect(&lab, "a.test", Arc::clone(&settings));
        client.is_ok_and(|mut client| is_shown(&mut client, pem))
    };
    let cli = |sb: &Signalbox, words: &[&str]| {
        let output = sb.cli(&[&["certificates"], words].concat());
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    };
    for pem in [&first, &second] {
        let (is_done, said) = cli(&sb, &["put", "a.test", "--cert", pem.to_str().unwrap()]);
        assert!(is_done && said.contains("in force"), "{said}");
        // Without a wait: when the answer came, the certificate was already in use.
        assert!(shown(pem));
    }
    // An unusable certificate changes nothing. No text of the request comes back.
    let pem = std::fs::read_to_string(&first).unwrap();
    let other_key = std::fs::read_to_string(&second).unwrap();
    let key = other_key.find("-----BEGIN PRIVATE KEY-----").expect("a key");
    let certificate_alone = &pem[pem.find("-----BEGIN CERTIFICATE-----").unwrap()..];
    let certificate_alone = &certificate_alone[..certificate_alone.find("-----END CERTIFICATE-----").unwrap() + 26];
    for (name, body, status) in [
        ("a.test", serde_json::json!({ "certificate": certificate_alone }), 422),
        (
            "a.test",
            serde_json::json!({ "certificate": certificate_alone, "key": other_key[key..] }),
            422,
        ),
        ("a.test", serde_json::json!({ "certificates": pem }), 400),
        ("..%2Fx", serde_json::json!({ "certificate": pem }), 400),
    ] {
        let answer = sb.unix("PUT", &format!("/api/v1/certificates/{name}"), &body.to_string());
        assert_eq!(answer.status, status, "{}", answer.body);
        assert!(!answer.body.contains("BEGIN"), "{}", answer.body);
        assert!(shown(&second));
    }
    // Only the admin socket takes them.
    let over_tcp = sb.admin("DELETE", "/api/v1/certificates/a.test", "");
    assert!(matches!(over_tcp.status, 403..=405), "{}", over_tcp.status);
    let mode = |path: std::path::PathBuf| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    };
    let directory = lab.dir().join("certificates");
    assert_eq!(
        (mode(directory.clone()), mode(directory.join("a.test.pem"))),
        (0o700, 0o600)
    );
    sb.kill9();
    let sb = Signalbox::start(&lab, &text);
    sb.wait_healthy(&["east-1"]);
    assert!(shown(&second));
    let (is_done, said) = cli(&sb, &["remove", "a.test"]);
    assert!(is_done && said.contains("removed"), "{said}");
    assert!(!shown(&second), "it is gone when the answer comes");
    let (is_done, said) = cli(&sb, &["remove", "a.test"]);
    assert!(!is_done && said.contains("no certificate of this name"), "{said}");
}

#[lab_test]
fn certificates_that_clients_refuse_are_warned_of() {
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let old = lab.dir().join("old.pem");
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2020, 2, 3);
    let made = params.self_signed(&key).unwrap();
    std::fs::write(&old, made.pem() + &key.serialize_pem()).unwrap();
    let text = text(&format!("{{ cert: {} }}", old.display()));
    let told = "old.pem: the certificate has expired: it was valid until 2020-02-03T00:00:00Z";
    let checked = signalbox::check(&signalbox::write_config(&lab, "old", &text));
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(
        checked.status.success() && said.contains("warning: certificate"),
        "{said}"
    );
    assert!(said.contains(told), "{said}");
    let sb = Signalbox::start(&lab, &text);
    sb.wait_healthy(&["east-1"]);
    assert!(eventually(SOON, || sb.proc.log().contains(told)), "{}", sb.proc.log());
    // The certificate is put under a name that it is not for.
    let good = certificate(&lab, "good", &["a.test", "*.c.test"]);
    for (name, is_for) in [("a.test", true), ("x.c.test", true), ("b.test", false), ("wild", true)] {
        let put = sb.cli(&["certificates", "put", name, "--cert", good.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&put.stderr);
        assert!(put.status.success(), "{said}");
        assert_eq!(
            said.contains(&format!("does not cover {name}")),
            !is_for,
            "{name}: {said}"
        );
    }
    let put = sb.cli(&["certificates", "put", "a.test", "--cert", old.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&put.stderr);
    assert!(said.contains("warning: the certificate has expired"), "{said}");
}

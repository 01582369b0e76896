//! Aliases of applications, whose certificates arrive by routing events.

use std::process::Command;
use std::sync::Arc;

use super::scene::{HTTPS, certificate, is_shown, trusting, try_connect};
use crate::http::request::scene::WebHost;
use crate::lab::{Lab, SOON, Signalbox, eventually, lab_test};
use crate::sources::applications::{endpoint, event, post};

/// Text as a value of YAML in quotes.
fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

#[lab_test]
fn an_alias_is_served_with_its_events_certificate_until_removed() {
    let lab = Lab::new();
    let _gear = WebHost::start(&lab, "east-1");
    let directory = lab.dir().join("aliases");
    let sb = Signalbox::start(
        &lab,
        &format!(
            "routing_events: {{ domain: cloud.test, certificates: {} }}\nclusters: []\nlisteners:\n  \
             - {{ name: https, protocol: https, listen: [\"{HTTPS}\"], termination: edge, strict_sni: true }}\n",
            directory.display()
        ),
    );
    // The key is encrypted, as the routing daemon of OpenShift 2 passed keys on.
    let pem = certificate(&lab, "shop", &["shop.test", "bank.test"]);
    let encrypted = Command::new("openssl")
        .args(["pkcs8", "-topk8", "-passout", "pass:secret", "-in"])
        .arg(&pem)
        .output()
        .unwrap();
    assert!(encrypted.status.success(), "{encrypted:?}");
    let text = std::fs::read_to_string(&pem).unwrap();
    let chain = &text[..text.find("-----BEGIN PRIVATE").unwrap()];
    let ssl = format!(
        ":alias: shop.test\n:ssl: {}\n:private_key: {}\n:pass_phrase: secret\n",
        quoted(chain),
        quoted(&String::from_utf8(encrypted.stdout).unwrap())
    );
    post(&sb, &(event("create_application", "") + &endpoint("g1", "10.2.0.2:80")));
    post(&sb, &event("add_alias", ":alias: shop.test\n"));
    let settings = Arc::new(trusting(&lab));
    assert!(try_connect(&lab, "shop.test", Arc::clone(&settings)).is_err());
    post(&sb, &event("add_ssl", &ssl));
    let served = || {
        let client = try_connect(&lab, "shop.test", Arc::clone(&settings));
        client.is_ok_and(|mut client| is_shown(&mut client, &pem) && client.get("shop.test", "/").status == 200)
    };
    assert!(eventually(SOON, served), "{}", sb.json("/api/v1/certificates"));
    let urls = || sb.json("/api/v1/applications/demo/phpha")["urls"].clone();
    assert_eq!(urls(), serde_json::json!(["https://shop.test/"]));
    // The owner of one alias does not answer for other names in its certificate.
    assert!(try_connect(&lab, "bank.test", Arc::clone(&settings)).is_err());
    post(&sb, &event("remove_ssl", ":alias: shop.test\n"));
    let is_refused = || try_connect(&lab, "shop.test", Arc::clone(&settings)).is_err();
    assert!(eventually(SOON, is_refused));
    assert_eq!(urls(), serde_json::json!([]), "no certificate");
    assert_eq!(sb.json("/api/v1/certificates")["certificates"], serde_json::json!([]));
}

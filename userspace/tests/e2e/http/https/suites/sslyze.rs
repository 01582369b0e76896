//! sslyze against a listener that ends TLS: each profile agrees with Mozilla's recommendation of that name.

use super::program;
use crate::http::https::scene::{body, certificate, certificates};
use crate::http::request::scene::WebHost;
use crate::lab::{Lab, Signalbox, privileged};

const PROGRAM: &str = "SIGNALBOX_SSLYZE";

/// Findings on a certificate that no authority has signed, and that is valid for long.
const OF_CERTIFICATE: [&str; 2] = ["certificate_path_validation", "maximum_certificate_lifespan"];

#[test]
fn sslyze_finds_the_profiles_to_be_mozillas() {
    const TEST: &str = "sslyze_finds_the_profiles_to_be_mozillas";
    if !privileged(TEST) {
        return;
    }
    let Some(program) = program(TEST, PROGRAM) else { return };
    let lab = Lab::new();
    let _east = WebHost::start(&lab, "east-1");
    let pem = certificate(&lab, "lb", &["a.test"]);
    let text = |profile: &str| {
        let extra = format!("{}\ntls: {{ profile: {profile} }}", certificates(&pem));
        let route = "{ host: a.test, clusters: { east-1: 1 }, tls: { termination: edge } }";
        body("", &extra, &[("east-1", "")], &[route])
    };
    let sb = Signalbox::start(&lab, &text("intermediate"));
    sb.wait_healthy(&["east-1"]);
    // Findings of a profile, except those of the certificate, which the test has made.
    let findings = |profile: &str| -> Vec<String> {
        let mut command = lab.client.command(&program);
        command.args(["--mozilla_config", profile, "a.test:443{10.1.0.1}"]);
        let said = command.output().unwrap();
        let text = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
        let verdict = text.find("COMPLIANCE AGAINST TLS CONFIGURATION");
        let verdict = text[verdict.unwrap_or_else(|| panic!("{text}"))..].to_owned();
        assert!(verdict.contains("a.test:443"), "{text}");
        let lines = verdict.lines().filter_map(|line| line.trim().strip_prefix("* "));
        let of_server = lines.filter(|line| !OF_CERTIFICATE.iter().any(|finding| line.starts_with(finding)));
        of_server.map(str::to_owned).collect()
    };
    assert_eq!(findings("intermediate"), Vec::<String>::new());
    // The suite can distinguish them.
    let found = findings("modern");
    assert!(found.iter().any(|line| line.starts_with("tls_versions")), "{found:?}");
    sb.reload(&text("modern"));
    assert_eq!(findings("modern"), Vec::<String>::new());
}

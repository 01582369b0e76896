//! Debian's `openssl s_client`.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use crate::fixtures::Authority;
use crate::server::{Server, Setup, source};

/// Connects and returns all that the client prints.
pub(crate) fn s_client(address: SocketAddr, arguments: &str) -> String {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &address.to_string()]);
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    let output = command.output().unwrap();
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn server(root: &Authority) -> Server {
    let mut default = source("default", &root.ecdsa(&["default.test"]));
    default.is_default = true;
    let sources = [
        source("a", &root.ecdsa(&["a.test"])),
        source("a, RSA", &root.rsa(&["a.test"])),
        source("w", &root.rsa(&["*.w.test"])),
        default,
    ];
    Setup::new(&sources).start()
}

#[test]
fn openssl_gets_a_certificate_by_name_and_signature_algorithm() {
    let root = Authority::root("root");
    let server = server(&root);
    let ca = std::env::temp_dir().join(format!("signalbox-tls-root-{}.pem", std::process::id()));
    std::fs::write(&ca, &root.pem).unwrap();
    let ca_file = format!("-CAfile {} -verify_return_error", ca.display());
    for (arguments, expected) in [
        (
            "-servername a.test -verify_hostname a.test",
            "Peer signature type: ECDSA",
        ),
        (
            "-servername a.test -verify_hostname a.test -sigalgs rsa_pss_rsae_sha256:ECDSA+SHA256",
            "Peer signature type: ECDSA",
        ),
        (
            "-servername x.w.test -verify_hostname x.w.test",
            "Peer signature type: RSA-PSS",
        ),
        (
            "-servername unknown.test -verify_hostname default.test",
            "Peer signature type: ECDSA",
        ),
        (
            "-noservername -verify_hostname default.test",
            "Peer signature type: ECDSA",
        ),
        (
            "-servername a.test -tls1_2 -cipher ECDHE-RSA-AES128-GCM-SHA256",
            "Peer signature type: RSA-PSS",
        ),
        (
            "-servername a.test -tls1_2 -cipher ECDHE-ECDSA-CHACHA20-POLY1305",
            "Peer signature type: ECDSA",
        ),
    ] {
        let text = s_client(server.address, &format!("{arguments} {ca_file}"));
        assert!(text.contains(expected), "{arguments}: {text}");
        assert!(text.contains("Verify return code: 0 (ok)"), "{arguments}: {text}");
    }
    std::fs::remove_file(&ca).unwrap();
}

#[test]
fn openssl_that_verifies_only_rsa_gets_the_rsa_certificate() {
    let root = Authority::root("root");
    let server = server(&root);
    let text = s_client(server.address, "-servername a.test -sigalgs rsa_pss_rsae_sha256");
    assert!(text.contains("Peer signature type: RSA-PSS"), "{text}");
}

#[test]
fn openssl_is_told_that_strict_sni_does_not_know_the_name() {
    let root = Authority::root("root");
    let mut setup = Setup::new(&[source("a", &root.ecdsa(&["a.test"]))]);
    setup.strict_sni = true;
    let server = setup.start();
    let text = s_client(server.address, "-servername b.test");
    assert!(
        text.contains("tlsv1 unrecognized name") && text.contains("alert number 112"),
        "{text}"
    );
}

#[test]
fn openssl_resumes_on_another_balancer() {
    let root = Authority::root("root");
    let (one, other) = (server(&root), server(&root));
    for version in ["-tls1_2", "-tls1_3"] {
        let file = std::env::temp_dir().join(format!("signalbox-tls-session{version}-{}", std::process::id()));
        let first = s_client(
            one.address,
            &format!("-servername a.test {version} -ign_eof -sess_out {}", file.display()),
        );
        assert!(first.contains("New, TLSv1"), "{first}");
        let second = s_client(
            other.address,
            &format!("-servername a.test {version} -ign_eof -sess_in {}", file.display()),
        );
        assert!(second.contains("Reused, TLSv1"), "{second}");
        std::fs::remove_file(&file).unwrap();
    }
}

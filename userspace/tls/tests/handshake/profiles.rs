use signalbox_core::model::tls_profile::{KeyExchangeGroup, Profile};

use crate::fixtures::Authority;
use crate::openssl::s_client;
use crate::server::{Setup, source};

fn setup() -> Setup {
    let root = Authority::root("root");
    Setup::new(&[
        source("a", &root.ecdsa(&["a.test"])),
        source("a, RSA", &root.rsa(&["a.test"])),
    ])
}

/// Whether the handshake came about.
fn is_done(text: &str) -> bool {
    text.contains("welcome")
}

#[test]
fn intermediate_refuses_old_versions_and_suites() {
    let server = setup().start();
    for (arguments, expected) in [
        ("-tls1_3", true),
        ("-tls1_2", true),
        ("-tls1_1 -cipher DEFAULT@SECLEVEL=0", false),
        ("-tls1 -cipher DEFAULT@SECLEVEL=0", false),
        (
            "-tls1_2 -cipher ECDHE-ECDSA-AES128-SHA256:ECDHE-RSA-AES128-SHA256",
            false,
        ),
        ("-tls1_2 -cipher AES128-GCM-SHA256", false),
        ("-tls1_2 -cipher ECDHE-RSA-AES256-GCM-SHA384", true),
    ] {
        let text = s_client(server.address, &format!("-servername a.test -ign_eof {arguments}"));
        assert_eq!(is_done(&text), expected, "{arguments}: {text}");
        assert!(
            expected || text.contains("alert"),
            "refused with an alert: {arguments}: {text}"
        );
    }
}

#[test]
fn modern_has_tls_1_3_only() {
    let mut setup = setup();
    setup.policy.profile = Profile::Modern;
    let server = setup.start();
    for (arguments, expected) in [("-tls1_3", true), ("-tls1_2", false)] {
        let text = s_client(server.address, &format!("-servername a.test -ign_eof {arguments}"));
        assert_eq!(is_done(&text), expected, "{arguments}: {text}");
    }
}

#[test]
fn groups_are_those_of_the_policy() {
    let mut setup = setup();
    setup.policy.groups = vec![KeyExchangeGroup::P384];
    let server = setup.start();
    for (arguments, expected) in [
        ("-groups P-384", true),
        ("-groups X25519:P-256", false),
        ("-tls1_2 -groups X25519:P-256", false),
    ] {
        let text = s_client(server.address, &format!("-servername a.test -ign_eof {arguments}"));
        assert_eq!(is_done(&text), expected, "{arguments}: {text}");
    }
}

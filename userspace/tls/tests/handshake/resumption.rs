use std::sync::Arc;

use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, HandshakeKind, SupportedProtocolVersion};
use signalbox_tls::provider::provider;

use crate::client::{config_with, connect};
use crate::fixtures::Authority;
use crate::server::{Setup, source};

fn client(root: &Authority, version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    Arc::new(config_with(root, provider(), &[version], None))
}

fn setup(root: &Authority) -> Setup {
    Setup::new(&[
        source("a", &root.ecdsa(&["a.test"])),
        source("b", &root.ecdsa(&["b.test"])),
    ])
}

#[test]
fn a_session_resumes_on_another_balancer_with_the_same_secret() {
    let root = Authority::root("root");
    let (one, other) = (setup(&root).start(), setup(&root).start());
    for version in [&TLS12, &TLS13] {
        let client = client(&root, version);
        let first = connect(&client, one.address, "a.test").unwrap();
        assert_ne!(first.kind, HandshakeKind::Resumed);
        let second = connect(&client, other.address, "a.test").unwrap();
        assert_eq!((second.kind, second.version), (HandshakeKind::Resumed, version.version));
    }
}

#[test]
fn a_session_does_not_resume_with_another_secret_or_policy() {
    let root = Authority::root("root");
    let one = setup(&root).start();
    let (mut stranger, mut admin) = (setup(&root), setup(&root));
    stranger.secret = [8; 32];
    admin.policy.label = "admin".to_owned();
    for setup in [stranger, admin] {
        let other = setup.start();
        for version in [&TLS12, &TLS13] {
            let client = client(&root, version);
            connect(&client, one.address, "a.test").unwrap();
            let second = connect(&client, other.address, "a.test").unwrap();
            assert_ne!(second.kind, HandshakeKind::Resumed, "{:?}", version.version);
        }
    }
}

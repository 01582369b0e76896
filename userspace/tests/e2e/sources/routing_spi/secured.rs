//! A broker that wants TLS, a client certificate and a password.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use signalbox_core::discovered::spi::{AppChange, RoutingEvent};
use signalbox_core::model::{BrokerTls, Login, RoutingEvents};

use super::activemq::{ActiveMq, LONG, Scratch, available};
use super::consumer::{Consumer, QUEUE, runtime, settings};
use super::naive::ruby;
use super::storm::key;
use crate::kube_api::watching::view_of;
use crate::lab::eventually;

const USERS: &str = r#"<plugins><simpleAuthenticationPlugin><users>
  <authenticationUser username="routinginfo" password="routinginfopasswd" groups="users"/>
</users></simpleAuthenticationPlugin></plugins>"#;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// `NAME.pem` and `NAME.key`.
fn issue(authority: &Authority, directory: &Path, name: &str, host: &str) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![host.to_owned()])
        .unwrap()
        .signed_by(&key, authority)
        .unwrap();
    std::fs::write(directory.join(format!("{name}.pem")), certificate.pem()).unwrap();
    std::fs::write(directory.join(format!("{name}.key")), key.serialize_pem()).unwrap();
}

fn run(directory: &Path, line: &str) {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap())
        .args(words)
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{line}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_broker_is_asked_who_it_is_and_told_who_we_are() {
    if !available("a_broker_is_asked_who_it_is_and_told_who_we_are") {
        return;
    }
    let (files, scratch) = (Scratch::new(), Scratch::new());
    let (at, ours) = (files.path(), authority());
    std::fs::write(at.join("ca.pem"), ours.pem()).unwrap();
    std::fs::write(at.join("other.pem"), authority().pem()).unwrap();
    std::fs::write(at.join("password"), "routinginfopasswd\n").unwrap();
    std::fs::write(at.join("wrong"), "guess\n").unwrap();
    issue(&ours, at, "broker", "127.0.0.1");
    issue(&ours, at, "me", "signalbox.example");
    run(
        at,
        "openssl pkcs12 -export -in broker.pem -inkey broker.key -out broker.p12 -passout pass:secret",
    );
    run(
        at,
        "keytool -importcert -noprompt -file ca.pem -keystore trust.p12 -storetype PKCS12 -storepass secret",
    );
    let store = |name: &str| format!("file:{}/{name}.p12", at.display());
    let context = format!(
        "{USERS}<sslContext><sslContext keyStore=\"{}\" keyStoreType=\"PKCS12\" keyStorePassword=\"secret\" \
         trustStore=\"{}\" trustStoreType=\"PKCS12\" trustStorePassword=\"secret\"/></sslContext>",
        store("broker"),
        store("trust")
    );
    let broker = ActiveMq::start_with(scratch, &context, "stomp+ssl", "?transport.needClientAuth=true");

    let with = |ca: &str, identity: bool, password: &str| RoutingEvents {
        tls: Some(BrokerTls {
            ca: at.join(ca),
            identity: identity.then(|| (at.join("me.pem"), at.join("me.key"))),
        }),
        login: Some(Login {
            user: "routinginfo".into(),
            password_file: at.join(password),
        }),
        ..settings(&[broker.port], QUEUE)
    };
    let runtime = runtime();
    for (refused, part) in [
        (with("other.pem", true, "password"), "TLS: invalid peer certificate"),
        // TLS 1.3 reports it only with the first bytes that are read.
        (with("ca.pem", false, "password"), "ertificate"),
        (
            with("ca.pem", true, "wrong"),
            "the broker answers \"User name [routinginfo] or password is invalid.\"",
        ),
        (with("ca.pem", true, "nowhere"), "nowhere: No such file"),
        (with("none.pem", true, "password"), "none.pem: "),
    ] {
        let consumer = Consumer::start(&runtime, refused, &Arc::default());
        let error = || {
            view_of(consumer.spi.status())["last_error"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        assert!(eventually(LONG, || !error().is_empty()));
        assert!(error().contains(part), "{part}: {}", error());
        assert!(!consumer.spi.status().connected());
        consumer.kill(&runtime);
    }

    let consumer = Consumer::start(&runtime, with("ca.pem", true, "password"), &Arc::default());
    let connected = eventually(LONG, || consumer.spi.status().connected());
    assert!(connected, "{}", view_of(consumer.spi.status()));
    let event = RoutingEvent {
        app: key("phpha"),
        change: AppChange::AddAlias("foo.example.com".into()),
    };
    runtime.block_on(consumer.spi.apply_text(&ruby(&event))).unwrap();
    assert_eq!(consumer.told.lock().unwrap().len(), 1);
}

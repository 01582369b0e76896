use rcgen::{KeyPair, date_time_ymd};

use super::*;
use crate::fixtures::{Authority, Issued, named, params};
use crate::pem::PemError;
use crate::store::CertificateStore;

/// A day of 2027.
const NOW: u64 = 1_800_000_000;

fn source(chain: &str, key: &str) -> CertificateSource {
    CertificateSource {
        label: "www.crt".to_owned(),
        names: Vec::new(),
        chain: Zeroizing::new(chain.into()),
        key: Zeroizing::new(key.into()),
        pass_phrase: None,
        is_default: false,
    }
}

fn load(chain: &str, key: &str) -> Certificate {
    Certificate::load(&source(chain, key)).unwrap()
}

fn fault(chain: &str, key: &str) -> CertificateFault {
    Certificate::load(&source(chain, key)).unwrap_err().fault
}

fn texts(names: &[HostnamePattern]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

#[test]
fn a_chain_is_put_in_order_and_strangers_are_left_out() {
    let root = Authority::root("root");
    let one = root.intermediate("one");
    let two = one.intermediate("two");
    let Issued { cert, key } = two.ecdsa(&["a.test"]);
    let right = load(&[&*cert, &two.pem, &one.pem].concat(), &key);
    assert_eq!(right.warnings(NOW).collect::<Vec<_>>(), []);
    assert_eq!((right.subject.as_str(), right.issuer.as_str()), ("CN=leaf", "CN=two"));
    let mixed = load(&[&*one.pem, &cert, &two.pem].concat(), &key);
    assert_eq!(mixed.warnings(NOW).collect::<Vec<_>>(), [Warning::Reordered]);
    assert_eq!(mixed.key.cert, right.key.cert);
    let stranger = Authority::root("stranger");
    let long = load(&[&*cert, &two.pem, &one.pem, &root.pem, &stranger.pem].concat(), &key);
    let subjects = vec!["CN=stranger".to_owned()];
    assert_eq!(
        long.warnings(NOW).collect::<Vec<_>>(),
        [Warning::NotOfChain { subjects }]
    );
    assert_eq!(long.key.cert.len(), 4);
}

#[test]
fn mistakes_are_named() {
    let root = Authority::root("root");
    let Issued { cert, key } = root.ecdsa(&["a.test"]);
    let other = root.ecdsa(&["a.test"]).key;
    let subject = "CN=leaf".to_owned();
    assert_eq!(fault(&cert, &other), CertificateFault::WrongKey { subject });
    assert_eq!(fault(&key, &key), CertificateFault::Missing);
    assert_eq!(fault(&cert, &cert), CertificateFault::Key(KeyError::Missing));
    assert!(matches!(
        fault(&cert[..200], &key),
        CertificateFault::Pem(PemError::NoEnd { .. })
    ));
    let hollow = "\n-----BEGIN CERTIFICATE-----\nMAMCAQA=\n-----END CERTIFICATE-----\n";
    assert_eq!(fault(hollow, &key), CertificateFault::NotX509 { line: 2 });
    let mut nameless = params(&[]);
    nameless.distinguished_name = named("not a host name");
    let own = KeyPair::generate().unwrap();
    let nameless = root.issue(nameless, &own);
    assert_eq!(fault(&nameless.cert, &nameless.key), CertificateFault::NoName);
    let default = CertificateSource {
        is_default: true,
        ..source(&nameless.cert, &nameless.key)
    };
    assert_eq!(Certificate::load(&default).unwrap().names, []);
    let error = Certificate::load(&source(&cert, &other)).unwrap_err().to_string();
    assert!(
        error.starts_with("certificate www.crt: the private key does not belong"),
        "{error}"
    );
}

#[test]
fn the_common_name_is_used_only_without_alternative_names() {
    let root = Authority::root("root");
    let Issued { cert, key } = root.ecdsa(&["A.test", "*.b.test", "10.0.0.1"]);
    let certificate = load(&cert, &key);
    assert_eq!(texts(&certificate.names), ["a.test", "*.b.test"]);
    assert_eq!(certificate.warnings(NOW).collect::<Vec<_>>(), []);
    let mut old = params(&[]);
    old.distinguished_name = named("old.test");
    let own = KeyPair::generate().unwrap();
    let old = root.issue(old, &own);
    let old = load(&old.cert, &old.key);
    assert_eq!(texts(&old.names), ["old.test"]);
    let name = "old.test".to_owned();
    assert_eq!(old.warnings(NOW).collect::<Vec<_>>(), [Warning::CommonName { name }]);
}

#[test]
fn a_source_with_names_answers_for_no_others() {
    let root = Authority::root("root");
    let Issued { cert, key } = root.ecdsa(&["a.test", "*.victim.test"]);
    let mut source = source(&cert, &key);
    let name = |text: &str| HostnamePattern::parse(text).unwrap();
    source.names = vec![name("a.test"), name("b.test"), name("*.c.test"), name("x.victim.test")];
    let certificate = Certificate::load(&source).unwrap();
    assert_eq!(certificate.names, source.names);
    assert_eq!(texts(&certificate.covers), ["a.test", "*.victim.test"]);
    let not_covered = |name: &str| Warning::NotCovered { name: name.to_owned() };
    assert_eq!(
        certificate.warnings(NOW).collect::<Vec<_>>(),
        [not_covered("b.test"), not_covered("*.c.test")]
    );
}

#[test]
fn kinds_of_keys_are_told_apart() {
    let root = Authority::root("root");
    let (ecdsa, rsa) = (root.ecdsa(&["a.test"]), root.rsa(&["a.test"]));
    assert_eq!(load(&ecdsa.cert, &ecdsa.key).kind, KeyKind::Ecdsa);
    assert_eq!(load(&rsa.cert, &rsa.key).kind, KeyKind::Rsa);
    let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let ed25519 = root.issue(params(&["a.test"]), &key);
    assert_eq!(load(&ed25519.cert, &ed25519.key).kind, KeyKind::Ed25519);
}

#[test]
fn bad_certificates_do_not_affect_good_ones_ranked_by_validity() {
    let root = Authority::root("root");
    let issue = |from: i32, to: i32| {
        let mut params = params(&["a.test"]);
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
        let key = KeyPair::generate().unwrap();
        let Issued { cert, key } = root.issue(params, &key);
        let mut source = source(&cert, &key);
        source.label = format!("{from}-{to}");
        source
    };
    let year = |year: u64| (year - 1970) * 31_556_952;
    let mut bad = issue(2020, 2050);
    bad.key = Zeroizing::new(Vec::new());
    let sources = [issue(2020, 2022), issue(2021, 2023), issue(2024, 2030), bad];
    let (store, errors) = CertificateStore::load(&sources, year(2021) + 86_400);
    assert_eq!(errors.len(), 1);
    assert_eq!(
        (errors[0].label.as_str(), &errors[0].fault),
        ("2020-2050", &KeyError::Missing.into())
    );
    assert_eq!((store.certificates().len(), store.names()), (3, 1));
    let name = signalbox_core::wire::hostname::Hostname::parse(b"a.test").unwrap();
    let best = |store: &CertificateStore| store.named(&name).next().unwrap().label.clone();
    assert_eq!(best(&store), "2021-2023");
    let mut at = store.next_change().unwrap();
    let mut seen = Vec::new();
    for _ in 0..4 {
        let store = store.at(at);
        seen.push(best(&store));
        let Some(next) = store.next_change() else { break };
        assert!(next > at);
        at = next;
    }
    // 2020-2022 ends; 2021-2023 ends; 2024-2030 begins; 2024-2030 ends.
    assert_eq!(seen, ["2021-2023", "2021-2023", "2024-2030", "2024-2030"]);
    assert_eq!(store.at(at).next_change(), None);
}

#[test]
fn a_certificate_out_of_its_time_is_warned_of() {
    let root = Authority::root("root");
    let warned = |from: i32, to: i32| {
        let mut params = params(&["a.test"]);
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
        let Issued { cert, key } = root.issue(params, &KeyPair::generate().unwrap());
        let certificate = load(&cert, &key);
        let warnings = certificate.warnings(NOW);
        warnings.map(|warning| warning.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(warned(2020, 2030), [""; 0]);
    assert_eq!(
        warned(2020, 2025),
        ["the certificate has expired: it was valid until 2025-01-01T00:00:00Z"]
    );
    assert_eq!(
        warned(2029, 2030),
        ["the certificate is not valid yet: it is from 2029-01-01T00:00:00Z on"]
    );
}

#[test]
fn debug_shows_nothing_of_a_key() {
    let Issued { cert, key } = Authority::root("root").ecdsa(&["a.test"]);
    let mut source = source(&cert, &key);
    source.pass_phrase = Some(Zeroizing::new(b"sesame".to_vec()));
    let certificate = Certificate::load(&source).unwrap();
    let store = CertificateStore::new(vec![Arc::new(certificate.clone())], 0);
    let shown = format!("{source:?} {certificate:?} {store:?}");
    let line = key.lines().nth(1).unwrap();
    assert!(
        !shown.contains(line) && !shown.contains("sesame") && !shown.contains("45, 45, 45"),
        "{shown}"
    );
    assert!(!shown.contains("key:"), "{shown}");
    // No error has the key's text, either.
    let cut = &key[..key.len() / 2];
    for key in [
        cut,
        &key.replace('A', "B"),
        &key.replace("PRIVATE", "ENCRYPTED PRIVATE"),
    ] {
        source.key = Zeroizing::new(key.into());
        if let Err(error) = Certificate::load(&source) {
            assert!(!format!("{error:?} {error}").contains(&line[..16]), "{error:?}");
        }
    }
}

#[test]
fn a_signature_that_clients_refuse_is_told() {
    let mut openssl = std::process::Command::new("openssl");
    openssl.args("req -x509 -newkey rsa:2048 -nodes -sha1 -subj /CN=old -keyout - -out -".split(' '));
    let output = openssl
        .args(["-addext", "subjectAltName=DNS:old.test"])
        .output()
        .unwrap();
    let both = String::from_utf8(output.stdout).unwrap();
    let certificate = load(&both, &both);
    assert_eq!(texts(&certificate.names), ["old.test"]);
    let warnings: Vec<_> = certificate.warnings(certificate.not_before).collect();
    assert_eq!(warnings, [Warning::WeakSignature]);
}

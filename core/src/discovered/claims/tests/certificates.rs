//! Where TLS of a name ends, and with which certificate.

use super::*;
use crate::discovered::claims::NamedCertificate;
use crate::discovered::discovery::CertificateOrigin;
use crate::model::tls::Termination;

/// Object whose TLS ends at the routers, with a certificate in a Secret or, without a name, its own.
fn ended(object: Object, secret: Option<&str>, hostnames: &[&str]) -> Object {
    let certificate = NamedCertificate {
        hostnames: hostnames.iter().map(ToString::to_string).collect(),
        secret: secret.map(str::to_owned),
    };
    Object {
        certificates: vec![certificate],
        ends_tls: object.kind == ObjectKind::Route,
        ..object
    }
}

fn tls_of(objects: &[Object], takes_certificates: bool) -> Vec<(Option<Termination>, Option<CertificateOrigin>)> {
    let rules = ClaimRules {
        takes_certificates,
        wildcards: true,
        ..ClaimRules::default()
    };
    let found = discover(seen(objects), &rules);
    found
        .routes
        .into_iter()
        .map(|claim| (claim.termination, claim.certificate))
        .collect()
}

fn origin(name: &str, is_secret: bool) -> Option<CertificateOrigin> {
    Some(CertificateOrigin {
        namespace: "shop".into(),
        name: name.into(),
        is_secret,
    })
}

#[test]
fn a_tls_terminating_route_ends_here_if_certificates_are_wanted() {
    let web = ended(route(1, "shop/web", "a.test"), None, &[]);
    let found = tls_of(std::slice::from_ref(&web), true);
    assert_eq!(found, [(Some(Termination::Reencrypt), origin("web", false))]);
    assert_eq!(tls_of(&[web], false), [(None, None)]);
    let bare = Object {
        ends_tls: true,
        ..route(1, "shop/web", "a.test")
    };
    assert_eq!(tls_of(&[bare], true), [(Some(Termination::Reencrypt), None)]);
    assert_eq!(tls_of(&[route(1, "shop/web", "a.test")], true), [(None, None)]);
}

#[test]
fn one_tls_passthrough_route_decides_for_all_routes_of_its_name() {
    let api = Object {
        path: Some("/api".into()),
        ..ended(route(1, "shop/api", "a.test"), None, &[])
    };
    let web = Object {
        passthrough: true,
        ..route(2, "shop/web", "a.test")
    };
    for takes in [false, true] {
        let found = tls_of(&[api.clone(), web.clone()], takes);
        assert_eq!(found, [(Some(Termination::Passthrough), None)]);
    }
    let older = Object {
        ends_tls: true,
        ..route(0, "shop/old", "a.test")
    };
    let found = tls_of(&[api, older], true);
    assert_eq!(
        found,
        [(Some(Termination::Reencrypt), origin("api", false))],
        "the oldest that has one"
    );
}

#[test]
fn an_ingress_has_secrets_for_some_of_its_hosts() {
    let mut ingress = of_kind(ObjectKind::Ingress, route(1, "shop/web", "*.a.test"));
    ingress.hostnames.push("b.test".into());
    let named = ended(ingress.clone(), Some("s"), &["*.A.test"]);
    let secret = (Some(Termination::Reencrypt), origin("s", true));
    assert_eq!(tls_of(&[named], true), [(None, None), secret.clone()]);
    let all = ended(ingress, Some("s"), &[]);
    assert_eq!(tls_of(&[all], true), [secret.clone(), secret]);
    let tls = of_kind(ObjectKind::TlsRoute, route(1, "shop/web", "a.test"));
    assert_eq!(tls_of(&[tls], false), [(Some(Termination::Passthrough), None)]);
}

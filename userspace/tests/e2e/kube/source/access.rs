//! APIs and rights that are missing, tokens that are replaced, certificates, and servers that are no API servers.

use crate::kube_api;
use crate::kube_api::watching::view_of;

use kube_api::Api;
use kube_api::objects::{gateway_route, ingress, route};
use kube_api::watching::{Watching, count, settings};
use serde_json::{Value, json};
use signalbox_core::model::kubernetes::ApiServerAccess;

use super::{Scratch, connected, fill, noted};

#[tokio::test]
async fn a_missing_api_is_no_obstacle_and_may_come_later() {
    let (api, _server) = Api::start().await;
    fill(&api);
    api.change(|store| {
        store.objects.remove("tlsroutes");
        store.objects.remove("httproutes");
        store.moods.missing.insert("gateway.networking.k8s.io");
        // The account may not see resources that do not exist.
        store.moods.forbidden.insert("tlsroutes");
    });
    let mut watching = Watching::start(settings(&api));
    watching.settles(&api).await;
    let view = watching.stands(connected).await;
    for about in [
        "tlsroutes.gateway.networking.k8s.io",
        "httproutes.gateway.networking.k8s.io",
    ] {
        assert!(noted(&view, about, "the server does not have it"), "{view:#}");
    }
    api.change(|store| {
        store.moods.missing.clear();
        store.moods.forbidden.clear();
        store.put("tlsroutes", gateway_route(1, "shop/tls", "tls.test"));
    });
    watching.settles(&api).await;
    let view = watching.stands(|view| view["notes"] == json!({})).await;
    assert!(connected(&view));
    // The resource goes again, and its names with it.
    api.change(|store| {
        store.moods.missing.insert("gateway.networking.k8s.io");
        store.objects.remove("tlsroutes");
        store.moods.gone_in_stream = true;
        store.compact();
    });
    watching.settles(&api).await;
}

#[tokio::test]
async fn a_missing_right_is_named_and_holds_everything_back() {
    let (api, _server) = Api::start().await;
    fill(&api);
    api.change(|store| store.moods.forbidden.insert("ingresses"));
    let mut watching = Watching::start(settings(&api));
    let view = watching
        .stands(|view| count(view, "listed") >= 5 && view["last_error"].is_string())
        .await;
    let error = view["last_error"].as_str().unwrap();
    assert!(
        error.starts_with("the account may not list ingresses.networking.k8s.io (403, \"ingresses is forb"),
        "{error}"
    );
    assert!(
        error.contains("give it a role with the verbs list and watch (or leave it out by `resources`"),
        "{error}"
    );
    assert_eq!(watching.drain(), 0);
    api.change(|store| store.moods.forbidden.clear());
    watching.settles(&api).await;
    // Taken away again, all stays.
    watching.stands(connected).await;
    api.change(|store| {
        store.moods.forbidden.insert("ingresses");
        store.moods.ends = 20;
        store.put("ingresses", ingress(7, "shop/last", "last.test"));
    });
    watching.settles(&api).await;
    let told = watching.told.len();
    watching
        .stands(|view| !connected(view) && view["last_error"].as_str().unwrap().contains("may not watch ingresses"))
        .await;
    // However often the others are heard.
    let marks = count(&view_of(&watching.standing), "bookmark");
    let view = watching.stands(|view| count(view, "bookmark") > marks + 20).await;
    assert!(!connected(&view), "{view:#}");
    assert_eq!(watching.drain(), told);
}

#[tokio::test]
async fn routers_are_looked_for_where_one_may_look() {
    let (api, _server) = Api::start().await;
    fill(&api);
    api.change(|store| {
        store.delete("pods", "default", "router-1-c");
        store.moods.forbidden.insert("pods/default");
    });
    let mut watching = Watching::start(settings(&api));
    watching.settles(&api).await;
    let view = watching.stands(connected).await;
    assert!(
        noted(
            &view,
            "pods in namespace default",
            "may not list pods in namespace default"
        ),
        "{view:#}"
    );
    drop(watching);
    // A forbidden namespace does not count as one without hosts: the source has an error.
    api.change(|store| store.moods.forbidden.insert("pods/openshift-ingress"));
    let mut watching = Watching::start(settings(&api));
    let view = watching
        .stands(|view| count(view, "listed") == 4 && view["last_error"].is_string())
        .await;
    assert!(
        view["last_error"]
            .as_str()
            .unwrap()
            .contains("or say by `routers` where the router pods are"),
        "{view:#}"
    );
    assert_eq!(watching.drain(), 0);
}

#[tokio::test]
async fn a_token_that_is_replaced_is_read_again() {
    let (api, server) = Api::start().await;
    fill(&api);
    api.change(|store| store.moods.token = Some("first"));
    let file = Scratch::new("token", "first\n");
    let mut settings = settings(&api);
    settings.source.access = ApiServerAccess::Url {
        url: format!("http://{}/", api.addr),
        token: Some(file.0.clone()),
        ca: None,
    };
    let mut watching = Watching::start(settings);
    watching.settles(&api).await;
    watching.stands(connected).await;
    server.kill().await;
    api.change(|store| {
        store.moods.token = Some("second");
        store.put("routes", route(9, "shop/late", "late.test"));
    });
    let _server = api.restart().await;
    let refused = |view: &Value| view["last_error"].as_str().is_some_and(|error| error.contains("401"));
    let view = watching.stands(refused).await;
    let error = view["last_error"].as_str().unwrap();
    assert!(
        error.contains(&format!("does not accept the credentials of {}", file.0.display())),
        "{error}"
    );
    std::fs::write(&file.0, "second").unwrap();
    watching.settles(&api).await;
    watching.stands(connected).await;
}

/// Over TLS, by `url` and by a kubeconfig, and only with the right authority.
#[tokio::test]
async fn the_servers_certificate_is_checked() {
    let (ca, tls) = tls();
    let (api, _server) = Api::start_with(Some(tls)).await;
    fill(&api);
    api.change(|store| store.moods.token = Some("right"));
    let (authority, stranger) = (Scratch::new("ca", &ca), Scratch::new("stranger", &self::tls().0));
    let token = Scratch::new("tls-token", "right");
    let url = format!("https://127.0.0.1:{}", api.addr.port());
    let mut settings = settings(&api);
    let by_url = |ca: &Scratch| ApiServerAccess::Url {
        url: url.clone(),
        token: Some(token.0.clone()),
        ca: Some(ca.0.clone()),
    };
    settings.source.access = by_url(&authority);
    Watching::start(settings.clone()).settles(&api).await;

    settings.source.access = by_url(&stranger);
    let watching = Watching::start(settings.clone());
    let view = watching.stands(|view| view["last_error"].is_string()).await;
    assert!(view["last_error"].as_str().unwrap().contains("certificate"), "{view:#}");

    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "none",
        "clusters": [{"name": "c", "cluster": {"server": url, "certificate-authority": authority.0}}],
        "users": [{"name": "u", "user": {"token": "right"}}],
        "contexts": [{"name": "admin", "context": {"cluster": "c", "user": "u"}}],
    });
    let kubeconfig = Scratch::new("kubeconfig", &kubeconfig.to_string());
    let by_file = |context: &str| ApiServerAccess::Kubeconfig {
        path: kubeconfig.0.clone(),
        context: Some(context.to_owned()),
    };
    settings.source.access = by_file("admin");
    Watching::start(settings.clone()).settles(&api).await;

    settings.source.access = by_file("nobody");
    let watching = Watching::start(settings);
    let view = watching.stands(|view| view["last_error"].is_string()).await;
    let error = view["last_error"].as_str().unwrap();
    assert!(error.contains("is not usable") && error.contains("nobody"), "{error}");
}

#[tokio::test]
async fn a_url_that_is_no_api_server_is_an_error_and_changes_nothing() {
    let (api, _server) = Api::start().await;
    fill(&api);
    let mut settings = settings(&api);
    settings.source.access = ApiServerAccess::Url {
        url: format!("http://{}/not/here", api.addr),
        token: None,
        ca: None,
    };
    let mut watching = Watching::start(settings);
    let view = watching
        .stands(|view| view["last_error"].is_string() && count(view, "absent") >= 12)
        .await;
    let error = view["last_error"].as_str().unwrap();
    assert!(
        error.contains("has no pods, as every API server has: check its address"),
        "{error}"
    );
    assert_eq!(watching.drain(), 0);
}

/// An authority in PEM, and a server with a certificate of it.
fn tls() -> (String, tokio_rustls::TlsAcceptor) {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use rustls::pki_types::PrivateKeyDer;
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned()];
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )
        .unwrap();
    (
        authority.pem(),
        tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config)),
    )
}

//! Several sets of routers behind one API server: each source reports the objects that its own routers serve.

use crate::kube_api;

use kube_api::Api;
use kube_api::objects::{attached, gateway, ingress, ingress_class, namespace, route, route_of, router_of};
use kube_api::watching::{Watching, count, settings};
use serde_json::json;
use signalbox::source::kube::Settings;
use signalbox_core::model::kubernetes::{GatewayName, Resource, RouterNames};

use crate::kube::source::connected;

/// The routers `default` and `internal`, each with its own host.
fn shards(api: &Api) -> [Settings; 2] {
    api.change(|store| {
        store.put("pods", router_of("default", "router-default-a", "n1", "10.0.0.1"));
        store.put("pods", router_of("internal", "router-internal-a", "n2", "10.0.0.2"));
    });
    ["default", "internal"].map(|router| {
        let mut settings = settings(api);
        settings.source.shard.routers = RouterNames::Named(vec![router.to_owned()]);
        settings
    })
}

/// The names reported last, and the hosts.
fn told(watching: &Watching) -> (Vec<String>, Vec<&str>) {
    let learned = watching.told.last().unwrap();
    let names = learned.routes.iter().map(|claim| claim.hostname.to_string()).collect();
    (names, learned.hosts.iter().map(|host| host.name.as_str()).collect())
}

/// The names reported last, without hosts.
fn names(watching: &Watching) -> Vec<String> {
    told(watching).0
}

#[track_caller]
fn left_out(watching: &Watching, host: &str, reason: &str) {
    let learned = watching.told.last().unwrap();
    let found = learned
        .rejected
        .iter()
        .any(|one| one.hostname == host && one.reason.starts_with(reason));
    assert!(found, "{host}: {reason}: {:#?}", learned.rejected);
}

#[tokio::test]
async fn each_shard_has_its_own_routes_and_follows_a_route_that_moves() {
    let (api, _server) = Api::start().await;
    let shards = shards(&api);
    api.change(|store| {
        store.put("routes", route_of(1, "shop/web", "shop.test", &["default"]));
        store.put("routes", route_of(1, "bank/web", "bank.test", &["internal"]));
        store.put("routes", route_of(1, "both/web", "both.test", &["internal", "default"]));
        store.put("routes", route_of(1, "new/web", "new.test", &[]));
    });
    let mut sources = shards.map(Watching::start);
    for watching in &mut sources {
        watching.settles(&api).await;
        left_out(watching, "new.test", "OtherRouter: not admitted by router ");
    }
    let [default, internal] = &mut sources;
    assert_eq!(
        told(default),
        (vec!["both.test".into(), "shop.test".into()], vec!["n1"])
    );
    assert_eq!(
        told(internal),
        (vec!["bank.test".into(), "both.test".into()], vec!["n2"])
    );
    left_out(
        default,
        "bank.test",
        "OtherRouter: not admitted by router default; reported by router internal",
    );

    api.change(|store| {
        store.put("routes", route_of(1, "shop/web", "shop.test", &["internal"]));
        store.put("routes", route_of(1, "new/web", "new.test", &["default"]));
    });
    default.settles(&api).await;
    internal.settles(&api).await;
    assert_eq!(names(default), ["both.test", "new.test"]);
    assert_eq!(names(internal), ["bank.test", "both.test", "shop.test"]);
    assert_eq!(api.lists("routes"), 2, "nothing was listed again");
}

#[tokio::test]
async fn the_labels_of_namespaces_are_followed() {
    let (api, _server) = Api::start().await;
    let [mut settings, _] = shards(&api);
    settings.source.shard.namespace_labels = Some("shard=public".into());
    let labelled = |name: &str, shard: &str| namespace(name, &json!({"shard": shard}));
    api.change(|store| {
        store.put("namespaces", labelled("shop", "public"));
        store.put("namespaces", labelled("bank", "internal"));
        // The route has a status of its router from before its namespace went to another shard.
        store.put("routes", route(1, "bank/web", "bank.test"));
        store.put("routes", route_of(1, "shop/new", "new.test", &[]));
        store.put("ingresses", ingress(1, "bank/in", "in.test"));
    });
    let mut watching = Watching::start(settings);
    watching.settles(&api).await;
    assert_eq!(names(&watching), ["new.test"]);
    left_out(
        &watching,
        "bank.test",
        "OtherNamespace: its namespace does not match `shard=public`",
    );
    api.change(|store| store.put("namespaces", labelled("bank", "public")));
    watching.settles(&api).await;
    assert_eq!(names(&watching), ["bank.test", "in.test", "new.test"]);
    api.change(|store| store.put("namespaces", labelled("shop", "internal")));
    watching.settles(&api).await;
    assert_eq!(names(&watching), ["bank.test", "in.test"]);
    api.change(|store| store.delete("namespaces", "", "bank"));
    watching.settles(&api).await;
    assert_eq!(names(&watching).len(), 0);
    assert_eq!(api.lists("namespaces"), 1);
}

#[tokio::test]
async fn where_namespaces_may_not_be_read_the_routers_word_is_enough() {
    let (api, _server) = Api::start().await;
    let [mut settings, _] = shards(&api);
    settings.source.resources = Some(vec![Resource::Routes]);
    settings.source.shard.namespace_labels = Some("shard=public".into());
    api.change(|store| {
        store.moods.forbidden.insert("namespaces");
        store.put("namespaces", namespace("shop", &json!({"shard": "public"})));
        store.put("routes", route(1, "shop/web", "shop.test"));
        store.put("routes", route_of(1, "shop/new", "new.test", &[]));
    });
    let mut watching = Watching::start(settings.clone());
    watching.settles(&api).await;
    assert_eq!(names(&watching), ["shop.test"]);
    let view = watching.stands(connected).await;
    let note = view["notes"]["namespaces"].as_str().unwrap();
    assert!(
        note.contains("may not list namespaces") && note.contains("routers' word alone"),
        "{note}"
    );
    // The right is given: from then on the labels also decide.
    api.change(|store| {
        store.moods.forbidden.clear();
    });
    watching.settles(&api).await;
    assert_eq!(names(&watching), ["new.test", "shop.test"]);
    drop(watching);

    // Nothing is reported: without namespaces a Route's owner is unknown, and names would be missing.
    api.change(|store| store.moods.forbidden.insert("namespaces"));
    settings.source.shard.routers = RouterNames::Any;
    let mut watching = Watching::start(settings);
    let view = watching
        .stands(|view| count(view, "listed") == 3 && view["last_error"].is_string())
        .await;
    let error = view["last_error"].as_str().unwrap();
    assert!(error.contains("may not list namespaces (403"), "{error}");
    assert!(error.contains("or name routers by `router_name`"), "{error}");
    assert_eq!(watching.drain(), 0);
}

#[tokio::test]
async fn ingresses_of_other_classes_are_ignored_and_defaults_followed() {
    let (api, _server) = Api::start().await;
    let [mut settings, _] = shards(&api);
    settings.source.shard.routers = RouterNames::Any;
    settings.source.shard.ingress_classes = vec!["public".to_owned()];
    let of_class = |class: &str| {
        let mut object = ingress(1, &format!("shop/{class}"), &format!("{class}.test"));
        object["spec"]["ingressClassName"] = json!(class);
        object
    };
    api.change(|store| {
        store.put("ingressclasses", ingress_class("public", false));
        store.put("ingressclasses", ingress_class("nginx", true));
        store.put("ingresses", of_class("public"));
        store.put("ingresses", of_class("nginx"));
        store.put("ingresses", ingress(1, "shop/none", "none.test"));
    });
    let mut watching = Watching::start(settings.clone());
    watching.settles(&api).await;
    assert_eq!(names(&watching), ["public.test"]);
    left_out(&watching, "nginx.test", "OtherIngressClass: its class is nginx");
    left_out(
        &watching,
        "none.test",
        "OtherIngressClass: it names no class, and public is not the default one",
    );
    api.change(|store| {
        store.put("ingressclasses", ingress_class("public", true));
        store.put("ingressclasses", ingress_class("nginx", false));
        let mut nginx = of_class("nginx");
        nginx["spec"]["ingressClassName"] = json!("public");
        store.put("ingresses", nginx);
    });
    watching.settles(&api).await;
    assert_eq!(names(&watching), ["nginx.test", "none.test", "public.test"]);
    drop(watching);

    // Without the right to see classes, those that name theirs are served.
    api.change(|store| store.moods.forbidden.insert("ingressclasses"));
    let mut watching = Watching::start(settings);
    watching.settles(&api).await;
    assert_eq!(names(&watching), ["nginx.test", "public.test"]);
    let view = watching.stands(connected).await;
    let note = view["notes"]["ingressclasses.networking.k8s.io"].as_str().unwrap();
    assert!(
        note.contains("until then an Ingress without a class is left out"),
        "{note}"
    );
}

#[tokio::test]
async fn gateway_api_routes_follow_their_gateways_and_listeners() {
    let (api, _server) = Api::start().await;
    let [mut settings, _] = shards(&api);
    settings.source.wildcards = true;
    settings.source.shard.routers = RouterNames::Any;
    settings.source.shard.gateways = vec![GatewayName {
        namespace: "infra".to_owned(),
        name: "public".to_owned(),
    }];
    api.change(|store| {
        store.put("gateways", gateway("infra/public", "istio", "*.apps.test"));
        store.put("gateways", gateway("infra/internal", "istio", "*.apps.test"));
        let served = &["web.apps.test", "elsewhere.test"];
        store.put("httproutes", attached("shop/web", served, "infra/public", true));
        store.put(
            "httproutes",
            attached("shop/no", &["no.apps.test"], "infra/public", false),
        );
        store.put(
            "httproutes",
            attached("shop/in", &["in.apps.test"], "infra/internal", true),
        );
        store.put("httproutes", attached("shop/all", &[], "infra/public", true));
        // The Gateway's listener carries no TLS.
        store.put(
            "tlsroutes",
            attached("shop/tls", &["tls.apps.test"], "infra/public", true),
        );
    });
    let mut watching = Watching::start(settings.clone());
    watching.settles(&api).await;
    assert_eq!(names(&watching), ["web.apps.test", "*.apps.test"]);
    left_out(&watching, "elsewhere.test", "NoMatchingListenerHostname: ");
    left_out(&watching, "tls.apps.test", "NoMatchingListenerHostname: ");
    left_out(&watching, "no.apps.test", "RouteNotAdmitted: Told");
    left_out(&watching, "in.apps.test", "OtherGateway: its Gateway is infra/internal");
    // The listener takes other names, and a route moves to the Gateway.
    api.change(|store| {
        store.put("gateways", gateway("infra/public", "istio", "elsewhere.test"));
        store.put("httproutes", attached("shop/in", &["*.test"], "infra/public", true));
    });
    watching.settles(&api).await;
    assert_eq!(names(&watching), ["elsewhere.test"]);
    api.change(|store| store.delete("gateways", "infra", "public"));
    watching.settles(&api).await;
    assert_eq!(names(&watching).len(), 0);
    left_out(
        &watching,
        "web.apps.test",
        "OtherGateway: there is no Gateway infra/public",
    );
    assert_eq!(api.lists("gateways"), 1);
    drop(watching);

    // Named Gateways need no right to see them; those of a class do.
    api.change(|store| store.moods.forbidden.insert("gateways"));
    let mut watching = Watching::start(settings.clone());
    watching.settles(&api).await;
    assert_eq!(
        names(&watching),
        ["elsewhere.test", "tls.apps.test", "web.apps.test", "*.test"]
    );
    let view = watching.stands(connected).await;
    let note = &view["notes"]["gateways.gateway.networking.k8s.io in namespace infra"];
    assert!(
        note.as_str()
            .unwrap()
            .contains("hostnames of its listeners do not count"),
        "{note}"
    );
    drop(watching);
    settings.source.shard.gateways.clear();
    settings.source.shard.gateway_classes = vec!["istio".to_owned()];
    let mut watching = Watching::start(settings);
    let error = |view: &serde_json::Value| view["last_error"].as_str().unwrap_or_default().to_owned();
    let view = watching
        .stands(|view| count(view, "listed") == 6 && !error(view).is_empty())
        .await;
    assert!(error(&view).contains("or name the Gateways by `gateways`"), "{view:#}");
    assert_eq!(watching.drain(), 0);
    api.change(|store| {
        store.moods.forbidden.clear();
        store.put(
            "httproutes",
            attached("shop/in", &["in.apps.test"], "infra/internal", true),
        );
    });
    watching.settles(&api).await;
    assert_eq!(names(&watching), ["in.apps.test"]);
}

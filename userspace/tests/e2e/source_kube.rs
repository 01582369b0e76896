//! The Kubernetes source, against an API server that behaves and misbehaves as real ones do. Whatever happens, what it
//! tells in the end is what the server's objects mean.

use crate::kube_api;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use kube_api::Api;
use kube_api::objects::{gateway_route, ingress, node, route, router, router_of_3};
use kube_api::watching::{Watching, count, settings};
use serde_json::{Value, json};
use signalbox::source::kube::Timings;
use signalbox_core::model::kubernetes::{AddressType, ApiServerAccess, Resource};

/// Two Routes, one of them in vain, an object of each other kind, and three router pods of which one is not ready.
pub(crate) fn fill(api: &Api) {
    api.change(|store| {
        store.put("routes", route(2, "bank/web", "app.test"));
        store.put("routes", route(1, "shop/web", "app.test"));
        store.put("ingresses", ingress(1, "shop/in", "in.test"));
        store.put("tlsroutes", gateway_route(1, "shop/tls", "tls.test"));
        store.put("httproutes", gateway_route(1, "shop/http", "http.test"));
        store.put("pods", router("router-1-a", "n1", "10.0.0.1", true));
        store.put("pods", router("router-1-b", "n2", "10.0.0.2", false));
        store.put("pods", router_of_3("router-1-c", "n3", "10.0.0.3"));
        // A pod that is no router's.
        let mut other = router("other", "n4", "10.0.0.4", true);
        other["metadata"]["labels"] = json!({"app": "other"});
        store.put("pods", other);
    });
}

pub(crate) fn connected(view: &Value) -> bool {
    view["connected"] == true
}

fn noted(view: &Value, about: &str, part: &str) -> bool {
    view["notes"]
        .as_object()
        .unwrap()
        .iter()
        .any(|(key, note)| key.starts_with(about) && note.as_str().unwrap().contains(part))
}

#[tokio::test]
async fn it_tells_what_is_there_and_then_each_change() {
    let (api, _server) = Api::start().await;
    fill(&api);
    let mut watching = Watching::start(settings(&api));
    watching.settles(&api).await;
    let first = watching.told[0].clone();
    assert_eq!(watching.told.len(), 1, "nothing is told before everything is there");
    assert_eq!(
        first.hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>(),
        ["n1", "n3"]
    );
    assert_eq!((first.routes.len(), first.rejected.len()), (4, 1));
    // The rival goes, a pod becomes ready, a name changes hands.
    api.change(|store| store.delete("routes", "shop", "web"));
    watching.settles(&api).await;
    assert_eq!(watching.told.last().unwrap().rejected, []);
    api.change(|store| store.put("pods", router("router-1-b", "n2", "10.0.0.2", true)));
    watching.settles(&api).await;
    api.change(|store| store.put("routes", route(2, "bank/web", "new.test")));
    watching.settles(&api).await;
    let view = watching.stands(connected).await;
    assert_eq!(view["failures"], 0);
    assert_eq!(
        ["routes", "ingresses", "pods"].map(|plural| api.lists(plural)),
        [1, 1, 2],
        "nothing was listed again"
    );
}

#[tokio::test]
async fn nothing_is_told_before_the_slowest_list_is_there() {
    let (api, _server) = Api::start().await;
    fill(&api);
    api.change(|store| store.moods.held.insert("pods"));
    let mut watching = Watching::start(settings(&api));
    // The other feeds are listed, and watched.
    watching
        .stands(|view| count(view, "listed") == 4 && count(view, "bookmark") > 8)
        .await;
    assert_eq!((watching.drain(), watching.standing.connected()), (0, false));
    api.change(|store| store.moods.held.clear());
    watching.settles(&api).await;
    assert_eq!(watching.told.len(), 1);
}

#[tokio::test]
async fn long_lists_come_in_pages_which_may_be_forgotten() {
    let (api, _server) = Api::start().await;
    api.change(|store| {
        for at in 0..20 {
            store.put("routes", route(at, &format!("shop/web{at}"), &format!("app{at}.test")));
        }
        store.put("pods", router("router-1-a", "n1", "10.0.0.1", true));
        store.moods.page = Some(3);
    });
    let mut watching = Watching::start(settings(&api));
    watching.settles(&api).await;
    assert_eq!(api.lists("routes"), 7);
    drop(watching);
    api.change(|store| store.moods.forgets_pages = true);
    // The server forgets the next pages: the whole list is then requested at once.
    api.change(|store| store.moods.page = None);
    api.change(|store| {
        for at in 0..600 {
            store.put(
                "routes",
                route(at, &format!("shop/more{at}"), &format!("more{at}.test")),
            );
        }
    });
    let mut watching = Watching::start(settings(&api));
    watching.settles(&api).await;
    assert_eq!(watching.told.last().unwrap().routes.len(), 620);
    assert_eq!(
        api.lists("routes"),
        7 + 3,
        "the first page, the one that is forgotten, all"
    );
}

#[tokio::test]
async fn what_is_too_old_is_listed_again() {
    for in_stream in [false, true] {
        let (api, server) = Api::start().await;
        fill(&api);
        api.change(|store| store.moods.gone_in_stream = in_stream);
        let mut watching = Watching::start(settings(&api));
        watching.settles(&api).await;
        server.kill().await;
        api.change(|store| {
            store.delete("routes", "shop", "web");
            store.put("routes", route(5, "shop/late", "late.test"));
            store.compact();
        });
        let _server = api.restart().await;
        watching.settles(&api).await;
        assert_eq!(api.lists("routes"), 2);
        let view = watching.stands(connected).await;
        assert!(count(&view, "expired") > 0, "{view:#}");
    }
}

#[tokio::test]
async fn a_watch_that_breaks_within_an_event_is_taken_up_where_it_was() {
    let (api, _server) = Api::start().await;
    fill(&api);
    let mut watching = Watching::start(settings(&api));
    watching.settles(&api).await;
    for round in 0..5 {
        api.change(|store| {
            store.moods.cuts = 2;
            store.moods.ends = 1;
            store.put("routes", route(round, "shop/moving", &format!("at{round}.test")));
            store.delete("routes", "bank", "web");
            store.put("routes", route(round, "bank/web", &format!("bank{round}.test")));
        });
        watching.settles(&api).await;
    }
    let view = watching.stands(connected).await;
    assert!(count(&view, "broken") >= 5, "{view:#}");
    assert_eq!(
        (api.lists("routes"), view["failures"].as_u64()),
        (1, Some(0)),
        "a hiccup is no failure"
    );
}

#[tokio::test]
async fn answers_that_make_no_sense_are_asked_for_again() {
    let (api, _server) = Api::start().await;
    fill(&api);
    api.change(|store| store.moods.garbled_lists = 3);
    let mut watching = Watching::start(settings(&api));
    watching.settles(&api).await;
    api.change(|store| {
        // Events are garbled each time.
        store.moods.garbled_events = usize::MAX;
        store.put("routes", route(9, "shop/late", "late.test"));
    });
    watching.settles(&api).await;
    api.change(|store| store.moods.garbled_events = 0);
    api.change(|store| {
        store.moods.failures = 4;
        store.compact();
        store.put("routes", route(9, "shop/later", "later.test"));
    });
    watching.settles(&api).await;
    let view = watching.stands(connected).await;
    assert!(count(&view, "bad_message") >= 4, "{view:#}");
}

#[tokio::test]
async fn an_object_that_makes_no_sense_is_left_out_and_nothing_else() {
    let (api, _server) = Api::start().await;
    fill(&api);
    let mut odd = route(1, "shop/odd", "odd.test");
    odd["spec"]["host"] = json!({"not": "a host"});
    api.change(|store| store.put("routes", odd.clone()));
    let mut watching = Watching::start(settings(&api));
    watching.settles(&api).await;
    let view = watching.standing.view();
    assert_eq!(count(&view, "undecodable"), 1);
    assert!(noted(&view, "left out of routes", "shop/odd (invalid type"), "{view:#}");
    // The route is mended, and broken again.
    api.change(|store| store.put("routes", route(1, "shop/odd", "odd.test")));
    watching.settles(&api).await;
    assert!(
        watching
            .told
            .last()
            .unwrap()
            .routes
            .iter()
            .any(|claim| claim.hostname.to_string() == "odd.test")
    );
    assert_eq!(watching.standing.view()["notes"], json!({}));
    api.change(|store| store.put("routes", odd));
    watching.settles(&api).await;
    assert_eq!(count(&watching.standing.view(), "undecodable"), 2);
    assert_eq!(api.lists("routes"), 1);
}

#[tokio::test]
async fn a_dead_server_takes_nothing_away() {
    let (api, server) = Api::start().await;
    fill(&api);
    let mut watching = Watching::start(settings(&api));
    watching.settles(&api).await;
    watching.stands(connected).await;
    server.kill().await;
    let view = watching
        .stands(|view| !connected(view) && view["failures"].as_u64() > Some(5))
        .await;
    let error = view["last_error"].as_str().unwrap();
    assert!(
        error.contains(&format!("http://{} cannot be reached", api.addr)),
        "{error}"
    );
    assert_eq!(watching.drain(), 1, "what was told last stays");
    api.change(|store| store.put("routes", route(9, "shop/late", "late.test")));
    let _server = api.restart().await;
    watching.settles(&api).await;
    watching.stands(connected).await;
    assert_eq!(api.lists("routes"), 1, "the watches were taken up where they were");
}

#[tokio::test]
async fn silence_is_not_taken_for_peace() {
    let (api, _server) = Api::start().await;
    fill(&api);
    let mut hurried = settings(&api);
    hurried.timings.silence_timeout = Duration::from_millis(300);
    let mut watching = Watching::start(hurried);
    watching.settles(&api).await;
    api.change(|store| {
        store.moods.lost = 1;
        store.put("routes", route(9, "shop/late", "late.test"));
    });
    watching.settles(&api).await;
    drop(watching);
    // Nor is a list that never comes.
    api.change(|store| store.moods.held.insert("routes"));
    let mut hurried = settings(&api);
    hurried.timings.answer_timeout = Duration::from_millis(300);
    let mut watching = Watching::start(hurried);
    let view = watching.stands(|view| view["last_error"].is_string()).await;
    assert!(
        view["last_error"].as_str().unwrap().contains("no answer within 300ms"),
        "{view:#}"
    );
    api.change(|store| store.moods.held.clear());
    watching.settles(&api).await;
}

#[tokio::test]
async fn a_server_with_an_older_past_is_believed() {
    let (api, server) = Api::start().await;
    fill(&api);
    api.change(|store| (0..50).for_each(|at| store.put("routes", route(at, "shop/web", &format!("a{at}.test")))));
    let mut watching = Watching::start(settings(&api));
    watching.settles(&api).await;
    server.kill().await;
    api.change(|store| {
        // The version goes back, as after a restore.
        store.version = 20;
        store.history.clear();
        store.objects.clear();
    });
    fill(&api);
    let _server = api.restart().await;
    watching.settles(&api).await;
    let view = watching.stands(connected).await;
    assert!(count(&view, "went_back") > 0, "{view:#}");
}

#[tokio::test]
async fn a_missing_api_is_no_obstacle_and_may_come_later() {
    let (api, _server) = Api::start().await;
    fill(&api);
    api.change(|store| {
        store.objects.remove("tlsroutes");
        store.objects.remove("httproutes");
        store.moods.missing.insert("gateway.networking.k8s.io");
        // The account may see nothing that is not there.
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
    let marks = count(&watching.standing.view(), "bookmark");
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
async fn only_what_is_asked_for_is_read() {
    let (api, _server) = Api::start().await;
    fill(&api);
    let labelled = |origin: &str, tier: &str| {
        let mut object = route(3, origin, &format!("{}.test", origin.replace('/', "-")));
        object["metadata"]["labels"] = json!({"tier": tier, "a/b": "c"});
        object
    };
    api.change(|store| {
        for origin in ["shop/in", "bank/in", "other/out"] {
            store.put("routes", labelled(origin, "public"));
        }
        store.put("routes", labelled("shop/out", "test"));
        store.put("nodes", node("n1", Some("192.0.2.1")));
        store.put("nodes", node("n2", None));
        // Resources that are not configured may be forbidden, too.
        store.moods.forbidden.extend(["ingresses", "tlsroutes", "httproutes"]);
    });
    let mut settings = settings(&api);
    settings.source.resources = Some(vec![Resource::Routes]);
    settings.source.namespaces = vec!["shop".into(), "bank".into()];
    settings.source.labels = Some("tier=public,a/b=c".into());
    settings.source.routers.address = AddressType::External;
    let mut watching = Watching::start(settings);
    watching.settles(&api).await;
    let learned = watching.told.last().unwrap();
    let names: Vec<_> = learned.routes.iter().map(|claim| claim.hostname.to_string()).collect();
    assert_eq!(names, ["bank-in.test", "shop-in.test"]);
    assert_eq!(learned.hosts.len(), 1);
    // Out of the selection, and into it.
    api.change(|store| {
        store.put("routes", labelled("shop/in", "test"));
        store.put("routes", labelled("shop/out", "public"));
        store.put("nodes", node("n3", Some("192.0.2.3")));
    });
    watching.settles(&api).await;
    assert_eq!(watching.told.last().unwrap().hosts.len(), 2);
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

#[tokio::test]
async fn a_server_without_bookmarks_is_heard_at_the_end_of_each_watch() {
    let (api, _server) = Api::start().await;
    fill(&api);
    api.change(|store| store.moods.old = true);
    let mut watching = Watching::start(settings(&api));
    watching.settles(&api).await;
    let before = api.watches("routes");
    watching.stands(|_| api.watches("routes") > before).await;
    let view = watching.stands(connected).await;
    assert_eq!(
        (count(&view, "bookmark"), view["failures"].as_u64(), api.lists("routes")),
        (0, Some(0), 1)
    );
    api.change(|store| store.put("routes", route(9, "shop/late", "late.test")));
    watching.settles(&api).await;
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
async fn what_is_no_api_server_is_not_believed() {
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

/// Prints what 10 000 Routes cost; asserts only that they are all there, and that a flood of changes is told of in a
/// few pieces.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_routes() {
    let (api, _server) = Api::start().await;
    let put = |version: u32| {
        api.change(|store| {
            for at in 0..10_000 {
                let host = format!("app{at}.v{version}.test");
                store.put("routes", route(at, &format!("ns{}/web{at}", at % 700), &host));
            }
            store.put("pods", router("router-1-a", "n1", "10.0.0.1", true));
        });
    };
    put(1);
    let began = Instant::now();
    let mut usual = settings(&api);
    usual.timings.settle = Timings::default().settle;
    let mut watching = Watching::start(usual);
    watching.settles(&api).await;
    println!(
        "10 000 Routes were listed and told of in {:?}, the server's part included",
        began.elapsed()
    );
    let told = watching.told.len();
    put(2);
    let began = Instant::now();
    watching.settles(&api).await;
    let pieces = watching.told.len() - told;
    println!(
        "10 000 changes were told of in {pieces} pieces within {:?}",
        began.elapsed()
    );
    assert!(pieces < 1_000, "{pieces}");
    assert_eq!(watching.told.last().unwrap().routes.len(), 10_000);
}

/// A file that goes with the test.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("signalbox-source-kube-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
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

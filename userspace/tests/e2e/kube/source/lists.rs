//! Listing and watching: everything configured, in pages, and nothing that makes no sense.

use crate::kube_api;
use crate::kube_api::watching::view_of;

use std::time::Instant;

use kube_api::Api;
use kube_api::objects::{node, route, router};
use kube_api::watching::{Watching, count, settings};
use serde_json::json;
use signalbox::source::kube::Timings;
use signalbox_core::model::kubernetes::{AddressType, Resource};

use super::{connected, fill, noted};

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
async fn an_object_that_makes_no_sense_is_left_out_and_nothing_else() {
    let (api, _server) = Api::start().await;
    fill(&api);
    let mut odd = route(1, "shop/odd", "odd.test");
    odd["spec"]["host"] = json!({"not": "a host"});
    api.change(|store| store.put("routes", odd.clone()));
    let mut watching = Watching::start(settings(&api));
    watching.settles(&api).await;
    let view = view_of(&watching.standing);
    assert_eq!(count(&view, "undecodable"), 1);
    assert!(noted(&view, "left out of routes", "shop/odd (invalid type"), "{view:#}");
    // The route is fixed, and broken again.
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
    assert_eq!(view_of(&watching.standing)["notes"], json!({}));
    api.change(|store| store.put("routes", odd));
    watching.settles(&api).await;
    assert_eq!(count(&view_of(&watching.standing), "undecodable"), 2);
    assert_eq!(api.lists("routes"), 1);
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
        // Unconfigured resources may be forbidden, too.
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

/// Prints what 10 000 Routes cost; asserts only that they are all there, and that a flood of changes is reported in a
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

//! Return of the Kubernetes source to its server, and its reports until then.

use crate::kube::source::{Scratch, connected, fill};
use crate::kube_api;
use crate::kube_api::watching::view_of;

use std::time::{Duration, Instant};

use kube_api::Api;
use kube_api::objects::route;
use kube_api::watching::{Watching, count, settings};
use signalbox_core::model::kubernetes::ApiServerAccess;

/// Longer than any test waits: only a wake-up ends this pause in time.
const UNREACHED_INTERVAL: Duration = Duration::from_secs(600);

/// The five feeds without faults, and the one for pods in `default`.
fn all_watches(api: &Api) -> usize {
    ["routes", "ingresses", "tlsroutes", "httproutes", "pods"]
        .map(|plural| api.watches(plural))
        .iter()
        .sum()
}

#[tokio::test]
async fn a_change_that_no_watch_reports_is_found_by_the_next_list() {
    let (api, _server) = Api::start().await;
    fill(&api);
    let mut settings = settings(&api);
    settings.timings.relist = Duration::from_secs(2);
    let mut watching = Watching::start(settings);
    watching.settles(&api).await;
    // No watch reports this.
    api.change(|store| store.objects.get_mut("routes").unwrap().clear());
    watching.settles(&api).await;
    assert!(api.lists("routes") > 1);
}

#[tokio::test]
async fn one_feed_that_gets_through_wakes_all_others() {
    let (api, server) = Api::start().await;
    fill(&api);
    let mut settings = settings(&api);
    (settings.timings.retry, settings.timings.max_retry) = (UNREACHED_INTERVAL, UNREACHED_INTERVAL);
    // Orderly ends would be waited after, too.
    settings.timings.watch_timeout = UNREACHED_INTERVAL;
    let mut watching = Watching::start(settings);
    watching.settles(&api).await;
    server.kill().await;
    watching.stands(|view| count(view, "broken") == 6).await;
    // The feeds all wait now; the task that watches for the server does not.
    let _server = api.restart().await;
    api.change(|store| store.put("routes", route(9, "shop/late", "late.test")));
    watching.settles(&api).await;
    watching.stands(connected).await;
}

#[tokio::test]
async fn a_token_that_is_replaced_ends_the_wait() {
    let (api, _server) = Api::start().await;
    fill(&api);
    api.change(|store| store.moods.token = Some("second"));
    let file = Scratch::new("wait-token", "first");
    let mut settings = settings(&api);
    (settings.timings.retry, settings.timings.max_retry) = (UNREACHED_INTERVAL, UNREACHED_INTERVAL);
    settings.source.access = ApiServerAccess::Url {
        url: format!("http://{}", api.addr),
        token: Some(file.0.clone()),
        ca: None,
    };
    let mut watching = Watching::start(settings);
    watching.stands(|view| count(view, "unauthorized") == 6).await;
    std::fs::write(&file.0, "second\n").unwrap();
    watching.settles(&api).await;
    watching.stands(connected).await;
}

#[tokio::test]
async fn a_server_that_starts_may_refuse_for_a_moment() {
    let (api, server) = Api::start().await;
    fill(&api);
    let mut settings = settings(&api);
    (settings.timings.retry, settings.timings.max_retry) = (Duration::from_millis(100), UNREACHED_INTERVAL);
    let mut watching = Watching::start(settings);
    watching.settles(&api).await;
    server.kill().await;
    watching.stands(|view| !connected(view)).await;
    // Fifteen for each feed: the last would wait for a quarter of an hour if each doubled the wait.
    api.change(|store| {
        store.moods.starting = 90;
        store.put("routes", route(9, "shop/late", "late.test"));
    });
    let _server = api.restart().await;
    watching.settles(&api).await;
    watching.stands(connected).await;
}

#[tokio::test]
async fn the_first_change_is_told_at_once_and_what_follows_together() {
    let (api, _server) = Api::start().await;
    fill(&api);
    let mut settings = settings(&api);
    let settle = Duration::from_secs(8);
    settings.timings.settle = settle;
    let mut watching = Watching::start(settings);
    watching.settles(&api).await;
    tokio::time::sleep(settle).await;
    let began = Instant::now();
    api.change(|store| store.put("routes", route(9, "shop/first", "first.test")));
    watching.settles(&api).await;
    assert!(began.elapsed() < settle / 2, "{:?}", began.elapsed());
    let told = watching.told.len();
    for at in 0..20 {
        api.change(|store| store.put("routes", route(at, "shop/next", &format!("next{at}.test"))));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    watching.settles(&api).await;
    assert_eq!(watching.told.len(), told + 1);
}

#[tokio::test]
async fn a_final_excused_refusal_leaves_the_source_connected() {
    let (api, _server) = Api::start().await;
    fill(&api);
    api.change(|store| {
        // No event or bookmark is heard afterwards.
        store.moods.old = true;
        store.delete("pods", "default", "router-1-c");
        store.moods.forbidden.insert("pods/default");
        store.moods.held.insert("pods/default");
    });
    let mut settings = settings(&api);
    settings.timings.watch_timeout = UNREACHED_INTERVAL;
    settings.timings.forbidden_retry = UNREACHED_INTERVAL;
    let mut watching = Watching::start(settings);
    watching.stands(|_| all_watches(&api) == 5).await;
    assert!(!watching.standing.connected());
    api.change(|store| store.moods.held.clear());
    let view = watching.stands(connected).await;
    assert!(
        view["seconds_since_heard"].is_number() && view["last_error"].is_null(),
        "{view:#}"
    );
    watching.settles(&api).await;
    // The server is not asked again and again.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let refused = count(&view_of(&watching.standing), "forbidden");
    assert!(refused <= 2, "{refused}");
}

#[tokio::test]
async fn a_source_is_as_stale_as_the_feed_that_was_heard_longest_ago() {
    let (api, _server) = Api::start().await;
    fill(&api);
    api.change(|store| store.moods.old = true);
    let mut settings = settings(&api);
    settings.timings.watch_timeout = UNREACHED_INTERVAL;
    let mut watching = Watching::start(settings);
    watching.settles(&api).await;
    watching.stands(|view| connected(view) && all_watches(&api) == 6).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    api.change(|store| store.put("routes", route(9, "shop/late", "late.test")));
    watching.settles(&api).await;
    let staleness = watching.standing.staleness().unwrap();
    assert!(staleness >= 1.5, "the Routes alone were heard: {staleness}");
}

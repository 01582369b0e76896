//! Servers that die, forget, garble, fall silent or go back in time.

use crate::kube_api;

use std::time::Duration;

use kube_api::Api;
use kube_api::objects::route;
use kube_api::watching::{Watching, count, settings};

use super::{connected, fill};

#[tokio::test]
async fn an_expired_resource_version_leads_to_a_new_list() {
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

//! What is made of a series of events: the same as a model that is written differently, however often they come.

use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use signalbox_core::discovered::spi::{
    AppChange, AppKey, Application, Applications, Certificate, Endpoint, Mapping, RoutingEvent, Secret, parse,
};

use crate::naive::{folded, naive, ruby};

fn key(app: &str) -> AppKey {
    AppKey {
        namespace: "demo".into(),
        app: app.into(),
    }
}

/// Few of everything, so that events meet.
fn event() -> impl Strategy<Value = RoutingEvent> {
    let at =
        || select(vec!["10.0.0.1:80", "10.0.0.2:80", "10.0.0.2:81", "[fd00::1]:80"]).prop_map(|at| at.parse().unwrap());
    let maybe = |words: &[&str]| {
        proptest::option::weighted(0.8, select(words.iter().map(|&w| w.to_owned()).collect::<Vec<_>>()))
    };
    let alias = || select(vec!["a.example", "b.example", "not a name"]).prop_map(str::to_owned);
    let truth = || proptest::option::of(any::<bool>());
    let types = proptest::collection::btree_set(
        select(vec!["load_balancer", "web_framework"]).prop_map(str::to_owned),
        0..3,
    );
    let endpoint = (maybe(&["g1", "g2", "g3"]), maybe(&["p1", "p2"]), types).prop_map(|(gear, name, types)| Endpoint {
        gear,
        name,
        types,
        protocols: ["http".to_owned()].into(),
        mappings: vec![Mapping {
            frontend: String::new(),
            backend: "/x".into(),
        }],
    });
    let certificate = select(vec!["one", "two"]).prop_map(|text| {
        Box::new(Certificate {
            chain: format!("BEGIN\n{text}"),
            private_key: Some(Secret::new(&format!("KEY\n{text}"))),
            pass_phrase: (text == "two").then(|| Secret::new("open")),
        })
    });
    let change = prop_oneof![
        1 => (truth(), truth()).prop_map(|(scalable, ha)| AppChange::Create { scalable, ha }),
        1 => Just(AppChange::Delete),
        1 => Just(AppChange::Duplicate),
        6 => (at(), endpoint).prop_map(|(addr, endpoint)| AppChange::AddEndpoint { addr, endpoint }),
        4 => (at(), maybe(&["g1", "g2", "g3"])).prop_map(|(addr, gear)| AppChange::RemoveEndpoint { addr, gear }),
        2 => alias().prop_map(AppChange::AddAlias),
        2 => alias().prop_map(AppChange::RemoveAlias),
        2 => (alias(), certificate).prop_map(|(alias, certificate)| AppChange::AddCertificate { alias, certificate }),
        1 => alias().prop_map(AppChange::RemoveCertificate),
    ];
    (select(vec!["one", "two"]), change).prop_map(|(app, change)| RoutingEvent { app: key(app), change })
}

fn series() -> impl Strategy<Value = Vec<RoutingEvent>> {
    proptest::collection::vec(event(), 0..60)
}

/// Also what the naive model does not know.
fn any_event() -> impl Strategy<Value = RoutingEvent> {
    let gear = || proptest::option::of(select(vec!["g1", "g2", "g3"]).prop_map(str::to_owned));
    let geography = || select(vec!["eu", "us"]).prop_map(str::to_owned);
    let rotation = (gear(), proptest::option::of(0..9_u64)).prop_map(|(gear, seconds)| AppChange::RotateOut {
        gear,
        timeout: seconds.map(Duration::from_secs),
        reason: "a new disk".into(),
    });
    let change = prop_oneof![
        2 => gear().prop_map(AppChange::Stop),
        2 => gear().prop_map(AppChange::Start),
        1 => rotation,
        1 => gear().prop_map(AppChange::RotateIn),
        1 => (geography(), gear()).prop_map(|(geography, gear)| AppChange::AddGeography { geography, gear }),
        1 => (geography(), gear()).prop_map(|(geography, gear)| AppChange::RemoveGeography { geography, gear }),
    ];
    let status = (select(vec!["one", "two"]), change).prop_map(|(app, change)| RoutingEvent { app: key(app), change });
    prop_oneof![2 => event(), 1 => status]
}

fn any_series() -> impl Strategy<Value = Vec<RoutingEvent>> {
    proptest::collection::vec(any_event(), 0..60)
}

fn fold(events: &[RoutingEvent]) -> Applications {
    let mut applications = Applications::default();
    for event in events {
        applications.apply(std::slice::from_ref(event));
    }
    applications
}

proptest! {
    /// Any series, in which anything may come again at any later time, means what the naive model says.
    #[test]
    fn the_fold_is_the_naive_model(events in series(), again in proptest::collection::vec((any::<Index>(), any::<Index>()), 0..20)) {
        let mut events = events;
        for (from, to) in again {
            if !events.is_empty() {
                let event = events[from.index(events.len())].clone();
                events.insert(to.index(events.len() + 1), event);
            }
        }
        prop_assert_eq!(folded(&fold(&events)), naive(&events));
    }

    /// An event that comes again at once changes nothing.
    #[test]
    fn a_duplicate_changes_nothing(events in any_series(), times in 1usize..4) {
        let mut applications = Applications::default();
        for event in &events {
            applications.apply(std::slice::from_ref(event));
            for _ in 0..times {
                prop_assert!(!applications.apply(std::slice::from_ref(event)), "{event:?}");
            }
        }
    }

    /// A broker that lost the last acknowledgements delivers a stretch of the queue again: the end is the same. (Which
    /// gear came first is known by order alone, and gears that took each other's addresses come in another one then.)
    #[test]
    fn a_stretch_delivered_again_changes_nothing_in_the_end(events in any_series(), from in any::<Index>()) {
        let from = from.index(events.len() + 1);
        let once = fold(&events);
        let mut twice = once.clone();
        twice.apply(&events[from..]);
        prop_assert_eq!(folded(&once), folded(&twice));
    }

    /// Many events in one text do what they do one by one; nothing happens before it is committed.
    #[test]
    fn a_batch_is_its_events(events in any_series(), cut in any::<Index>()) {
        let cut = cut.index(events.len() + 1);
        let mut applications = fold(&events[..cut]);
        let before = applications.clone();
        let changed = applications.changes_after(&events[cut..]);
        prop_assert_eq!(&applications, &before);
        for (key, application) in &changed {
            prop_assert_ne!(before.get(key), application.as_ref());
        }
        applications.commit(changed);
        prop_assert_eq!(applications, fold(&events));
    }

    /// What Ruby writes is what was meant.
    #[test]
    fn events_are_read_as_they_were_written(events in proptest::collection::vec(any_event(), 1..10)) {
        let text: String = events.iter().map(ruby).collect();
        prop_assert_eq!(parse(&text).unwrap(), events);
    }

    /// A record holds everything; what people see holds no secret.
    #[test]
    fn records_hold_everything_and_views_no_secret(events in any_series()) {
        for application in fold(&events).iter() {
            prop_assert_eq!(&Application::from_record(&application.to_record()).unwrap(), application);
            let seen = format!("{application:?} {}", serde_json::to_string(application).unwrap());
            prop_assert!(!seen.contains("KEY"), "{seen}");
            prop_assert!(!seen.contains("open"), "{seen}");
            prop_assert_eq!(seen.contains("(hidden)"), !application.certificates.is_empty());
        }
    }

    /// Nothing is left of what was deleted.
    #[test]
    fn delete_leaves_no_debris(events in any_series()) {
        let mut applications = fold(&events);
        for app in ["one", "two"] {
            applications.apply(&[RoutingEvent { app: key(app), change: AppChange::Delete }]);
        }
        prop_assert_eq!(applications, Applications::default());
    }
}

#[test]
fn a_gear_that_moves_leaves_its_old_address_in_either_order() {
    let event = |change| RoutingEvent {
        app: key("one"),
        change,
    };
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    let add = |place: &str, gear: &str| {
        event(AppChange::AddEndpoint {
            addr: at(place),
            endpoint: Endpoint {
                gear: Some(gear.into()),
                name: Some("haproxy-1.4".into()),
                ..Endpoint::default()
            },
        })
    };
    let remove = |place: &str, gear: &str| {
        event(AppChange::RemoveEndpoint {
            addr: at(place),
            gear: Some(gear.into()),
        })
    };
    let (old, new) = ("10.0.0.1:80", "10.0.0.2:80");
    let before = fold(&[add(old, "g"), remove(old, "g"), add(new, "g")]);
    let after = fold(&[add(old, "g"), add(new, "g"), remove(old, "g")]);
    assert_eq!(before, after);
    let places: Vec<_> = before.get(&key("one")).unwrap().endpoints.keys().copied().collect();
    assert_eq!(places, [at(new)]);
    // The address is another gear's by the time the removal comes.
    let reused = fold(&[add(old, "g"), add(old, "other"), remove(old, "g")]);
    assert_eq!(
        reused.get(&key("one")).unwrap().endpoints[&at(old)].gear.as_deref(),
        Some("other")
    );
}

#[test]
fn the_last_word_on_a_gear_or_on_all_of_them_counts() {
    let add = |gear: &str, last: u8| AppChange::AddEndpoint {
        addr: SocketAddr::from(([10, 0, 0, last], 80)),
        endpoint: Endpoint {
            gear: Some(gear.into()),
            ..Endpoint::default()
        },
    };
    let gear = |gear: &str| Some(gear.to_owned());
    let running = |changes: Vec<AppChange>| {
        let changes = [add("g1", 1), add("g2", 2)].into_iter().chain(changes);
        let events: Vec<_> = changes
            .map(|change| RoutingEvent {
                app: key("one"),
                change,
            })
            .collect();
        let applications = fold(&events);
        let application = applications.get(&key("one")).unwrap();
        let runs = application
            .endpoints
            .values()
            .filter(|endpoint| !application.is_stopped(endpoint));
        runs.filter_map(|endpoint| endpoint.gear.clone()).collect::<Vec<_>>()
    };
    let (stop, start) = (AppChange::Stop, AppChange::Start);
    assert_eq!(running(vec![stop(gear("g1"))]), ["g2"]);
    assert_eq!(running(vec![stop(gear("g1")), start(gear("g1"))]), ["g1", "g2"]);
    assert!(
        running(vec![stop(None), add("g1", 1)]).is_empty(),
        "said again it is stopped still"
    );
    assert_eq!(running(vec![stop(None), start(gear("g2"))]), ["g2"]);
    assert_eq!(running(vec![stop(gear("g1")), stop(None), start(None)]), ["g1", "g2"]);
    assert_eq!(running(vec![stop(gear("g1")), add("g1", 3)]), ["g2"], "elsewhere, too");
}

#[test]
fn rotate_only_events_are_recorded_until_they_are_reverted() {
    let event = |change: AppChange| RoutingEvent { app: key("a"), change };
    let out = |gear: Option<&str>| {
        event(AppChange::RotateOut {
            gear: gear.map(str::to_owned),
            timeout: None,
            reason: "a new disk".into(),
        })
    };
    let mut applications = Applications::default();
    applications.apply(&[event(AppChange::Create {
        scalable: None,
        ha: None,
    })]);
    let changed = applications.changes_after(&[out(Some("g1")), out(None)]);
    assert_eq!(changed.len(), 1, "it is to be written");
    applications.commit(changed);
    let record = applications.get(&key("a")).unwrap().to_record();
    let read = Application::from_record(&record).unwrap();
    let gears: Vec<_> = read
        .rotated_out
        .iter()
        .map(|(gear, why)| (gear.as_str(), why.as_str()))
        .collect();
    assert_eq!(gears, [("", "a new disk"), ("g1", "a new disk")]);
    assert!(!applications.apply(&[out(Some("g1"))]), "said again it changes nothing");
    applications.apply(&[event(AppChange::RotateIn(None))]);
    let left = &applications.get(&key("a")).unwrap().rotated_out;
    assert_eq!(left.keys().collect::<Vec<_>>(), ["g1"], "each is taken in by itself");
}

#[test]
fn a_record_of_something_else_is_refused_without_quoting_it() {
    for bytes in [&b"{}"[..], b"", b"[1]", br#"{"application": "s3cret", "secrets": {}}"#] {
        let error = Application::from_record(bytes).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(
            shown.starts_with("the record of an application is malformed at byte "),
            "{shown}"
        );
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}

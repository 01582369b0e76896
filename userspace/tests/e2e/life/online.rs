//! Changes while traffic runs: configurations, hosts, listeners. Only the clients concerned notice a change.

use crate::lab;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lab::{Lab, Router, SOON, Signalbox, config, eventually, http, lab_test, signalbox};

const HTTP: &str = "10.1.0.1:80";
const RELOADS: &str = "signalbox_config_reloads_total";
const EAST: [&str; 3] = ["east-1", "east-2", "east-3"];

fn start(body: &str) -> (Lab, Vec<Router>, Signalbox) {
    let lab = Lab::new();
    let routers = Router::start_all(&lab, &["east-1", "east-2", "east-3", "west-1", "west-2"]);
    let sb = Signalbox::start(&lab, body);
    sb.wait_healthy(&["east-1", "east-2", "east-3", "west-1", "west-2"]);
    (lab, routers, sb)
}

/// Makes a route to such clusters.
fn route(clusters: &str) -> String {
    config::web(&[&format!("{{ host: a.test, clusters: {{ {clusters} }} }}")])
}

fn keep(stream: &TcpStream) -> String {
    http::get(stream, "a.test", "/")
        .unwrap_or_else(|e| panic!("a long-lived flow: {e}"))
        .field("host")
}

#[lab_test]
fn fifty_config_swaps_under_two_thousand_connections_fail_none() {
    let one = route("east: 10, west: 80");
    // The other has fewer hosts, another listener, other weights and one more route.
    let east = config::cluster("east", &["balance: round-robin"], &EAST[..2]);
    let west = config::cluster("west", &["balance: maglev"], &["west-1"]);
    let other = format!(
        "{}  - {{ name: extra, protocol: http, listen: [\"10.1.0.1:8080\"] }}\nclusters:\n{west}{east}routes:\n\
         \x20 - {{ host: b.test, clusters: {{ west: 1 }} }}\n  - {{ host: a.test, clusters: {{ west: 1, east: 1 }} }}\n",
        config::WEB_LISTENERS
    );
    let (lab, _routers, sb) = start(&one);
    let long: Vec<_> = (0..20).map(|_| lab.client.connect(HTTP)).collect();
    let homes: Vec<_> = long.iter().map(keep).collect();
    let (swapping, calls) = (AtomicBool::new(true), AtomicUsize::new(0));
    let failures: Vec<String> = std::thread::scope(|scope| {
        let callers = [0, 1].map(|_| {
            scope.spawn(|| {
                lab.client.run(|| {
                    let mut failures = Vec::new();
                    for i in 0.. {
                        if i >= 1000 && !swapping.load(Ordering::SeqCst) {
                            break;
                        }
                        failures.extend(http::ask_here(HTTP, "a.test").err());
                        calls.fetch_add(1, Ordering::SeqCst);
                    }
                    failures
                })
            })
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for swap in 0..50 {
                let (before, reloads) = (calls.load(Ordering::SeqCst), sb.metric(RELOADS));
                if swap % 2 == 0 {
                    sb.write(&other);
                    sb.hup();
                } else {
                    let response = sb.unix("PUT", "/api/v1/config", &sb.document(&one));
                    assert_eq!(response.status, 200, "{}", response.body);
                }
                assert!(
                    eventually(SOON, || sb.metric(RELOADS) > reloads),
                    "swap {swap} is counted"
                );
                // Calls are served under each configuration before the next.
                assert!(
                    eventually(SOON, || calls.load(Ordering::SeqCst) > before + 20),
                    "the callers are stuck"
                );
            }
        }));
        swapping.store(false, Ordering::SeqCst);
        let failures = callers.into_iter().flat_map(|c| c.join().unwrap()).collect();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        failures
    });
    let calls = calls.load(Ordering::SeqCst);
    assert!(
        failures.is_empty(),
        "{} of {calls} failed, the first: {}",
        failures.len(),
        failures[0]
    );
    assert!(calls >= 2000);
    for (stream, home) in long.iter().zip(&homes) {
        assert_eq!(&keep(stream), home, "a long-lived flow stays where it is");
    }
}

#[lab_test]
fn a_file_with_five_mistakes_is_refused_and_each_is_located() {
    let good = route("east: 1");
    let (lab, _routers, sb) = start(&good);
    let bad = "listeners:
  - { name: http, protocol: gopher, listen: [\"10.1.0.1:80\"] } # wrong
clusters:
  - name: east
    hosts:
      - { name: east-1, address: 10.2.0.300, http: 80 } # wrong
routes:
  - { host: a.test, clusters: { east: 1 } }
  - { host: \"b test\", clusters: { east: 1 } } # wrong
  - { host: c.test, clusters: { esat: 1 } } # wrong
  - { host: d.test, clusters: { east: 1000 } } # wrong
";
    let document = sb.document(bad);
    let wrong = document.lines().zip(1..).filter(|(line, _)| line.ends_with("# wrong"));
    let wrong: BTreeSet<u64> = wrong.map(|(_, number)| number).collect();
    assert_eq!(wrong.len(), 5);

    // The file is checked by hand before it is used.
    let file = signalbox::write_config(&lab, "bad.yaml", bad);
    let output = signalbox::check(&file);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let prefix = format!("{}:", file.display());
    let places = text.lines().filter_map(|line| line.strip_prefix(&prefix));
    let lines: BTreeSet<u64> = places
        .map(|place| place.split(':').next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(lines, wrong, "{text}");
    assert_eq!(signalbox::check(&lab.dir().join("absent.yaml")).status.code(), Some(3));
    assert_eq!(
        signalbox::check(&signalbox::write_config(&lab, "good.yaml", &good))
            .status
            .code(),
        Some(0)
    );

    // The running process refuses it, from the file and from the API.
    sb.write(bad);
    for response in [
        sb.unix("POST", "/api/v1/reload", ""),
        sb.unix("PUT", "/api/v1/config", &document),
    ] {
        assert_eq!(response.status, 422, "{}", response.body);
        let body: serde_json::Value = serde_json::from_str(&response.body).unwrap();
        let errors = body["errors"].as_array().unwrap();
        let lines: BTreeSet<u64> = errors.iter().map(|e| e["line"].as_u64().unwrap()).collect();
        assert_eq!((errors.len(), &lines), (5, &wrong), "{body}");
        assert!(
            errors.iter().all(|e| e["column"].is_u64() && e["message"].is_string()),
            "{body}"
        );
    }
    assert_eq!(sb.json("/api/v1/status")["last_reload"]["ok"], false);
    for _ in 0..20 {
        assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200, "traffic goes on");
    }
    sb.reload(&good);
    assert_eq!(sb.json("/api/v1/status")["last_reload"]["ok"], true);
}

#[lab_test]
fn a_changed_file_or_swapped_config_map_is_noticed_by_itself() {
    let lab = Lab::new();
    let _routers = Router::start_all(&lab, &["east-1", "west-1"]);
    let body = |cluster: &str| {
        let clusters = config::cluster("east", &[], &["east-1"]) + &config::cluster("west", &[], &["west-1"]);
        let route = format!("{{ host: a.test, clusters: {{ {cluster}: 1 }} }}");
        format!("{}clusters:\n{clusters}routes:\n  - {route}\n", config::WEB_LISTENERS)
    };
    // The kubelet's way: the file is a link through `..data`, and `..data` is swapped.
    let volume = lab.dir().join("volume");
    let publish = |version: &str, cluster: &str| {
        std::fs::create_dir_all(volume.join(version)).unwrap();
        let written = signalbox::write_config(&lab, "next.yaml", &body(cluster));
        std::fs::rename(written, volume.join(version).join("signalbox.yaml")).unwrap();
        symlink(version, volume.join("..data_tmp")).unwrap();
        std::fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
    };
    publish("..v1", "east");
    symlink("..data/signalbox.yaml", volume.join("signalbox.yaml")).unwrap();
    let sb = Signalbox::start_file(&lab, "signalbox", &volume.join("signalbox.yaml"), &[]);
    sb.wait_healthy(&["east-1", "west-1"]);
    let arrives = |host: &str| eventually(SOON, || http::ask(&lab, HTTP, "a.test").field("host") == host);
    assert!(arrives("east-1"));
    for (version, cluster, host) in [
        ("..v2", "west", "west-1"),
        ("..v3", "east", "east-1"),
        ("..v4", "west", "west-1"),
    ] {
        publish(version, cluster);
        assert!(arrives(host), "{version} is noticed");
    }
    // A plain file in its place, replaced as editors do.
    sb.write(&body("east"));
    assert!(arrives("east-1"), "a replaced file is noticed");
    std::fs::write(volume.join("signalbox.yaml"), sb.document(&body("west"))).unwrap();
    assert!(arrives("west-1"), "a file written over is noticed");
}

/// The file is watched, too: a text that was read on request is no news to the watch.
#[lab_test]
fn a_config_put_by_api_after_a_reload_outlasts_the_file_watch() {
    let (_lab, _routers, sb) = start(&route("east: 1"));
    let weight = || sb.json("/api/v1/routes")["routes"][0]["clusters"][0]["weight"].clone();
    let set = |weight: u32| {
        let text = sb.document(&route(&format!("east: {weight}")));
        let response = sb.unix("PUT", "/api/v1/config", &text);
        assert_eq!(response.status, 200, "{}", response.body);
    };
    sb.reload(&route("east: 2"));
    set(3);
    let undone = || eventually(Duration::from_secs(1), || weight() != 3);
    assert!(
        !undone(),
        "the watch has applied again what was read on request: {}",
        weight()
    );
    // Reloading the file's text on request applies it again.
    sb.reload(&route("east: 2"));
    assert_eq!(weight(), 2);
    set(3);
    // Touching the file does not.
    sb.write(&route("east: 2"));
    assert!(!undone(), "a file that says the same has been applied: {}", weight());
    sb.write(&route("east: 4"));
    assert!(eventually(SOON, || weight() == 4), "a change is noticed");
}

#[lab_test]
fn a_removed_host_drains_and_counters_survive() {
    let (lab, _routers, sb) = start(&route("east: 1"));
    let flows: Vec<_> = (0..6).map(|_| lab.client.connect(HTTP)).collect();
    let homes: Vec<_> = flows.iter().map(keep).collect();
    let gone = homes[0].clone();
    let stays: Vec<_> = EAST.into_iter().filter(|h| *h != gone).collect();
    let total = |host: &str| sb.host(host)["total_connections"].as_u64().unwrap();
    let before: Vec<_> = stays.iter().map(|h| total(h)).collect();
    let listened = sb.metric("signalbox_listener_connections_total{listener=\"http\"}");

    let east = config::cluster("east", &[], &stays);
    let fewer = format!(
        "{}clusters:\n{east}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::WEB_LISTENERS
    );
    sb.reload(&fewer);
    assert_eq!(sb.host(&gone)["draining"], true, "{}", sb.host(&gone));
    for (stream, home) in flows.iter().zip(&homes) {
        assert_eq!(&keep(stream), home, "existing flows go on");
    }
    for _ in 0..12 {
        assert_ne!(
            http::ask(&lab, HTTP, "a.test").field("host"),
            gone,
            "new ones go elsewhere"
        );
    }
    for (host, before) in stays.iter().zip(before) {
        assert!(total(host) > before, "{host} counts on from {before}");
        assert_eq!(sb.host(host)["health"], "healthy", "and need not be checked anew");
    }
    assert_eq!(
        sb.metric("signalbox_listener_connections_total{listener=\"http\"}"),
        listened + 12.0
    );
    drop(flows);
    assert!(
        eventually(SOON, || sb.host(&gone).is_null()),
        "gone with its last flow: {}",
        sb.host(&gone)
    );
}

#[lab_test]
fn an_added_address_works_at_once_and_a_removed_one_refuses() {
    let (lab, _routers, sb) = start(&route("east: 1"));
    lab.add_lb_address("10.1.0.9/24");
    let added = ["10.1.0.1:8080", "10.1.0.9:80"];
    let refused = |at: &str| {
        lab.client
            .try_connect(at)
            .is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
    };
    for round in 0..5 {
        assert!(added.iter().all(|at| refused(at)), "round {round}");
        let more = "\"10.1.0.1:80\", \"10.1.0.9:80\", \"10.1.0.1:8080\",";
        sb.reload(&route("east: 1").replace("\"10.1.0.1:80\",", more));
        let held: Vec<_> = added.iter().map(|at| lab.client.connect(at)).collect();
        for stream in &held {
            assert!(EAST.contains(&keep(stream).as_str()));
        }
        sb.reload(&route("east: 1"));
        assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200);
        for (stream, at) in held.iter().zip(added) {
            assert!(eventually(SOON, || refused(at)), "{at} refuses");
            keep(stream);
        }
    }
}

#[lab_test]
fn a_refusing_host_is_skipped_and_ejected_after_three_failures() {
    let lab = Lab::new();
    // The host's check is good, but its port refuses: only real connections find out.
    let _liar = lab::servers::healthy(lab.host("east-1"));
    let _router = Router::start(&lab, "east-2");
    let keys = [
        "balance: round-robin",
        "ejection: { failures: 3, time: 8s, max_percent: 50 }",
    ];
    let east = config::cluster("east", &keys, &EAST[..2]);
    let body = format!(
        "{}clusters:\n{east}routes:\n  - {{ host: a.test, clusters: {{ east: 1 }} }}\n",
        config::WEB_LISTENERS
    );
    let sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&EAST[..2]);
    let ask = || {
        let answer = http::ask(&lab, HTTP, "a.test");
        assert_eq!((answer.status, answer.field("host")), (200, "east-2".into()));
    };
    // Another thread makes the verdict: on a busy machine a request or two are made before it.
    assert!(eventually(SOON, || {
        ask();
        sb.host("east-1")["ejected"] == true
    }));
    let liar = sb.host("east-1");
    assert_eq!(liar["health"], "healthy", "{liar}");
    let refused = liar["refused_connections"].as_u64().unwrap();
    assert!((3..10).contains(&refused), "{liar}");
    for _ in 0..10 {
        ask();
    }
    let refusals = sb.metric("signalbox_connect_failures_total{cluster=\"east\"}");
    assert_eq!(refusals as u64, refused, "nobody is sent to a host that is set aside");
    let back = eventually(SOON, || sb.host("east-1")["ejected"] == false);
    assert!(back, "and tried again later: {}", sb.host("east-1"));
    assert_eq!(http::ask(&lab, HTTP, "a.test").status, 200);
}

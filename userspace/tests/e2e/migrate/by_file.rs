//! The migration of the thesis, by the configuration's own means: a second cluster appears and no client moves, then an
//! operator moves the application in steps, through a restart and an edit of the file, and the first cluster goes.

use crate::lab;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lab::{Lab, Router, SOON, Signalbox, config, cut, eventually, http, lab_test, signalbox};
use serde_json::{Value, json};

const HTTP: &str = "10.1.0.1:80";
const APP: &str = "app.example.com";

/// Address of the testers.
const TESTER: &str = "10.1.0.3";

fn body(comment: &str) -> String {
    let health = config::FAST_HEALTH;
    format!(
        "# {comment}\nroutes:\n  - {{ host: {APP}, prefer: [{{ cluster: v2, clients: [{TESTER}/32] }}] }}\n{}clusters:\n  - {{ name: v1, {health}, learn: true }}\n  - {{ name: v2, {health}, learn: true }}\n",
        config::WEB_LISTENERS
    )
}

/// Reports as an agent of a cluster with one router host and these Routes: name, namespace, age.
fn tell(sb: &Signalbox, cluster: &str, host: &str, routes: &[(&str, &str, u64)]) {
    let address = lab::topology::HOSTS.iter().find(|(name, ..)| *name == host).unwrap().1;
    let claim = |(name, namespace, since): &(&str, &str, u64)| json!({ "host": name, "owner": namespace, "since": since, "origin": format!("Route {namespace}/web") });
    let body = json!({
        "hosts": [{ "name": host, "address": address, "http": 80, "https": 443, "weight": 1 }],
        "routes": routes.iter().map(claim).collect::<Vec<_>>(),
    });
    let response = sb.unix("PUT", &format!("/api/v1/clusters/{cluster}/learned"), &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
}

fn shares(sb: &Signalbox, host: &str) -> Value {
    let route = signalbox::find(&sb.json("/api/v1/routes")["routes"], "host", host);
    let shares = route["clusters"].as_array().cloned().unwrap_or_default();
    shares
        .iter()
        .map(|share| json!([share["name"], share["weight"]]))
        .collect()
}

fn cli(sb: &Signalbox, words: &[&str]) -> String {
    let output = sb.cli(words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Answers that the two clusters have given. The product's own totals lag: flows of the kernel are counted later.
#[derive(Default)]
struct Answered([AtomicU64; 2]);

impl Answered {
    fn count(&self, host: &str) {
        self.0[usize::from(host == "west-1")].fetch_add(1, Ordering::SeqCst);
    }

    fn totals(&self) -> [u64; 2] {
        [0, 1].map(|cluster| self.0[cluster].load(Ordering::SeqCst))
    }
}

/// Returns how many of a hundred requests each host answers.
fn homes(lab: &Lab, v1: &str) -> usize {
    (0..100)
        .filter(|_| http::ask(lab, HTTP, APP).field("host") == v1)
        .count()
}

fn home_of_a_tester(lab: &Lab) -> String {
    let stream = lab.client.connect_from(TESTER, HTTP);
    http::get(stream, APP, "/").unwrap().field("host")
}

#[lab_test]
fn an_app_moves_in_operator_steps_and_no_request_fails() {
    let lab = cut::lab();
    let mut routers = Router::start_all(&lab, &["east-1", "west-1"]);
    let mut sb = Signalbox::start(&lab, &body("first"));
    tell(&sb, "v1", "east-1", &[(APP, "shop", 1000)]);
    sb.wait_healthy(&["east-1"]);
    assert!(eventually(SOON, || shares(&sb, APP) == json!([["v1", 1]])));

    let (stop, answered) = (AtomicBool::new(false), Answered::default());
    let failures: Vec<String> = std::thread::scope(|scope| {
        let by_http = scope.spawn(|| {
            lab.client.run(|| {
                let mut failures = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    match http::ask_here(HTTP, APP) {
                        Ok(host) => answered.count(&host),
                        Err(error) => failures.push(error),
                    }
                }
                failures
            })
        });
        let by_tls = scope.spawn(|| {
            let mut failures = Vec::new();
            while !stop.load(Ordering::SeqCst) {
                let answer = http::curl(&lab, "10.1.0.1", &["https://app.example.com/"]);
                if answer.code == 0 {
                    answered.count(&http::field(&answer.body, "host"));
                } else {
                    failures.push(format!("TLS: {}", answer.trace));
                }
            }
            failures
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // The new cluster has the application too: no client moves.
            tell(&sb, "v2", "west-1", &[(APP, "shop", 2000)]);
            sb.wait_healthy(&["west-1"]);
            assert!(eventually(SOON, || shares(&sb, APP) == json!([["v1", 1], ["v2", 0]])));
            assert_eq!(homes(&lab, "east-1"), 100);
            let explained = cli(&sb, &["explain", APP]);
            assert!(explained.contains("it has joined without a weight"), "{explained}");
            // Testers, by `prefer`, see the new cluster already.
            for _ in 0..10 {
                assert_eq!(home_of_a_tester(&lab), "west-1");
            }
            let explained = cli(&sb, &["explain", APP, "--client", TESTER]);
            assert!(
                explained.contains("this client prefers cluster v2") && explained.contains("next: v2/west-1"),
                "{explained}"
            );

            for (step, (old, new)) in [(90u64, 10), (50, 50), (10, 90), (0, 100)].into_iter().enumerate() {
                cli(&sb, &["weight", APP, &format!("v1={old}"), &format!("v2={new}")]);
                assert_eq!(shares(&sb, APP), json!([["v1", old], ["v2", new]]));
                let before = answered.totals();
                (0..100).for_each(|_| answered.count(&http::ask(&lab, HTTP, APP).field("host")));
                // All callers together, because they draw from the same turns.
                let now = answered.totals();
                let [v1, v2] = [now[0] - before[0], now[1] - before[1]];
                let percent = v1 * 100 / (v1 + v2);
                assert!(
                    percent.abs_diff(old) <= 5,
                    "step {step}: {v1} of {} at v1, of {old} %",
                    v1 + v2
                );
                match step {
                    // The file is edited in the middle of it.
                    0 => sb.reload(&body("edited")),
                    1 => {
                        let next = signalbox::write_config(&lab, "next.yaml", &body("and upgraded"));
                        let next = Signalbox::start_file(&lab, "next", &next, &["--takeover"]);
                        // The old process answers until then.
                        assert!(eventually(SOON, || sb.proc.wait_exit(Duration::ZERO).is_some()));
                        sb = next;
                        sb.wait_healthy(&["east-1", "west-1"]);
                    }
                    _ => {}
                }
                assert_eq!(shares(&sb, APP), json!([["v1", old], ["v2", new]]), "after step {step}");
            }
            // The old cluster goes.
            tell(&sb, "v1", "east-1", &[]);
            assert!(eventually(SOON, || shares(&sb, APP) == json!([["v2", 100]])
                || shares(&sb, APP) == json!([["v1", 0], ["v2", 100]])));
            routers[0].kill();
            assert_eq!(homes(&lab, "east-1"), 0);
        }));
        stop.store(true, Ordering::SeqCst);
        let mut failures: Vec<String> = by_http.join().unwrap();
        failures.extend(by_tls.join().unwrap());
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        failures
    });
    assert!(
        failures.is_empty(),
        "{} failed, the first: {}",
        failures.len(),
        failures[0]
    );
}

#[lab_test]
fn a_rival_claim_to_a_host_name_gets_nothing_until_allowed() {
    let lab = cut::lab();
    let mut routers = Router::start_all(&lab, &["east-1", "west-1"]);
    let mut sb = Signalbox::start(&lab, &body("first"));
    // The rival is reported first, and claims to be the older one's equal.
    tell(&sb, "v2", "west-1", &[(APP, "thief", 2000)]);
    assert!(eventually(SOON, || shares(&sb, APP) == json!([["v2", 1]])));
    tell(&sb, "v1", "east-1", &[(APP, "shop", 1000)]);
    let mine = json!([["v1", 1], ["v2", 0]]);
    assert!(eventually(SOON, || shares(&sb, APP) == mine), "{}", shares(&sb, APP));
    sb.wait_healthy(&["east-1", "west-1"]);
    assert_eq!(homes(&lab, "east-1"), 100);
    // Weight 0 gets nothing even when the owner's cluster is out of order.
    routers[0].kill();
    assert!(eventually(SOON, || sb.host("east-1")["health"] == "unhealthy"));
    assert_eq!(http::ask(&lab, HTTP, APP).status, 503);
    routers[0].restart();
    sb.wait_healthy(&["east-1"]);
    let explained = cli(&sb, &["explain", APP]);
    assert!(
        explained.contains("another owner has the name") && explained.contains("Route shop/web"),
        "{explained}"
    );
    // Although the owner's Route is created again, it keeps its rank.
    tell(&sb, "v1", "east-1", &[]);
    assert!(eventually(SOON, || shares(&sb, APP) == json!([["v2", 1]])));
    tell(&sb, "v1", "east-1", &[(APP, "shop", 3000)]);
    assert!(eventually(SOON, || shares(&sb, APP) == mine), "{}", shares(&sb, APP));
    // The owner stays after a restart, whichever cluster reports first.
    std::thread::sleep(Duration::from_secs(1));
    sb.kill9();
    let sb = Signalbox::start(&lab, &body("first"));
    assert!(eventually(SOON, || shares(&sb, APP) == mine), "{}", shares(&sb, APP));
    cli(&sb, &["weight", APP, "v1=1", "v2=1"]);
    assert_eq!(shares(&sb, APP), json!([["v1", 1], ["v2", 1]]));
    // The weights are set by namespace, and tried first.
    let tried = cli(&sb, &["weight", "--namespace", "shop", "v1=7", "v2=3", "--dry-run"]);
    assert!(tried.contains(APP) && tried.contains("v1:7"), "{tried}");
    cli(&sb, &["weight", "--namespace", "shop", "v1=7", "v2=3"]);
    assert_eq!(shares(&sb, APP), json!([["v1", 7], ["v2", 3]]));
    cli(&sb, &["weight", APP, "--clear"]);
    assert_eq!(shares(&sb, APP), mine);
}

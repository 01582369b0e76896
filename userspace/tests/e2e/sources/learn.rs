//! Clusters that are learnt: from plugins of the prototype and from agents, over TCP with a token; merged with the
//! file.

use crate::lab;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lab::topology::HOSTS;
use lab::{Router, SOON, Signalbox, config, cut, eventually, http, lab_test, signalbox};
use serde_json::{Value, json};

const HTTP: &str = "10.1.0.1:80";
const TOKEN: &str = "a-token-for-the-lab-0123";

/// Two clusters of which the file knows only how they are checked.
fn body(extra: &str, routes: &str) -> String {
    let health = config::FAST_HEALTH;
    format!(
        "{extra}{}clusters:\n  - {{ name: east, {health}, learn: true }}\n  - {{ name: west, {health}, learn: true }}\n{routes}",
        config::WEB_LISTENERS
    )
}

fn address(name: &str) -> &'static str {
    HOSTS.iter().find(|(host, ..)| *host == name).unwrap().1
}

/// Makes the message of a plugin of the prototype.
fn plugin(hosts: &[&str], routes: &[(&str, u32)]) -> String {
    let hosts: serde_json::Map<String, Value> = hosts
        .iter()
        .map(|name| {
            let host = json!({ "name": name, "hostIP": address(name), "httpPort": 80, "httpsPort": 443 });
            ((*name).to_owned(), host)
        })
        .collect();
    let routes: serde_json::Map<String, Value> = routes
        .iter()
        .map(|&(host, weight)| (host.to_owned(), json!({ "url": host, "weight": weight })))
        .collect();
    json!({ "routes": routes, "routerHosts": hosts }).to_string()
}

fn tell(sb: &Signalbox, cluster: &str, body: &str) {
    let response = sb.unix("POST", &format!("/api/cluster/{cluster}"), body);
    assert_eq!(response.status, 201, "{}", response.body);
}

fn shares(sb: &Signalbox, host: &str) -> Value {
    let routes = sb.json("/api/v1/routes");
    let route = signalbox::find(&routes["routes"], "host", host);
    let shares = route["clusters"].as_array().cloned().unwrap_or_default();
    json!(
        shares
            .iter()
            .map(|share| json!([share["name"], share["weight"]]))
            .collect::<Vec<_>>()
    )
}

#[lab_test]
fn an_application_moves_to_a_new_cluster_and_no_call_fails() {
    let lab = cut::lab();
    let mut routers = Router::start_all(&lab, &["east-1", "east-2", "west-2"]);
    let sb = Signalbox::start(&lab, &body("", ""));
    // The old cluster has all connections.
    tell(
        &sb,
        "east",
        &plugin(&["east-1", "east-2"], &[("app.test", 100), ("other.test", 1)]),
    );
    sb.wait_healthy(&["east-1", "east-2"]);
    assert_eq!(shares(&sb, "app.test"), json!([["east", 100]]));
    let stop = AtomicBool::new(false);
    let failures: Vec<String> = std::thread::scope(|scope| {
        let callers = [(), ()].map(|()| {
            scope.spawn(|| {
                lab.client.run(|| {
                    let mut failures = Vec::new();
                    while !stop.load(Ordering::SeqCst) {
                        failures.extend(http::ask_here(HTTP, "app.test").err());
                    }
                    failures
                })
            })
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // The new one is there, then has the application, then gets more and more of it.
            tell(&sb, "west", &plugin(&["west-2"], &[]));
            sb.wait_healthy(&["west-2"]);
            // 1 is the plug-in's default.
            for (old, new) in [(98, 2), (50, 50), (1, 99)] {
                tell(
                    &sb,
                    "east",
                    &plugin(&["east-1", "east-2"], &[("app.test", old), ("other.test", 1)]),
                );
                tell(&sb, "west", &plugin(&["west-2"], &[("app.test", new)]));
                assert_eq!(shares(&sb, "app.test"), json!([["east", old], ["west", new]]));
                std::thread::sleep(Duration::from_millis(300));
            }
            tell(&sb, "east", &plugin(&["east-1", "east-2"], &[("other.test", 1)]));
            for _ in 0..20 {
                assert_eq!(http::ask(&lab, HTTP, "app.test").field("host"), "west-2");
            }
            // The old one is shut down.
            tell(&sb, "east", &plugin(&[], &[]));
            for router in &mut routers[..2] {
                router.kill();
            }
            std::thread::sleep(Duration::from_millis(300));
        }));
        stop.store(true, Ordering::SeqCst);
        let failures = callers.into_iter().flat_map(|c| c.join().unwrap()).collect();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        failures
    });
    assert!(
        failures.is_empty(),
        "{} failed, the first: {}",
        failures.len(),
        failures[0]
    );
    assert_eq!(http::ask(&lab, HTTP, "other.test").status, 404, "gone with its cluster");
}

#[lab_test]
fn learned_routes_survive_a_kill_and_bad_bodies_change_nothing() {
    let lab = cut::lab();
    let _routers = Router::start_all(&lab, &["east-1", "west-2"]);
    let text = body("", "routes:\n  - { host: mine.test, clusters: { west: 1 } }\n");
    let mut sb = Signalbox::start(&lab, &text);
    let routes = [("app.test", 3), ("mine.test", 1), ("*.*.bad", 1), ("*.wild.test", 2)];
    let response = sb.unix("POST", "/api/cluster/east", &plugin(&["east-1"], &routes));
    assert_eq!(response.status, 201, "{}", response.body);
    assert!(response.body.contains("a wildcard is written"), "{}", response.body);
    let agent = json!({
        "hosts": [{ "name": "r1", "address": address("west-2"), "http": 80, "weight": 1 }],
        "routes": [{ "host": "app.test", "weight": 1, "origin": "Route shop/web", "notes": ["left to the router: timeout"] }],
    });
    let response = sb.unix("PUT", "/api/v1/clusters/new/learned", &agent.to_string());
    assert_eq!(response.status, 200, "{}", response.body);

    for round in 0..2 {
        sb.wait_healthy(&["east-1", "r1"]);
        assert_eq!(
            shares(&sb, "app.test"),
            json!([["new", 1], ["east", 3]]),
            "round {round}"
        );
        assert_eq!(
            shares(&sb, "mine.test"),
            json!([["west", 1]]),
            "the file's route stands"
        );
        assert_eq!(http::ask(&lab, HTTP, "x.wild.test").field("host"), "east-1");
        for (path, bad) in [
            ("/api/cluster/east", "{"),
            (
                "/api/cluster/east",
                r#"{"routerHosts":{"r":{"name":"r","hostIP":"x","httpPort":80}}}"#,
            ),
            ("/api/cluster/no%20name", "{}"),
        ] {
            let response = sb.unix("POST", path, bad);
            assert_eq!(response.status, 400, "{}", response.body);
        }
        let twice = json!({ "hosts": [agent["hosts"][0], agent["hosts"][0]] });
        let response = sb.unix("PUT", "/api/v1/clusters/new/learned", &twice.to_string());
        assert!(
            response.status == 400 && response.body.contains("two hosts"),
            "{}",
            response.body
        );
        let sources = sb.json("/api/v1/sources");
        let east = signalbox::find(&sources["sources"], "name", "api:east");
        assert_eq!(east["clusters"][0]["routes"], 3, "{sources}");
        assert_eq!(east["events"]["bad_message"], 2, "{sources}");
        if round == 0 {
            sb.kill9();
            sb = Signalbox::start(&lab, &text);
        }
    }

    // `explain` answers an operator.
    let said = String::from_utf8(sb.cli(&["explain", "app.test", "--client", "10.1.0.2:5000"]).stdout).unwrap();
    for part in [
        "app.test: route app.test",
        "from agent:new: Route shop/web, cluster new, weight 1",
        "left to the router: timeout",
        "cluster east: weight 3, 75.0 % now",
        " active, takes connections",
        "next: ",
        "tier cut",
    ] {
        assert!(said.contains(part), "no {part:?} in\n{said}");
    }
    let said = String::from_utf8(sb.cli(&["explain", "mine.test"]).stdout).unwrap();
    assert!(
        said.contains("not route mine.test: the configuration file has a route of this name"),
        "{said}"
    );
    let said = String::from_utf8(sb.cli(&["explain", "*"]).stderr).unwrap();
    assert!(
        said.contains("a wildcard is written") || said.contains("character"),
        "{said}"
    );

    // A source that is no more.
    let response = sb.unix("DELETE", "/api/v1/sources/agent:new/clusters/new", "");
    assert_eq!(response.status, 200, "{}", response.body);
    assert_eq!(shares(&sb, "app.test"), json!([["east", 3]]));
    assert_eq!(
        sb.unix("DELETE", "/api/v1/sources/agent:new/clusters/new", "").status,
        404
    );
}

#[lab_test]
fn changes_over_tcp_take_the_token() {
    let lab = cut::lab();
    let file = lab.dir().join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let text = body("", "");
    let path = signalbox::write_config(&lab, "token.yaml", &text);
    let with = std::fs::read_to_string(&path)
        .unwrap()
        .replace("admin: {", &format!("admin: {{ token_file: {},", file.display()));
    std::fs::write(&path, with).unwrap();
    let sb = Signalbox::start_file(&lab, "signalbox", &path, &[]);
    let curl = |auth: &[&str], path: &str| {
        let url = format!("http://127.0.0.1:8089{path}");
        let mut words = vec![
            "curl",
            "-s",
            "-o",
            "/dev/stderr",
            "-w",
            "%{http_code}",
            "-X",
            "POST",
            "-d",
            "{}",
            &url,
        ];
        words.extend(auth);
        let output = lab.lb.output(&words);
        String::from_utf8(output.stdout).unwrap()
    };
    let bearer = format!("Authorization: Bearer {TOKEN}");
    assert_eq!(curl(&["-H", &bearer], "/api/cluster/east"), "201");
    // Credentials as a plugin sends them whose URL has a password in it.
    assert_eq!(curl(&["-u", &format!("plugin:{TOKEN}")], "/api/cluster/east"), "201");
    assert_eq!(curl(&[], "/api/cluster/east"), "401");
    assert_eq!(curl(&["-u", "plugin:wrong"], "/api/cluster/east"), "401");
    let codes: Vec<_> = (0..20)
        .map(|_| curl(&["-H", "Authorization: Bearer guess"], "/api/v1/reload"))
        .collect();
    assert!(codes.contains(&"429".to_owned()), "guesses are slowed down: {codes:?}");
    assert!(sb.metric("signalbox_admin_denied_total") >= 22.0);
    assert!(eventually(SOON, || curl(&["-H", &bearer], "/api/cluster/east") == "201"));
    // The token is changed while it runs.
    std::fs::write(&file, "another-token-0123456789").unwrap();
    assert!(eventually(SOON, || curl(&["-H", &bearer], "/api/cluster/east") == "401"));
    std::fs::write(&file, "short").unwrap();
    assert!(eventually(SOON, || curl(&["-H", &bearer], "/api/cluster/east") == "503"));
    let log = sb.proc.log();
    assert!(
        !log.contains(TOKEN) && !log.contains("another-token"),
        "a token is never logged"
    );
    assert!(log.contains("signalbox::audit"));
}

#[lab_test]
fn a_person_sees_what_a_file_would_change() {
    let lab = cut::lab();
    let route = |weight: u32| config::web(&[&format!("{{ host: a.test, clusters: {{ east: {weight} }} }}")]);
    let sb = Signalbox::start(&lab, &route(1));
    let diff = |text: &str| {
        let path = signalbox::write_config(&lab, "new.yaml", text);
        let output = sb.cli(&["diff", path.to_str().unwrap()]);
        // Warnings and mistakes of the file are reported beside the differences.
        let (said, wrong) = (output.stdout, output.stderr);
        let code = output.status.code().unwrap();
        (code, String::from_utf8(if code == 2 { wrong } else { said }).unwrap())
    };
    assert_eq!(diff(&route(1)), (0, "nothing would change\n".to_owned()));
    assert_eq!(
        diff(&route(5)),
        (1, "~ route a.test clusters: east:1 -> east:5\n".to_owned())
    );
    let (code, said) = diff(&route(500));
    assert!(code == 2 && said.contains("0 to 100"), "{said}");
    let (_, said) = diff(&route(1).replace("unmatched: reject", "unmatched: any"));
    assert_eq!(said, "~ setting unmatched: reject -> any\n");
}

/// Every path of the description exists, and GET is refused where a path changes something.
#[lab_test]
fn the_api_is_as_it_describes_itself_and_says_what_changes() {
    let lab = cut::lab();
    let _router = Router::start(&lab, "east-1");
    let sb = Signalbox::start(&lab, &body("", ""));
    let mut command = lab.lb.command("curl");
    command.args(["-sN", "http://127.0.0.1:8089/api/v1/events"]);
    let listening = lab::Proc::spawn("listening", command, lab.dir());
    assert!(eventually(SOON, || listening.log().contains("event: hello")));

    let description = sb.json("/api/v1/openapi.json");
    let paths = description["paths"].as_object().unwrap();
    assert!(paths.len() > 20, "{paths:?}");
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().unwrap() {
            assert!(operation["summary"].is_string(), "{method} {path}");
            // An event stream never ends.
            if operation.to_string().contains("text/event-stream") {
                continue;
            }
            let names = operation["parameters"].as_array().unwrap();
            let query: Vec<_> = names
                .iter()
                .filter(|p| p["in"] == "query" && p["required"] == true)
                .map(|p| format!("{}=x", p["name"].as_str().unwrap()))
                .collect();
            let real = path
                .replace("{id}", "7")
                .replace("{cluster}", "east")
                .replace("{source}", "none")
                .replace("{host}", "none.test");
            let real = format!("{real}?{}", query.join("&"));
            let response = sb.unix(&method.to_uppercase(), &real, "{}");
            // 404 must name the missing object; 405 would mean that there is no such operation.
            let known = response.status != 404 || response.body.contains("detail");
            assert!(
                known && response.status != 405 && response.status < 500,
                "{method} {real}: {} {}",
                response.status,
                response.body
            );
        }
    }
    tell(&sb, "east", &plugin(&["east-1"], &[("app.test", 1)]));
    sb.wait_healthy(&["east-1"]);
    assert_eq!(
        sb.unix("PUT", "/api/v1/routes/app.test", r#"{"clusters":{"east":7}}"#)
            .status,
        200
    );
    sb.cli(&["rotate", "out", "east-1", "--force", "--no-wait"]);
    for part in [
        "event: learnt\ndata: {\"cluster\":\"east\",\"source\":\"api:east\"}",
        "event: health\ndata: {\"cluster\":\"east\",\"detail\":\"HTTP 200\",\"healthy\":true,\"host\":\"east-1\"}",
        "event: weights\ndata: {\"route\":\"app.test\",\"weights\":[[\"east\",7]]}",
        "event: rotation\ndata: {\"action\":\"out\"",
        "event: job\ndata: ",
    ] {
        assert!(
            eventually(SOON, || listening.log().contains(part)),
            "no {part:?} in {}",
            listening.log()
        );
    }
}

/// Pause between the changes of one of four threads, in milliseconds: a thousand routes change in a second.
const PAUSE: u64 = 380;
/// Number of changes during which clients ask.
const CHANGES: u64 = 5_000;

mod share_4 {
    use super::*;

    /// Ten thousand routes, a thousand changes a second, while traffic runs.
    #[lab_test]
    fn a_thousand_route_changes_a_second_do_not_disturb_traffic() {
        let lab = cut::lab();
        let _routers = Router::start_all(&lab, &["east-1", "east-2"]);
        let sb = Signalbox::start(&lab, &body("", ""));
        let names: Vec<_> = (0..10_000).map(|n| format!("r{n}.test")).collect();
        let claim =
            |name: &str, weight: u32| json!({ "host": name, "weight": weight, "origin": format!("Route x/{name}") });
        let hosts = json!([
            { "name": "east-1", "address": address("east-1"), "http": 80, "weight": 1 },
            { "name": "east-2", "address": address("east-2"), "http": 80, "weight": 1 },
        ]);
        // A hundred parts, each a cluster of the same hosts, so that a part can be reported alone.
        let part = |n: usize, weight: u32| {
            let routes: Vec<_> = names[n * 100..][..100].iter().map(|name| claim(name, weight)).collect();
            json!({ "hosts": hosts, "routes": routes }).to_string()
        };
        for n in 0..100 {
            let response = sb.unix("PUT", &format!("/api/v1/clusters/part{n}/learned"), &part(n, 1));
            assert_eq!(response.status, 200, "{}", response.body);
        }
        assert_eq!(sb.json("/api/v1/routes")["routes"].as_array().unwrap().len(), 10_000);
        assert!(eventually(SOON, || http::ask(&lab, HTTP, "r9999.test").status == 200));
        let memory = || sb.proc.resident() / 1024;
        let ask = |seconds: u64, stop: &AtomicBool| {
            lab.client.run(|| {
                let (mut times, mut failures) = (Vec::new(), Vec::new());
                let end = Instant::now() + Duration::from_secs(seconds);
                while Instant::now() < end && !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let name = &names[times.len() * 7919 % names.len()];
                    failures.extend(http::ask_here(HTTP, name).err());
                    times.push(began.elapsed());
                }
                times.sort();
                (times[times.len() * 99 / 100], times.len(), failures)
            })
        };
        let stop = AtomicBool::new(false);
        let (still, still_calls, failures) = ask(3, &stop);
        assert!(failures.is_empty(), "{failures:?}");
        let began = Instant::now();
        let (before, changes) = (memory(), std::sync::atomic::AtomicU64::new(0));
        let (churned, churned_calls, failures) = std::thread::scope(|scope| {
            // In parallel: each change waits until it is applied and on disk, and several share the cost of that.
            for thread in 0..4usize {
                let (sb, part, changes, stop) = (&sb, &part, &changes, &stop);
                scope.spawn(move || {
                    for round in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let n = (round * 4 + thread) % 100;
                        let weight = 1 + (round as u32 / 25 + 1) % 100;
                        sb.unix("PUT", &format!("/api/v1/clusters/part{n}/learned"), &part(n, weight));
                        if changes.fetch_add(100, Ordering::Relaxed) >= CHANGES {
                            stop.store(true, Ordering::Relaxed);
                        }
                        std::thread::sleep(Duration::from_millis(PAUSE));
                    }
                });
            }
            // As long as that many changes take, which is longer on a busy machine.
            let outcome = ask(60, &stop);
            stop.store(true, Ordering::Relaxed);
            outcome
        });
        let seconds = began.elapsed().as_secs_f64();
        let changes = changes.load(Ordering::Relaxed);
        let nothing_waits = || sb.metric("signalbox_apply_waiting_seconds") == 0.0;
        assert!(eventually(SOON, nothing_waits), "what was reported is in force");
        let swaps = sb.metric("signalbox_table_swap_seconds_count");
        println!(
            "{swaps} tables, {:.1} ms each; p99 {still:?} of {still_calls} calls at rest, {churned:?} of {churned_calls} under {} route changes a second; memory {before} -> {} kB",
            sb.metric("signalbox_table_swap_seconds_sum") / swaps * 1000.0,
            (changes as f64 / seconds) as u64,
            memory()
        );
        assert!(failures.is_empty(), "{failures:?}");
        assert!(changes > CHANGES, "only {changes} changes");
        assert!(memory() < before + 100_000, "memory grows: {before} -> {} kB", memory());
    }
}

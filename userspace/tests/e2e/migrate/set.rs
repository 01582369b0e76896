//! A set of balancers moves together: no step without all of them, and guards see the traffic of each.

use crate::lab;

use std::path::PathBuf;

use lab::signalbox::{binary, find};
use lab::{Lab, Proc, Router, SOON, Server, Signalbox, config, cut, eventually, http, lab_test, servers};
use serde_json::{Value, json};

use super::{APP, cli, migration, newest, refusal, shares, wait_for};

const URL: &str = "http://10.2.0.4:8089";
const TOKEN: &str = "a-token-of-a-set-of-balancers";

/// Clusters east and west with a host each, which both balancers reach, and a route that only east serves.
fn clusters() -> String {
    let (east, west) = (
        config::cluster("east", &[], &["east-1"]),
        config::cluster("west", &[], &["east-2"]),
    );
    format!("clusters:\n{east}{west}routes:\n  - {{ host: {APP}, clusters: {{ east: 1, west: 0 }} }}\n")
}

/// The other balancer, acting as another machine.
struct Other<'a> {
    lab: &'a Lab,
    config: PathBuf,
    process: Proc,
}

impl<'a> Other<'a> {
    fn start(lab: &'a Lab) -> Self {
        let dir = lab.dir().display();
        std::fs::write(lab.dir().join("token"), TOKEN).unwrap();
        let config = lab.dir().join("other.yaml");
        let text = format!(
            "version: 1\nadmin: {{ listen: \"10.2.0.4:8089\", socket: {dir}/other.sock, token_file: {dir}/token }}\n\
             store: {{ path: {dir}/other.redb }}\nlisteners:\n  \
             - {{ name: http, protocol: http, listen: [\"10.2.0.4:8080\"] }}\n{}",
            clusters()
        );
        std::fs::write(&config, text).unwrap();
        let process = Self::spawn(lab, &config);
        let other = Self { lab, config, process };
        other.wait();
        other
    }

    fn spawn(lab: &Lab, config: &std::path::Path) -> Proc {
        let mut command = lab.host("east-3").command(binary());
        command.arg("run").arg("-f").arg(config);
        Proc::spawn("other", command, lab.dir())
    }

    fn get(&self, path: &str) -> Value {
        let (url, token) = (format!("{URL}{path}"), format!("Authorization: Bearer {TOKEN}"));
        let answer = self
            .lab
            .lb
            .try_must(&["curl", "-sS", "-m", "5", "-H", &token, &url], "");
        answer
            .ok()
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or_default()
    }

    /// Waits until both hosts are usable there.
    fn wait(&self) {
        let is_healthy = |host: &str| find(&self.get("/api/v1/hosts")["hosts"], "name", host)["health"] == "healthy";
        let are_healthy = || is_healthy("east-1") && is_healthy("east-2");
        assert!(eventually(2 * SOON, are_healthy), "{}", self.process.log());
    }

    fn restart(&mut self) {
        self.process = Self::spawn(self.lab, &self.config);
        self.wait();
    }

    /// Current weights of the name there.
    fn shares(&self) -> Value {
        let route = find(&self.get("/api/v1/routes")["routes"], "host", APP);
        let shares = route["clusters"].as_array().cloned().unwrap_or_default();
        shares
            .iter()
            .map(|share| json!([share["name"], share["weight"]]))
            .collect()
    }
}

/// The balancer that has the migrations, and knows the other one.
fn first(lab: &Lab) -> Signalbox {
    let set = format!(
        "balancers:\n  - {{ url: \"{URL}\", token_file: {}/token }}\n",
        lab.dir().display()
    );
    let sb = Signalbox::start(lab, &format!("{set}{}{}", config::WEB_LISTENERS, clusters()));
    sb.wait_healthy(&["east-1", "east-2"]);
    sb
}

#[lab_test]
fn no_step_goes_on_without_all_balancers_of_the_set() {
    let lab = cut::lab();
    let _routers = Router::start_all(&lab, &["east-1", "east-2"]);
    let mut other = Other::start(&lab);
    let sb = first(&lab);
    let words = migration(APP, "25,100", "1s", "--min-samples 0 --no-wait");

    // A balancer that does not answer is named before anything has changed.
    other.process.kill();
    let why = refusal(&sb, &words);
    assert!(why.contains(URL) && why.contains("--only-here"), "{why}");
    assert_eq!(
        (newest(&sb), shares(&sb)),
        (Value::Null, json!([["east", 1], ["west", 0]]))
    );
    other.restart();

    let held = migration(APP, "25,100", "1h", "--min-samples 0 --no-wait");
    let id = cli(&sb, &held).trim().strip_prefix("migration ").unwrap().to_owned();
    let at_25 = json!([["east", 75], ["west", 25]]);
    assert!(
        eventually(SOON, || other.shares() == at_25 && shares(&sb) == at_25),
        "{}",
        other.shares()
    );
    wait_for(&sb, "the step is watched", |migration| {
        migration["steps"][0]["percent"] == 25
    });
    assert_eq!(newest(&sb)["waits_for"], json!([]));

    // Gone in the middle of a step, it is waited for; back, it has the step's weights from its disk.
    other.process.kill();
    let waits = |migration: &Value| migration["waits_for"][0].as_str().is_some_and(|why| why.contains(URL));
    wait_for(&sb, "it is waited for", waits);
    assert!(sb.metric("signalbox_migrations_waiting") >= 1.0);
    assert!(cli(&sb, &["migrate", "--list"]).contains(URL));
    other.restart();
    wait_for(&sb, "it is back", |migration| migration["waits_for"] == json!([]));
    assert_eq!(
        (newest(&sb)["state"].as_str(), other.shares()),
        (Some("running"), at_25.clone())
    );

    // Weights that someone sets there pause the migration.
    let path = format!("{URL}/api/v1/routes/{APP}");
    let token = format!("Authorization: Bearer {TOKEN}");
    let body = r#"{"clusters": {"east": 1, "west": 1}}"#;
    lab.lb
        .must(&["curl", "-sSf", "-X", "PUT", "-H", &token, "-d", body, &path]);
    wait_for(&sb, "paused", |migration| {
        migration["state"] == "paused" && migration["reason"].as_str().is_some_and(|why| why.contains(URL))
    });
    assert_eq!(shares(&sb), at_25);

    // Called off, both have the earlier weights; only when both have them it is at its end.
    cli(&sb, &["migrate", "--abort", &id]);
    wait_for(&sb, "aborted", |migration| migration["state"] == "aborted");
    let before = json!([["east", 1], ["west", 0]]);
    assert_eq!((shares(&sb), other.shares()), (before.clone(), before));

    // A whole migration, by all.
    cli(&sb, &migration(APP, "25,100", "1s", "--min-samples 0"));
    let moved = json!([["east", 0], ["west", 100]]);
    assert_eq!((shares(&sb), other.shares()), (moved.clone(), moved));
}

#[lab_test]
fn failures_at_another_balancer_roll_back_all_balancers() {
    let lab = cut::lab();
    let _router = Router::start(&lab, "east-1");
    let _health = servers::healthy(lab.host("east-2"));
    // Closed with the request unread: its kernel answers with RST.
    let _west = Server::start(lab.host("east-2"), "[::]:80", |_| {});
    let other = Other::start(&lab);
    let sb = first(&lab);
    cli(
        &sb,
        &migration(APP, "50,100", "1h", "--max-latency 0 --no-probe --no-wait"),
    );
    wait_for(&sb, "the step is watched", |migration| {
        migration["steps"][0]["percent"] == 50
    });
    // The balancer that has the migration has no traffic at all.
    let is_back = || {
        for _ in 0..4 {
            let _ = lab.lb.run(|| http::ask_here("10.2.0.4:8080", APP));
        }
        newest(&sb)["state"] == "rolled_back"
    };
    assert!(eventually(2 * SOON, is_back), "{}", newest(&sb));
    let why = newest(&sb)["reason"].as_str().unwrap().to_owned();
    assert!(why.contains("were reset or ended without an answer"), "{why}");
    let before = json!([["east", 1], ["west", 0]]);
    assert_eq!((shares(&sb), other.shares()), (before.clone(), before));
    assert_eq!(
        sb.metric("signalbox_migration_guard_failures_total{guard=\"connections\"}") as u64,
        1
    );
    assert_eq!(
        sb.metric("signalbox_migrations_ended_total{outcome=\"rolled_back\"}") as u64,
        1
    );
    assert_eq!(sb.metric("signalbox_migration_going_back_seconds_count") as u64, 1);
}

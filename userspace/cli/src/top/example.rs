//! An example balancer for tests, the same in each run.

use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::data::{LoggedEvent, TopData, Topic, Update};
use super::keys::TopState;

fn parsed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Number of samples.
const SAMPLES: u64 = 90;

fn hosts() -> [(&'static str, &'static str, &'static str, u64); 3] {
    [
        ("east", "east-1", "10.2.0.2", 1),
        ("east", "east-2", "10.2.0.3", 2),
        ("west", "west-1", "10.3.0.2", 1),
    ]
}

fn history() -> Value {
    let at: Vec<u64> = (0..SAMPLES).map(|second| 1_795_351_604_000 + second * 1000).collect();
    let overall = |second: u64| {
        json!({ "active": 40 + second % 30, "total": second * second, "refused": second / 30 * 2,
            "bytes_in": second * 12_000, "bytes_out": second * 340_000, "usable_hosts": 2, "unhealthy_hosts": 1,
            "tiers": { "cut": 30, "sockmap": 4, "splice": 2, "copy": 4 }, "not_cut": { "tls": 12, "http_listener": 3 } })
    };
    let of = |(cluster, name, address, health): (&str, &str, &str, u64)| {
        let figures: Vec<_> = (0..SAMPLES)
            .map(|second| {
                json!([
                    second % 20,
                    second * 3,
                    second / 45,
                    second * 4000,
                    second * 90_000,
                    health
                ])
            })
            .collect();
        json!({ "cluster": cluster, "name": name, "address": address, "figures": figures })
    };
    json!({ "at": at, "overall": (0..SAMPLES).map(overall).collect::<Vec<_>>(),
        "hosts": hosts().map(of), "left_out_hosts": 0 })
}

fn host_views() -> Value {
    let view = |(cluster, name, address, health): (&str, &str, &str, u64)| {
        let detail = if health == 1 { "HTTP 200" } else { "connection refused" };
        json!({ "cluster": cluster, "name": name, "address": address, "weight": 1, "ejected": false, "draining": false,
            "out_of_rotation": (name == "west-1").then_some("host:west/west-1"), "last_check": { "detail": detail } })
    };
    json!({ "hosts": hosts().map(view) })
}

fn figures(app: [u64; 2]) -> Value {
    let [east, west] = app.map(|connections| json!({ "connections": connections }));
    json!({ "routes": { "app.example.com": { "clusters": { "east": east, "west": west } } } })
}

fn answers() -> Vec<(Topic, Value)> {
    let cluster =
        |name: &str, weight: u64, usable: u64| json!({ "name": name, "weight": weight, "usable_hosts": usable });
    let route = |host: &str, clusters: Vec<Value>| json!({ "host": host, "clusters": clusters, "active_connections": 7, "total_connections": 12_345 });
    let routes = [
        route("app.example.com", vec![cluster("east", 20, 1), cluster("west", 80, 1)]),
        route("*.apps.example.com", vec![cluster("north", 1, 0)]),
    ];
    let flow = json!({ "id": 7, "client": "192.0.2.7:40000", "local": "10.1.0.1:80",
        "backend": "10.2.0.2:80", "not_cut": "", "state": "established", "listener": "web", "route": "app.example.com", "cluster": "east",
        "host": "east-1", "tier": "cut", "tier_reason": "established", "age_seconds": 12.5, "idle_seconds": 0.2,
        "bytes_in": 1536, "bytes_out": 5_000_000 });
    let service = json!({ "name": "dns", "protocol": "udp", "listen": ["10.1.0.1:53"], "cluster": "east", "mode": "nat",
        "flows": 3, "flows_total": 99, "bytes_in": 1000, "bytes_out": 2000,
        "hosts": [{ "name": "east-1", "address": "10.2.0.2", "share": 100.0, "flows": 3, "reachable": true }] });
    let guard = json!({ "kind": "listener", "name": "web", "prefixes": 2, "malformed": "drop",
        "decisions": { "malformed": 1, "denied": 40, "packets": 0, "bytes": 0, "connections": 0, "concurrent": 0, "cookie": 0 } });
    let drop = json!({ "guard": "web", "reason": "denied", "protocol": "tcp", "source": "198.51.100.7:1234",
        "destination": "10.1.0.1:80" });
    let peer = json!({ "node": "lb-2", "sending": true, "behind_ms": 3, "complete": true, "shadows": 12 });
    let group = json!({ "name": "front", "state": "master", "priority": 150, "vips": ["10.1.0.1/24"], "sources": [], "prefer": "lb-1" });
    vec![
        (
            Topic::Status,
            json!({ "version": "1.2.3", "state": "serving", "ready": true, "routes": 2, "uptime_seconds": 7300, "not_ready": [],
                "missing_features": [], "degraded": [{ "feature": "XDP", "why": "eth0 has generic XDP only" }],
                "last_reload": { "ok": false, "error": "line 3: no such cluster" } }),
        ),
        (Topic::Hosts, host_views()),
        (Topic::Routes, json!({ "routes": routes })),
        (Topic::Flows, json!({ "total": 1, "flows": [flow] })),
        (
            Topic::Services,
            json!({ "services": [service], "hooks": [], "troubles": ["eth9: there is no such interface"] }),
        ),
        (Topic::Shield, json!({ "guards": [guard], "troubles": [] })),
        (Topic::Drops, json!({ "drops": [drop] })),
        (
            Topic::Ha,
            json!({ "configured": true, "name": "pair", "node": "lb-1", "mode": "keepalived", "supervised": true,
                "groups": [group], "sync": { "peers": [peer] } }),
        ),
    ]
}

/// News of 90 seconds.
pub(super) fn updates() -> Vec<Update> {
    let mut all = vec![
        Update::Hello(parsed(json!({ "pid": 42 }))),
        Update::Past(parsed(history())),
    ];
    let host = |(cluster, name, address, _)| json!({ "cluster": cluster, "name": name, "address": address });
    let at = 1_795_351_604_000 + (SAMPLES - 1) * 1000;
    all.push(Update::Sample(parsed(
        json!({ "at": at, "hosts": hosts().map(host), "figures": {}, "left_out_hosts": 0 }),
    )));
    all.extend(
        answers()
            .into_iter()
            .map(|(topic, answer)| Update::Answer(topic, answer)),
    );
    all.push(Update::Answer(Topic::Figures, figures([100, 400])));
    all.push(Update::Event(LoggedEvent {
        at: "14:46:44".into(),
        kind: "health".into(),
        data: r#"{"cluster":"east","host":"east-2","health":"unhealthy"}"#.into(),
    }));
    all
}

/// The state of the example at `now`.
pub(super) fn state(now: Instant) -> TopState {
    let mut state = TopState::new();
    updates().into_iter().for_each(|update| state.take(update, now));
    state.take(
        Update::Answer(Topic::Figures, figures([121, 479])),
        now + Duration::from_secs(30),
    );
    state
}

/// The data of the example.
pub(super) fn data(now: Instant) -> TopData {
    let mut data = TopData::default();
    updates().into_iter().for_each(|update| data.take(update, now));
    data
}

/// A state with this many hosts, all of cluster `east`. Every tenth is unhealthy.
pub(super) fn state_with_hosts(count: u64, now: Instant) -> TopState {
    let health = |n: u64| if n.is_multiple_of(10) { 2 } else { 1 };
    let name = |n: u64| format!("host-{n:03}");
    let figures = |n: u64| -> Vec<Value> {
        (0..SAMPLES)
            .map(|second| json!([n, n * second, 0, 0, 0, health(n)]))
            .collect()
    };
    let at: Vec<u64> = (0..SAMPLES).map(|second| 1_795_351_604_000 + second * 1000).collect();
    let host =
        |n: u64| json!({ "cluster": "east", "name": name(n), "address": format!("10.2.{}.{}", n / 250, n % 250) });
    let with_figures = |n: u64| {
        let mut host = host(n);
        host["figures"] = json!(figures(n));
        host
    };
    let overall = json!({ "active": 0, "total": 0, "refused": 0, "bytes_in": 0, "bytes_out": 0,
        "usable_hosts": count - count / 10, "unhealthy_hosts": count / 10, "tiers": {}, "not_cut": {} });
    let past = json!({ "at": at, "overall": at.iter().map(|_| overall.clone()).collect::<Vec<_>>(),
        "hosts": (0..count).map(with_figures).collect::<Vec<_>>(), "left_out_hosts": 0 });
    let mut state = TopState::new();
    state.take(Update::Hello(parsed(json!({ "pid": 42 }))), now);
    state.take(Update::Past(parsed(past)), now);
    let sample = json!({ "at": at.last(), "overall": overall, "figures": {}, "left_out_hosts": 0,
        "hosts": (0..count).map(host).collect::<Vec<_>>() });
    state.take(Update::Sample(parsed(sample)), now);
    state
}

//! The shape of answers, compared with a file: scripts read these fields. `SIGNALBOX_WRITE_SHAPES=1` writes it again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use serde_json::Value;
use signalbox_api::hosts::LastCheck;
use signalbox_core::routing::health::Health;
use signalbox_core::routing::view::{Eligibility, RoutingView};
use tokio::sync::mpsc;
use tower::ServiceExt as _;

use crate::control::routing::CurrentSource;
use crate::control::{ConfigFile, Control, Facts, KernelHandles};
use crate::reconcile::l4::Services;
use crate::state::sync::PeerState;
use crate::state::{ClusterState, HostState, ListenerState, RouteState, Shared, Snapshot};

const CONFIG: &str = r#"
version: 1
listeners:
  - { name: web, protocol: http, listen: ["127.0.0.1:9"], shield: {} }
  - { name: tcp, protocol: tcp, listen: ["127.0.0.1:10"], cluster: east }
clusters:
  - { name: east, hosts: [{ name: east-1, address: 127.0.0.1, http: 80, tcp: 9 }] }
  - { name: west, hosts: [{ name: west-1, address: west.test, http: 80 }] }
routes: [{ host: app.test, clusters: { east: 20, west: 80 } }]
services: [{ name: dns, protocol: udp, listen: ["127.0.0.1:53"], cluster: east }]
ha:
  name: pair
  node: a
  nodes: [{ name: a, address: 192.0.2.1 }, { name: b, address: 192.0.2.2 }]
  groups: [{ name: front, vips: ["192.0.2.9"], prefer: a }]
  sync: { listen: "192.0.2.1:8090", cert: /a.pem, key: /a.key, ca: /ca.pem }
"#;

/// Requests whose answers are recorded.
pub(in crate::admin) const PATHS: &[&str] = &[
    "status",
    "listeners",
    "routes",
    "routes/app.test",
    "figures",
    "clusters",
    "hosts",
    "services",
    "sources",
    "flows",
    "services/dns/flows",
    "explain?host=app.test",
    "explain?host=none.test",
    "explain?host=http://app.test/x&client=192.0.2.7",
    "explain?host=127.0.0.1:10",
    "history?hosts=all",
    "shield",
    "shield/prefixes",
    "shield/explain?client=192.0.2.7",
    "drops",
    "certificates",
    "ha",
    "rotations",
    "migrations",
    "applications",
    "export?format=json",
    "jobs/1",
];

/// State of a balancer that has just started.
fn snapshot(shared: &Shared) -> Snapshot {
    let model = Arc::new(crate::config::parse(CONFIG).unwrap().model);
    let usable = |_, _| Eligibility {
        usable: true,
        ejected: false,
        rotated_out: false,
    };
    let host = HostState::new("east", "east-1", [127, 0, 0, 1].into());
    host.set_health(Health::Healthy);
    *host.last_check.lock() = Some(LastCheck {
        ok: true,
        detail: "connected".into(),
        asked: Some("TCP connect".into()),
        seconds: Some(0.1),
    });
    let host = Arc::new(host);
    let hosts = model
        .clusters
        .iter()
        .map(|cluster| cluster.hosts.iter().map(|_| Arc::clone(&host)).collect());
    let route = RouteState {
        hostname: "app.test".into(),
        ..RouteState::default()
    };
    route.stats.for_cluster("east").connections.inc();
    let listener = |name: &str| {
        Arc::new(ListenerState {
            name: name.into(),
            ..ListenerState::default()
        })
    };
    let cluster = |name: &str| {
        Arc::new(ClusterState {
            name: name.into(),
            ..ClusterState::default()
        })
    };
    let mut snapshot = Arc::into_inner(Shared::new(&model).snapshot.into_inner()).unwrap();
    snapshot.view = RoutingView::new(&model, usable, |_| false);
    snapshot.listeners = model.listeners.iter().map(|of| listener(&of.name)).collect();
    snapshot.clusters = model.clusters.iter().map(|of| cluster(&of.name)).collect();
    snapshot.routes = vec![Arc::new(route)];
    snapshot.draining = vec![Arc::clone(&host)];
    snapshot.hosts = hosts.collect();
    snapshot.binds = crate::state::Binds::new(&model);
    snapshot.file = Arc::clone(&model);
    snapshot.model = model;
    shared.applied.reloads.record("API", None);
    shared.source("agent:east", "agent");
    let peer = PeerState {
        node: "b".into(),
        ..PeerState::default()
    };
    shared.sync.peers.store(Arc::new(vec![Arc::new(peer)]));
    snapshot
}

pub(in crate::admin) fn control() -> Control {
    let model = crate::config::parse(CONFIG).unwrap().model;
    let shared = Arc::new(Shared::new(&model));
    shared.snapshot.store(Arc::new(snapshot(&shared)));
    shared.series.sample(&shared);
    // Services of another state: their thread must not touch the kernel.
    let services = Services::start(Arc::new(Shared::new(&model)), false).unwrap();
    Control {
        shared,
        workers: Vec::new(),
        counters: None,
        facts: Arc::new(Facts {
            steering: "bind",
            workers: 1,
            max_connections: 10,
            without_peek: None,
            sockmap: None,
            degraded: vec![("cut", "no rights".into())],
        }),
        events: mpsc::unbounded_channel().0,
        file: Some(ConfigFile::new("/etc/signalbox.yaml".into(), CONFIG.into())),
        kernel: KernelHandles {
            cut: None,
            flow_gc: None,
            kernel_peek: None,
            services,
        },
        jobs: Arc::default(),
        migrations: Arc::default(),
        routing: CurrentSource::default(),
    }
}

/// Adds the path and the kind of each value. Items of a list are one.
fn add_shape(path: &str, value: &Value, shape: &mut BTreeMap<String, String>) {
    let kind = match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                add_shape(&format!("{path}.{name}"), value, shape);
            }
            return;
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                add_shape(&format!("{path}[]"), item, shape);
            }
            return;
        }
        Value::Object(_) => "object",
        Value::Array(_) => "list",
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "text",
    };
    let known = shape.entry(path.to_owned()).or_default();
    if !known.split('|').any(|one| one == kind) {
        let mut kinds: Vec<_> = known.split('|').filter(|one| !one.is_empty()).collect();
        kinds.push(kind);
        kinds.sort_unstable();
        *known = kinds.join("|");
    }
}

#[tokio::test]
async fn answers_have_the_fields_of_the_file() {
    let router = super::router(control());
    let mut text = String::new();
    for path in PATHS {
        let request = Request::get(format!("/api/v1/{path}")).body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        let mut shape = BTreeMap::new();
        add_shape("", &serde_json::from_slice(&body).unwrap(), &mut shape);
        text += &format!("{path}: {status}\n");
        for (path, kind) in shape {
            text += &format!("  {path}: {kind}\n");
        }
    }
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/admin/api/shapes.txt");
    if std::env::var_os("SIGNALBOX_WRITE_SHAPES").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let wanted = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(text == wanted, "the fields differ from {}:\n{text}", file.display());
}

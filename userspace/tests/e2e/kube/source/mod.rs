//! The Kubernetes source, against an API server that behaves and misbehaves as real ones do. After all faults, its last
//! report agrees with the server's objects.

mod access;
mod faults;
mod lists;

use crate::kube_api;

use std::path::PathBuf;

use kube_api::Api;
use kube_api::objects::{gateway_route, ingress, route, router, router_of_3};
use serde_json::{Value, json};

/// Two Routes, one of them rejected, an object of each other kind, and three router pods of which one is not ready.
pub(crate) fn fill(api: &Api) {
    api.change(|store| {
        store.put("routes", route(2, "bank/web", "app.test"));
        store.put("routes", route(1, "shop/web", "app.test"));
        store.put("ingresses", ingress(1, "shop/in", "in.test"));
        store.put("tlsroutes", gateway_route(1, "shop/tls", "tls.test"));
        store.put("httproutes", gateway_route(1, "shop/http", "http.test"));
        store.put("pods", router("router-1-a", "n1", "10.0.0.1", true));
        store.put("pods", router("router-1-b", "n2", "10.0.0.2", false));
        store.put("pods", router_of_3("router-1-c", "n3", "10.0.0.3"));
        // A pod that is no router's.
        let mut other = router("other", "n4", "10.0.0.4", true);
        other["metadata"]["labels"] = json!({"app": "other"});
        store.put("pods", other);
    });
}

pub(crate) fn connected(view: &Value) -> bool {
    view["connected"] == true
}

fn noted(view: &Value, about: &str, part: &str) -> bool {
    view["notes"]
        .as_object()
        .unwrap()
        .iter()
        .any(|(key, note)| key.starts_with(about) && note.as_str().unwrap().contains(part))
}

/// A file that goes with the test.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("signalbox-source-kube-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

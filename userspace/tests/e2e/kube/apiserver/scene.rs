//! An API server with its needs, a router host, and a balancer that watches the one and leads to the other.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::documented;
use super::objects::{collection, definition, namespace, sent};
use super::plane::Plane;
use crate::kube::agent::address;
use crate::kube_api::objects as mock;
use crate::lab::cut::{self, CutLab};
use crate::lab::{Router, SOON, Signalbox, config, eventually, http, privileged, signalbox};

const HTTP: &str = "10.1.0.1:80";
const ROUTER: &str = "east-1";
const ACCOUNT: &str = "/api/v1/namespaces/signalbox";

/// Parts of a test. Fields are dropped in their order.
pub(super) struct Scene {
    pub(super) sb: Signalbox,
    pub(super) plane: Plane,
    _router: Router,
    lab: CutLab,
}

/// The program to test against. `None` if it has not been built, which fails where tests must run.
fn program(test: &str) -> Option<PathBuf> {
    if !privileged(test) {
        return None;
    }
    let program = std::env::var_os("SIGNALBOX_KUBE_APISERVER").map(PathBuf::from);
    let required = std::env::var("REQUIRE_PRIVILEGED_TESTS").is_ok_and(|v| v == "1");
    let why = "SIGNALBOX_KUBE_APISERVER names no kube-apiserver (`cargo xtask kube` builds one)";
    assert!(program.is_some() || !required, "{test} cannot run: {why}");
    if program.is_none() {
        println!("SKIP {test}: {why}");
    }
    program
}

impl Scene {
    /// Starts a scene with one Route, `shop/web` for `web.test`, which is served; `None` without an API server to test
    /// against.
    pub(super) fn start(test: &str) -> Option<Self> {
        let scene = Self::prepare(test, |_| {})?;
        scene.plane.put(&route("web", "web.test"));
        scene.serves(&["web.test"]);
        scene.sb.wait_healthy(&[ROUTER]);
        Some(scene)
    }

    /// Prepares a scene without a Route; `change` sees the server before the balancer does.
    pub(super) fn prepare(test: &str, change: impl FnOnce(&Plane)) -> Option<Self> {
        let program = program(test)?;
        let lab = cut::lab();
        let router = Router::start(&lab, ROUTER);
        let plane = Plane::start(&lab, program);
        for object in documented::rights() {
            plane.put(&object);
            if object["kind"] == "Namespace" {
                // The routers' namespace must exist before the role in it.
                plane.put(&namespace("openshift-ingress"));
                plane.put(&namespace("shop"));
            }
        }
        for (group, version, kind) in [
            ("route.openshift.io", "v1", "Route"),
            ("gateway.networking.k8s.io", "v1", "HTTPRoute"),
            ("gateway.networking.k8s.io", "v1alpha2", "TLSRoute"),
        ] {
            plane.put(&definition(group, version, kind));
            let version = format!("{group}/{version}");
            plane.has(&collection(&json!({ "apiVersion": version, "kind": kind })));
        }
        put_router(&plane, "router-1");
        change(&plane);

        let dir = lab.dir();
        std::fs::write(dir.join("token"), token(&plane, "signalbox-token")).unwrap();
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "east",
            "clusters": [{ "name": "east", "cluster": { "server": Plane::url(), "certificate-authority": plane.authority() } }],
            "users": [{ "name": "signalbox", "user": { "tokenFile": dir.join("token") } }],
            "contexts": [{ "name": "east", "context": { "cluster": "east", "user": "signalbox" } }],
        });
        std::fs::write(dir.join("kubeconfig"), kubeconfig.to_string()).unwrap();
        // Ready at once: a test may keep the cluster from being read.
        let body = format!(
            "{}timeouts: {{ first_read: 1s }}\nclusters:\n  - {{ name: east, {}, kubernetes: {{ kubeconfig: {}/kubeconfig }} }}\n",
            config::WEB_LISTENERS,
            config::FAST_HEALTH,
            dir.display()
        );
        let sb = Signalbox::start(&lab, &body);
        Some(Self {
            sb,
            plane,
            _router: router,
            lab,
        })
    }

    /// Makes another token of the account, with a Secret whose deletion ends the token.
    pub(super) fn new_token(&self, secret: &str) -> String {
        let object = json!({ "metadata": { "name": secret, "namespace": "signalbox" } });
        self.plane.put(&sent("v1", "Secret", object));
        token(&self.plane, secret)
    }

    /// The token's file is replaced, as its manager would do.
    pub(super) fn write_token(&self, token: &str) {
        let path = self.lab.dir().join("token");
        let new = path.with_extension("new");
        std::fs::write(&new, format!("{token}\n")).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    /// From now on the token is worth nothing: the Secret that it is bound to goes, and the server forgets the accounts
    /// that it knows.
    pub(super) fn revoke(&mut self, secret: &str) {
        self.plane.must("DELETE", &format!("{ACCOUNT}/secrets/{secret}"), None);
        self.plane.kill_server();
        self.plane.start_server();
    }

    pub(super) fn source(&self) -> Value {
        signalbox::find(&self.sb.json("/api/v1/sources")["sources"], "name", "kube:east")
    }

    /// Waits until the source's state is such; returns the state.
    #[track_caller]
    pub(super) fn stands(&self, what: impl Fn(&Value) -> bool) -> Value {
        let mut view = Value::Null;
        let stands = eventually(SOON * 3, || {
            view = self.source();
            what(&view)
        });
        assert!(stands, "{view:#}\n{}", self.sb.proc.log());
        view
    }

    /// Waits until exactly these names are served.
    #[track_caller]
    pub(super) fn serves(&self, names: &[&str]) {
        let wanted: BTreeSet<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut served = BTreeSet::new();
        let right = eventually(SOON * 3, || {
            let routes = self.sb.json("/api/v1/routes");
            let hosts = routes["routes"].as_array().unwrap().iter();
            served = hosts.map(|route| route["host"].as_str().unwrap().to_owned()).collect();
            served == wanted
        });
        assert!(right, "{served:?} instead of {wanted:?}: {:#}", self.source());
    }

    /// Asks for a name as a client; returns the router host's name, or an empty text.
    pub(super) fn ask(&self, name: &str) -> String {
        http::ask(&self.lab, HTTP, name).field("host")
    }

    /// Whether the name leads to the router host.
    pub(super) fn is_served(&self, name: &str) -> bool {
        self.ask(name) == ROUTER
    }
}

pub(super) fn is_connected(view: &Value) -> bool {
    view["connected"] == true
}

pub(super) fn says(view: &Value, part: &str) -> bool {
    view["last_error"].as_str().is_some_and(|error| error.contains(part))
}

/// A Route in namespace `shop`.
pub(super) fn route(name: &str, host: &str) -> Value {
    let object = mock::route(0, &format!("shop/{name}"), host);
    sent("route.openshift.io/v1", "Route", object)
}

/// A router's pod on the lab's router host, as a kubelet would report it.
fn put_router(plane: &Plane, name: &str) {
    let mut pod = sent("v1", "Pod", mock::router(name, ROUTER, address(ROUTER), true));
    pod["spec"]["containers"][0]["image"] = "router".into();
    plane.put(&pod);
    let status = json!({ "status": pod["status"] });
    let path = format!("{}/status", super::objects::path(&pod));
    plane.must("PATCH", &path, Some(&status));
}

/// A token of the documented account, bound to a Secret, as the server issues it on request.
fn token(plane: &Plane, secret: &str) -> String {
    let bound = json!({ "apiVersion": "v1", "kind": "Secret", "name": secret });
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": { "expirationSeconds": 3600, "boundObjectRef": bound },
    });
    let path = format!("{ACCOUNT}/serviceaccounts/signalbox/token");
    let answer = plane.must("POST", &path, Some(&request));
    answer["status"]["token"].as_str().unwrap().to_owned()
}

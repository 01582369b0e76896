//! Objects of a real API server are served, with no more rights than the documents list.

use serde_json::json;

use super::documented;
use super::objects::{path, sent};
use super::scene::{Scene, is_connected, route, says};
use crate::kube_api::objects::{gateway_route, ingress};

mod share_1 {
    use super::*;

    #[test]
    fn names_of_each_kind_of_object_come_change_and_go() {
        let Some(scene) = Scene::start("names_of_each_kind_of_object_come_change_and_go") else {
            return;
        };
        let plane = &scene.plane;
        let ingress = |host: &str| sent("networking.k8s.io/v1", "Ingress", ingress(0, "shop/in", host));
        let of_gateway = |version: &str, kind: &str, host: &str| {
            let version = format!("gateway.networking.k8s.io/{version}");
            sent(
                &version,
                kind,
                gateway_route(0, &format!("shop/{}", kind.to_lowercase()), host),
            )
        };
        let http = |host: &str| of_gateway("v1", "HTTPRoute", host);
        let tls = |host: &str| of_gateway("v1alpha2", "TLSRoute", host);
        for object in [ingress("in.test"), http("http.test"), tls("tls.test")] {
            plane.put(&object);
        }
        scene.serves(&["web.test", "in.test", "http.test", "tls.test"]);
        for name in ["web.test", "in.test", "http.test"] {
            assert!(scene.is_served(name), "{name}");
        }
        for object in [route("web", "web2.test"), ingress("in2.test"), http("http2.test")] {
            plane.put(&object);
        }
        scene.serves(&["web2.test", "in2.test", "http2.test", "tls.test"]);
        assert!(!scene.is_served("web.test") && scene.is_served("web2.test"));
        for object in [route("web", ""), http("")] {
            plane.delete(&object);
        }
        scene.serves(&["in2.test", "tls.test"]);
        // The roles are enough, and nothing was misunderstood.
        let view = scene.stands(is_connected);
        assert_eq!(view["failures"], 0, "{view:#}");
        for event in ["bad_message", "undecodable", "failed", "unauthorized"] {
            assert!(
                view["events"][event].is_null() || view["events"][event] == 0,
                "{view:#}"
            );
        }
    }

    #[test]
    fn a_missing_right_is_named_and_noticed_when_it_is_given() {
        const NAME: &str = "a_missing_right_is_named_and_noticed_when_it_is_given";
        let whole = documented::cluster_role();
        let path = path(&whole);
        let set = |rules: &serde_json::Value| json!({ "rules": rules });
        let mut less = whole["rules"].clone();
        less.as_array_mut()
            .unwrap()
            .retain(|rule| rule["resources"] != json!(["ingresses"]));
        assert_ne!(less, whole["rules"]);
        let prepared = Scene::prepare(NAME, |plane| {
            plane.must("PATCH", &path, Some(&set(&less)));
            plane.put(&route("web", "web.test"));
        });
        let Some(mut scene) = prepared else { return };
        let view = scene.stands(|view| says(view, "the account may not list ingresses.networking.k8s.io (403, "));
        assert!(!is_connected(&view), "{view:#}");
        scene.serves(&[]);
        scene.plane.must("PATCH", &path, Some(&set(&whole["rules"])));
        scene.serves(&["web.test"]);
        scene.stands(is_connected);

        // The right is taken away again: that does not end a running watch, but the next one is refused.
        scene.plane.must("PATCH", &path, Some(&set(&less)));
        scene.plane.kill_server();
        scene.plane.start_server();
        scene.stands(|view| !is_connected(view) && says(view, "ingresses.networking.k8s.io (403, "));
        scene.serves(&["web.test"]);
        scene.plane.put(&route("more", "more.test"));
        scene.serves(&["web.test", "more.test"]);
    }
}

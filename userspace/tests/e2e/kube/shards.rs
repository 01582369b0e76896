//! An API server with two sets of routers, one balancer: each name goes to the hosts of the routers that serve it.

use crate::kube::agent::{Cluster, address};
use crate::kube_api::objects::{route_of, router_of};
use serde_json::json;

use crate::lab::{Router, SOON, Signalbox, config, cut, eventually, http, lab_test, signalbox};

const HTTP: &str = "10.1.0.1:80";

#[lab_test]
fn a_name_goes_to_its_shards_hosts_and_moves_with_its_route() {
    let lab = cut::lab();
    let _routers = Router::start_all(&lab, &["east-1", "east-2"]);
    let east = Cluster::start(&lab.lb);
    let put = |host: &str, routers: &[&str]| {
        let route = route_of(1, &format!("shop/{}", host.replace('.', "-")), host, routers);
        east.api.change(|store| store.put("routes", route));
    };
    east.api.change(|store| {
        store.put(
            "pods",
            router_of("default", "router-default-a", "east-1", address("east-1")),
        );
        store.put(
            "pods",
            router_of("internal", "router-internal-a", "east-2", address("east-2")),
        );
    });
    put("public.example.com", &["default"]);
    put("internal.example.com", &["internal"]);
    put("new.example.com", &[]);
    let mut star = route_of(1, "shop/star", "www.star.example.com", &["internal"]);
    star["spec"]["wildcardPolicy"] = json!("Subdomain");
    east.api.change(|store| store.put("routes", star));

    let cluster = |name: &str, router: &str| {
        format!(
            "  - {{ name: {name}, {}, kubernetes: {{ url: \"http://{}\", resources: [routes], router_name: {router}, wildcards: true }} }}\n",
            config::FAST_HEALTH,
            east.api.addr
        )
    };
    let (public, internal) = (cluster("public", "default"), cluster("internal", "internal"));
    let text = format!(
        "{}clusters:\n{public}{internal}unmatched: reject\n",
        config::WEB_LISTENERS
    );
    let path = signalbox::write_config(&lab, "shards.yaml", &text);
    let sb = Signalbox::start_file(&lab, "signalbox", &path, &[]);
    sb.wait_healthy(&["east-1", "east-2"]);

    let goes_to = |name: &str, host: &str| {
        let asked = || http::ask(&lab, HTTP, name);
        assert!(
            eventually(SOON, || {
                let answer = asked();
                answer.status == 200 && answer.field("host") == host
            }),
            "{name}: {}",
            sb.json(&format!("/api/v1/explain?host={name}"))
        );
        for _ in 0..10 {
            assert_eq!(asked().field("host"), host, "{name}");
        }
    };
    goes_to("public.example.com", "east-1");
    goes_to("internal.example.com", "east-2");
    let explained = sb.json("/api/v1/explain?host=new.example.com");
    assert!(explained["route"].is_null(), "{explained:#}");
    let lost = explained["lost"].as_array().unwrap();
    assert_eq!(lost.len(), 2, "{explained:#}");
    for (lost, router) in lost.iter().zip(["internal", "default"]) {
        let reason = lost["reason"].as_str().unwrap();
        assert!(
            reason.starts_with(&format!("OtherRouter: not admitted by router {router}")),
            "{reason}"
        );
    }
    assert_eq!(http::ask(&lab, HTTP, "new.example.com").status, 404);

    // Left out by each: the new one, and the other's, including the wildcard.
    let rejected = |cluster: &str| {
        sb.metric(&format!(
            "signalbox_routes_rejected{{source=\"kube:{cluster}\",reason=\"OtherRouter\"}}"
        ))
    };
    assert_eq!(
        (rejected("public"), rejected("internal")),
        (3.0, 2.0),
        "{}",
        sb.get("/metrics").1
    );

    // OpenShift's router answers for one label in place of the star, and so does the balancer.
    goes_to("x.star.example.com", "east-2");
    assert_eq!(http::ask(&lab, HTTP, "y.x.star.example.com").status, 404);
    let told = sb.cli(&["explain", "y.x.star.example.com"]);
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(
        told.contains("not *.star.example.com: its star matches one label"),
        "{told}"
    );
    let told = String::from_utf8(sb.cli(&["explain", "x.star.example.com"]).stdout).unwrap();
    assert!(
        told.contains("route *.star.example.com (its star matches one label)"),
        "{told}"
    );
    assert!(
        told.contains("not Route shop/star: OtherRouter: not admitted by router default"),
        "{told}"
    );

    // The new shard admits it before the old one lets it go, and the other way round.
    put("public.example.com", &["default", "internal"]);
    goes_to("public.example.com", "east-1");
    put("public.example.com", &["internal"]);
    goes_to("public.example.com", "east-2");
    put("internal.example.com", &["default"]);
    goes_to("internal.example.com", "east-1");
    put("new.example.com", &["internal"]);
    goes_to("new.example.com", "east-2");
}

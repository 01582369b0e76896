//! Weights by label: names of every source are found by the labels that their claims have, and changed together or not
//! at all.

use crate::kube::agent::{Cluster, address};
use crate::kube_api::objects::{gateway_route, ingress, route, router};
use crate::lab;

use lab::{Lab, SOON, Signalbox, config, eventually, lab_test, signalbox};
use serde_json::{Value, json};

fn labelled(mut object: Value, labels: &Value) -> Value {
    object["metadata"]["labels"] = labels.clone();
    object
}

/// Objects of each kind, as an API server has them.
fn fill(cluster: &Cluster) {
    let web = json!({ "app": "shop", "tier": "web" });
    let batch = json!({ "app": "shop", "tier": "batch" });
    cluster.api.change(|store| {
        store.put("pods", router("router-east-1", "east-1", address("east-1"), true));
        store.put("routes", labelled(route(1, "shop/web", "app.test"), &web));
        store.put("ingresses", labelled(ingress(1, "shop/in", "in.test"), &batch));
        store.put(
            "tlsroutes",
            labelled(gateway_route(1, "bank/tls", "tls.test"), &json!({ "app": "bank" })),
        );
        store.put(
            "httproutes",
            labelled(gateway_route(1, "shop/http", "http.test"), &json!({ "app": "shop" })),
        );
    });
}

/// East is watched, west reported by an agent, old by a plugin of the prototype; the file has one more name.
fn start(lab: &Lab, east: &Cluster) -> Signalbox {
    let health = config::FAST_HEALTH;
    let sb = Signalbox::start(
        lab,
        &format!(
            "{}clusters:\n  - {{ name: east, {health}, kubernetes: {{ url: \"http://{}\" }} }}\n  \
             - {{ name: west, {health}, learn: true }}\n  - {{ name: old, {health}, learn: true }}\nroutes:\n  \
             - {{ host: file.test, clusters: {{ east: 1 }}, labels: {{ app: shop, tier: file }} }}\n",
            config::WEB_LISTENERS,
            east.api.addr
        ),
    );
    let claim = |host: &str, labels: Value| json!({ "host": host, "owner": "shop", "origin": "Route shop/web", "labels": labels });
    let west = json!({ "routes": [
        claim("app.test", json!({ "release": "blue" })),
        claim("two.test", json!([{ "app": "shop" }, { "tier": "batch" }])),
    ] });
    let told = sb.unix("PUT", "/api/v1/clusters/west/learned", &west.to_string());
    assert_eq!(told.status, 200, "{}", told.body);
    let old = json!({ "routes": { "old": { "url": "old.test", "labels": { "app": "shop", "tier": "old" } } } });
    let told = sb.unix("POST", "/api/cluster/old", &old.to_string());
    assert_eq!(told.status, 201, "{}", told.body);
    let all = "app.test file.test http.test in.test old.test tls.test two.test";
    assert!(
        eventually(SOON, || names(&sb, "!none") == all),
        "{}",
        names(&sb, "!none")
    );
    sb
}

/// The names that a selector selects, in order.
fn names(sb: &Signalbox, selector: &str) -> String {
    let said = sb.cli(&["routes", "-o", "json", "--selector", selector]);
    assert!(said.status.success(), "{said:?}");
    let said: Value = serde_json::from_slice(&said.stdout).unwrap();
    let routes = said["routes"].as_array().unwrap();
    let mut names: Vec<_> = routes.iter().map(|route| route["host"].as_str().unwrap()).collect();
    names.sort_unstable();
    names.join(" ")
}

/// The names whose weights for east and west are these.
fn weighed(sb: &Signalbox, east: u32, west: u32) -> String {
    let shares = json!([["east", east], ["west", west]]);
    let is_so = |route: &&Value| {
        let clusters = route["clusters"].as_array().unwrap();
        let of_route: Value = clusters
            .iter()
            .map(|share| json!([share["name"], share["weight"]]))
            .collect();
        of_route == shares
    };
    let routes = sb.json("/api/v1/routes")["routes"].clone();
    let routes = routes.as_array().unwrap().iter().filter(is_so);
    let mut names: Vec<_> = routes.map(|route| route["host"].as_str().unwrap()).collect();
    names.sort_unstable();
    names.join(" ")
}

/// Returns the error of a command that fails.
fn refused(sb: &Signalbox, words: &[&str]) -> String {
    let said = sb.cli(words);
    assert!(!said.status.success(), "{said:?}");
    String::from_utf8(said.stderr).unwrap()
}

#[lab_test]
fn names_are_selected_by_claim_labels_and_weighted_together() {
    let lab = Lab::new();
    let east = Cluster::start(&lab.lb);
    fill(&east);
    let sb = start(&lab, &east);
    for (selector, expected) in [
        ("app=shop", "app.test file.test http.test in.test old.test two.test"),
        ("app=shop,tier!=batch", "app.test file.test http.test old.test two.test"),
        ("release in (blue, green)", "app.test"),
        ("app,tier notin (web,batch,file,old)", "http.test tls.test two.test"),
        // Objects with one name have to match one by one.
        ("app=shop,tier=batch", "in.test"),
        ("!app", "app.test two.test"),
        ("app=none", ""),
    ] {
        assert_eq!(names(&sb, selector), expected, "{selector}");
    }
    let two = signalbox::find(&sb.json("/api/v1/routes")["routes"], "host", "two.test");
    assert_eq!(two["labels"], json!([{ "app": "shop" }, { "tier": "batch" }]));
    let said = refused(&sb, &["routes", "-l", "app=shop,,"]);
    assert!(said.contains("at character 10"), "{said}");

    let selected = "app.test file.test http.test old.test two.test";
    let words = ["weight", "--selector", "app=shop,tier!=batch", "east=50", "west=50"];
    let tried = sb.cli(&[&words[..], &["--dry-run", "--no-headers"]].concat());
    let tried = String::from_utf8(tried.stdout).unwrap();
    let first = tried.lines().filter_map(|line| line.split_whitespace().next());
    assert_eq!(first.collect::<Vec<_>>().join(" "), selected, "{tried}");
    assert_eq!(weighed(&sb, 50, 50), "", "it was only tried");
    assert!(sb.cli(&words).status.success());
    assert_eq!(weighed(&sb, 50, 50), selected);

    // A selection is fixed when the command is given.
    let late = labelled(route(2, "shop/late", "late.test"), &json!({ "app": "shop" }));
    east.api.change(|store| store.put("routes", late));
    let expected = "app.test file.test http.test in.test late.test old.test two.test";
    assert!(eventually(SOON, || names(&sb, "app=shop") == expected));
    assert_eq!(weighed(&sb, 50, 50), selected);
    // A label that an object loses is lost.
    let bare = labelled(route(2, "shop/late", "late.test"), &json!({ "app": "other" }));
    east.api.change(|store| store.put("routes", bare));
    assert!(eventually(SOON, || names(&sb, "app=other") == "late.test"));

    // Selected names that have weights lose them.
    assert!(
        sb.cli(&["weight", "-l", "app in (shop, bank)", "--clear"])
            .status
            .success()
    );
    assert_eq!(weighed(&sb, 50, 50), "");
}

#[lab_test]
fn a_selector_that_selects_nothing_or_too_much_changes_nothing() {
    let lab = Lab::new();
    let east = Cluster::start(&lab.lb);
    fill(&east);
    let sb = start(&lab, &east);
    let said = refused(&sb, &["weight", "-l", "app=none", "east=1"]);
    assert!(said.contains("there is no name of selector app=none"), "{said}");
    let said = refused(&sb, &["weight", "-l", "app in shop", "east=1"]);
    assert!(
        said.contains("at character 8 values in parentheses are expected"),
        "{said}"
    );
    let said = refused(&sb, &["weight", "-l", "app=shop", "--clear"]);
    assert!(
        said.contains("no weights are set for a name of selector app=shop"),
        "{said}"
    );

    let put = |body: Value| sb.unix("PUT", "/api/v1/weights", &body.to_string());
    let both = json!({ "app=shop": { "east": 7, "west": 3 }, "tier=web": { "west": 1 } });
    let said = put(json!({ "selectors": both }));
    assert!(
        said.status == 422
            && said
                .body
                .contains("app.test is of selector app=shop and of selector tier=web"),
        "{}",
        said.body
    );
    // A single wrong name refuses the whole change: here an unknown route, there an unknown cluster.
    let said =
        put(json!({ "selectors": { "app=shop": { "east": 7, "west": 3 } }, "routes": { "none.test": { "east": 1 } } }));
    assert!(
        said.status == 422 && said.body.contains("there is no route none.test"),
        "{}",
        said.body
    );
    let said = put(json!({ "selectors": { "app=shop": { "east": 7, "none": 3 } } }));
    assert!(
        said.status == 422 && said.body.contains("there is no cluster none"),
        "{}",
        said.body
    );
    assert_eq!(weighed(&sb, 7, 3), "");

    // Weights of the name itself override those of selectors.
    let said = put(json!({ "selectors": both, "routes": { "app.test": { "east": 2, "west": 8 } } }));
    assert_eq!(said.status, 200, "{}", said.body);
    assert_eq!(weighed(&sb, 7, 3), "file.test http.test in.test old.test two.test");
    assert_eq!(weighed(&sb, 2, 8), "app.test");
    let wrong = json!({ "routes": [{ "host": "a.test", "origin": "x", "labels": { "a b": "c" } }] });
    let said = sb.unix("PUT", "/api/v1/clusters/west/learned", &wrong.to_string());
    assert!(
        said.status >= 400 && said.body.contains("not a Kubernetes label"),
        "{}",
        said.body
    );
}

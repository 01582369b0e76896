//! OpenShift's routing events, posted: an application appears, moves, is rotated, and goes without leftovers.

use crate::lab;

use lab::{Router, SOON, Signalbox, config, cut, eventually, http, lab_test};
use serde_json::{Value, json};

const HTTP: &str = "10.1.0.1:80";

fn endpoint(action: &str, gear: &str, at: &str, kind: &str) -> String {
    let (address, port) = at.split_once(':').unwrap();
    format!(
        "---\n:action: :{action}\n:app_name: phpha\n:namespace: demo\n:gear_id: {gear}\n:public_port_name: haproxy-1.4\n\
         :public_address: {address}\n:public_port: {port}\n:protocols:\n- http\n- ws\n:types:\n- {kind}\n:mappings:\n\
         - frontend: ''\n  backend: ''\n"
    )
}

fn event(action: &str, more: &str) -> String {
    format!("---\n:action: :{action}\n:app_name: phpha\n:namespace: demo\n{more}")
}

fn post(sb: &Signalbox, text: &str) -> Value {
    let response = sb.unix("POST", "/api/v1/routing-events", text);
    assert_eq!(response.status, 200, "{}", response.body);
    serde_json::from_str(&response.body).unwrap()
}

fn table(sb: &Signalbox) -> Value {
    sb.json("/api/v1/applications/demo/phpha")
}

#[lab_test]
fn an_application_lives_and_leaves_nothing_behind() {
    let lab = cut::lab();
    let _routers = Router::start_all(&lab, &["east-1", "east-2", "east-3"]);
    let certificates = lab.dir().join("certificates");
    // The broker's address has no listener: posted events still count.
    let body = format!(
        "subset: {{ size: 100% }}\nrouting_events: {{ brokers: [\"127.0.0.1:9\"], destination: /queue/routing, domain: cloud.test, certificates: {} }}\n{}clusters: []\n",
        certificates.display(),
        config::WEB_LISTENERS
    );
    let mut sb = Signalbox::start(&lab, &body);
    assert_eq!(sb.json("/api/v1/applications")["total"], 0);
    let born = [
        event("create_application", ":scalable: true\n:ha: false\n"),
        endpoint("add_public_endpoint", "542b", "10.2.0.2:80", "load_balancer"),
        endpoint("add_public_endpoint", "542c", "10.2.0.3:80", "web_framework").replace("haproxy-1.4", "php-5.3"),
        event("add_alias", ":alias: Shop.example.com\n"),
        event(
            "add_ssl",
            ":alias: shop.example.com\n:ssl: |\n  CERTIFICATE\n:private_key: |\n  VERY-SECRET\n:pass_phrase: \n",
        ),
    ]
    .concat();
    let outcome = post(&sb, &born);
    assert_eq!(
        (&outcome["outcome"]["events"], &outcome["outcome"]["changed"]),
        (&json!(5), &json!(["demo/phpha"]))
    );
    assert_eq!(
        post(&sb, &born)["outcome"]["changed"],
        json!([]),
        "at least once is not twice"
    );
    let names = ["shop.example.com", "ha-phpha-demo.cloud.test"];
    for name in names {
        assert!(
            eventually(SOON, || http::ask(&lab, HTTP, name).status == 200),
            "{}",
            sb.json("/api/v1/hosts")
        );
        assert_eq!(
            http::ask(&lab, HTTP, name).field("host"),
            "east-1",
            "endpoints of another type get nothing"
        );
    }
    // The application's figures, and its part of the hosts that this balancer uses.
    let figures = || sb.json("/api/v1/applications/demo/phpha/figures")["figures"].clone();
    assert!(figures()["connections"].as_u64() >= Some(4), "{}", figures());
    assert_eq!(figures()["clusters"].as_object().unwrap().len(), 1, "{}", figures());
    assert_eq!(sb.get("/api/v1/applications/demo/none/figures").0, 404);
    assert_eq!(sb.json("/api/v1/hosts")["hosts"][0]["subset"], "own");

    // All answers of the API about an application.
    let shown = table(&sb);
    assert_eq!(
        shown["urls"],
        json!(["http://shop.example.com/", "http://ha-phpha-demo.cloud.test/"]),
        "aliases first; no HTTPS, for no host of the application speaks it, whatever certificates there are"
    );
    assert_eq!(
        shown["balancers"],
        json!([{ "address": "10.2.0.2", "port": 80, "gear_id": "542b" }])
    );
    let gears: Vec<_> = shown["endpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| [&e["gear_id"], &e["takes_connections"]])
        .collect();
    assert_eq!(json!(gears), json!([["542b", true], ["542c", false]]));
    assert_eq!(
        (&shown["ha"], &shown["certificates"]),
        (&json!(false), &json!(["shop.example.com"]))
    );
    let curl = |words: &[&str]| {
        let mut all = vec![
            "curl",
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} %header{etag}",
            "http://127.0.0.1:8089/api/v1/applications/demo/phpha",
        ];
        all.extend(words);
        String::from_utf8(lab.lb.output(&all).stdout).unwrap()
    };
    let first = curl(&[]);
    let tag = first.strip_prefix("200 ").unwrap().to_owned();
    assert!(curl(&["-H", &format!("If-None-Match: {tag}")]).starts_with("304 "));
    assert_eq!(
        sb.json("/api/v1/applications?type=load_balancer&namespace=demo")["total"],
        1
    );
    assert_eq!(sb.json("/api/v1/applications?protocol=mysql")["total"], 0);
    assert_eq!(sb.get("/api/v1/applications/demo/none").0, 404);

    // A bad document among good ones: none of them counts.
    let bad = [
        event("add_alias", ":alias: other.example.com\n"),
        event("add_nothing", ""),
    ]
    .concat();
    let response = sb.unix("POST", "/api/v1/routing-events", &bad);
    assert!(
        response.status == 400 && response.body.contains("document 2, line 7"),
        "{}",
        response.body
    );
    assert_eq!(
        curl(&["-H", &format!("If-None-Match: {tag}")])[..4],
        *"304 ",
        "nothing has changed"
    );

    // kill -9: acknowledged events are there at once.
    sb.kill9();
    sb = Signalbox::start(&lab, &body);
    assert!(eventually(SOON, || sb.json("/api/v1/applications")["total"] == 1));
    assert!(eventually(SOON, || http::ask(&lab, HTTP, names[0]).status == 200));
    assert_eq!(table(&sb)["urls"], shown["urls"]);

    // The application becomes highly available; then its first gear is rotated, then moves.
    post(
        &sb,
        &endpoint("add_public_endpoint", "542d", "10.2.0.3:80", "load_balancer"),
    );
    assert_eq!(table(&sb)["ha"], true);
    assert!(eventually(SOON, || (0..8)
        .any(|_| http::ask(&lab, HTTP, names[0]).field("host") == "east-2")));
    let said = sb.cli(&["rotate", "out", "542b"]);
    assert!(
        String::from_utf8_lossy(&said.stdout).contains("out of rotation: gear:542b"),
        "{said:?}"
    );
    for _ in 0..8 {
        assert_eq!(http::ask(&lab, HTTP, names[0]).field("host"), "east-2");
    }
    assert_eq!(table(&sb)["endpoints"][0]["out_of_rotation"], "gear:542b");
    sb.cli(&["rotate", "in", "gear:542b"]);
    let moved = [
        endpoint("add_public_endpoint", "542b", "10.2.0.4:80", "load_balancer"),
        event(
            "remove_public_endpoint",
            ":gear_id: 542b\n:public_address: 10.2.0.2\n:public_port: 80\n",
        ),
    ]
    .concat();
    post(&sb, &moved);
    assert!(eventually(SOON, || (0..8)
        .any(|_| http::ask(&lab, HTTP, names[0]).field("host") == "east-3")));
    for _ in 0..8 {
        assert_ne!(http::ask(&lab, HTTP, names[0]).field("host"), "east-1");
    }
    assert!(certificates.read_dir().unwrap().count() > 0);
    post(&sb, &event("delete_application", ""));
    assert!(eventually(SOON, || http::ask(&lab, HTTP, names[0]).status == 404));
    let left: Vec<_> = certificates.read_dir().unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(sb.json("/api/v1/applications")["total"], 0);
    let log = sb.proc.log();
    assert!(!log.contains("VERY-SECRET") && !shown.to_string().contains("VERY-SECRET"));
    let stored = std::fs::read(lab.dir().join("state.redb")).unwrap();
    assert!(!stored.is_empty());
}

//! The API as its description and its errors show it, and changes that are probably mistakes.

use crate::lab;

use std::collections::BTreeSet;

use lab::{Lab, Router, Signalbox, config, lab_test};
use serde_json::{Value, json};

#[lab_test]
fn each_operation_has_a_name_of_its_own() {
    let lab = Lab::new();
    let sb = Signalbox::start(&lab, &config::tcp("", &["east-1"]));
    let document = sb.json("/api/v1/openapi.json");
    let paths = document["paths"].as_object().unwrap();
    let operations = paths.values().flat_map(|path| path.as_object().unwrap().values());
    let names: Vec<_> = operations
        .map(|operation| operation["operationId"].as_str().unwrap())
        .collect();
    assert!(names.len() > 60, "{names:?}");
    let is_camel_case = |name: &&str| {
        name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(|c| c.is_ascii_alphabetic())
    };
    assert!(names.iter().all(is_camel_case), "{names:?}");
    let unique: BTreeSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len(), "{names:?}");
    assert_eq!(paths["/api/v1/hosts"]["get"]["operationId"], "listHosts");
}

#[lab_test]
fn errors_of_the_framework_are_problems_with_a_remedy() {
    let lab = Lab::new();
    let sb = Signalbox::start(&lab, &config::tcp("", &["east-1"]));
    let socket = lab.dir().join("admin.sock");
    let ask = |method: &str, path: &str| {
        let url = format!("http://localhost{path}");
        let words = [
            "curl",
            "--silent",
            "-w",
            "\n%{content_type}",
            "-X",
            method,
            "--unix-socket",
        ];
        let text = lab.lb.must(&[&words[..], &[socket.to_str().unwrap(), &url]].concat());
        let (body, kind) = text.rsplit_once('\n').unwrap();
        (serde_json::from_str::<Value>(body).unwrap_or_default(), kind.to_owned())
    };
    for (method, path, status, detail) in [
        ("GET", "/nosuch", 404, "/nosuch is not known here"),
        ("GET", "/api/v1/nosuch", 404, "openapi.json lists the paths"),
        (
            "DELETE",
            "/api/v1/hosts",
            405,
            "/api/v1/hosts takes GET, HEAD, not DELETE",
        ),
        ("POST", "/api/v1/migrations/x/pause", 400, "Cannot parse `x` to a `u64`"),
        ("GET", "/api/v1/flows?limit=x", 400, "invalid digit"),
    ] {
        let (problem, kind) = ask(method, path);
        assert_eq!(kind, "application/problem+json", "{path}: {problem}");
        assert_eq!(
            (&problem["status"], &problem["type"]),
            (&json!(status), &json!("about:blank"))
        );
        assert!(problem["title"].is_string(), "{path}: {problem}");
        let said = problem["detail"].as_str().unwrap();
        assert!(said.contains(detail), "{path}: {said}");
    }
    // Answers of handlers stay as they are.
    assert_eq!(sb.unix("GET", "/livez", "").body, "ok\n");
}

#[lab_test]
fn changes_that_cut_everybody_off_want_force() {
    let lab = Lab::new();
    let _routers = Router::start_all(&lab, &["east-1"]);
    let route = "{ host: app.example.com, clusters: { east: 1, west: 1 } }";
    let sb = Signalbox::start(&lab, &format!("shield: {{}}\n{}", config::web(&[route])));
    sb.wait_healthy(&["east-1"]);

    let prefixes = |body: &Value| sb.unix("PUT", "/api/v1/shield/prefixes/*", &body.to_string());
    let all = json!({ "deny": ["0.0.0.0/0"], "allow": ["10.0.0.0/8"] });
    let refused = prefixes(&all);
    assert_eq!(refused.status, 409, "{}", refused.body);
    assert!(refused.body.contains("shield load --force"), "{}", refused.body);
    let mut forced = all;
    forced["force"] = json!(true);
    assert_eq!(prefixes(&forced).status, 200);
    let unclear = prefixes(&json!({ "deny": [], "forget": ["192.0.2.0/24"] }));
    assert_eq!(unclear.status, 400, "{}", unclear.body);

    // No host of the other cluster takes connections.
    let weights = json!({ "clusters": { "east": 0, "west": 1 } }).to_string();
    let refused = sb.unix("PUT", "/api/v1/routes/app.example.com", &weights);
    assert_eq!(refused.status, 409, "{}", refused.body);
    let refused = sb.cli(&["weight", "app.example.com", "west=1"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("signalbox weight --force"),
        "{said}"
    );
    assert!(
        sb.cli(&["weight", "app.example.com", "west=1", "--force"])
            .status
            .success()
    );
    // The name has no such host to lose now, and may get one.
    assert!(sb.cli(&["weight", "app.example.com", "west=2"]).status.success());
    assert!(sb.cli(&["weight", "app.example.com", "east=1"]).status.success());
}

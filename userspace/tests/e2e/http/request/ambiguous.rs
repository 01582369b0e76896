//! Paths that a host may read as another one, in spellings by which no route is found.

use super::scene::{Client, WebHost, config_of};
use crate::lab::http::{curl, field};
use crate::lab::{Lab, Signalbox, lab_test};

const HOSTS: [&str; 2] = ["east-1", "east-2"];
const ROUTES: [&str; 2] = [
    "{ host: a.test, clusters: { east-1: 1 } }",
    "{ host: a.test, path: /login, clusters: { east-2: 1 } }",
];

/// Ways to write `/login`.
const SPELLINGS: [&str; 4] = ["//login", "/./login", "/%6cogin", "/x/../login"];

fn start(lab: &Lab) -> ([WebHost; 2], Signalbox, String) {
    let hosts = HOSTS.map(|host| WebHost::start(lab, host));
    let text = config_of("", &HOSTS, &ROUTES);
    let sb = Signalbox::start(lab, &text);
    sb.wait_healthy(&HOSTS);
    (hosts, sb, text)
}

/// Status and host of the answer to a GET of a path, in HTTP/1.1 and in HTTP/2.
fn ask(lab: &Lab, path: &str) -> (u16, String) {
    let answer = Client::connect(lab).get("a.test", path);
    let url = format!("http://a.test{path}");
    let words = ["--http2-prior-knowledge", "--path-as-is", "-w", "%{http_code}", &url];
    let over_http2 = curl(lab, "10.1.0.1", &words).body;
    assert_eq!(over_http2, format!("{}{}", answer.text, answer.status), "{path}");
    let host = if answer.status == 200 {
        field(&answer.text, "host")
    } else {
        String::new()
    };
    (answer.status, host)
}

#[lab_test]
fn a_path_that_may_be_another_routes_is_refused() {
    let lab = Lab::new();
    let ([east_1, _east_2], sb, _) = start(&lab);
    for path in SPELLINGS
        .into_iter()
        .chain(["/x%2f..%2Flogin", "/login;x=1", "/x/..;/login/y"])
    {
        assert_eq!(ask(&lab, path).0, 400, "{path}");
    }
    let refused = sb.metric("signalbox_request_refused_total{reason=\"ambiguous_path\"}");
    assert!((refused - 14.0).abs() < 0.5, "{refused}");
    assert_eq!(ask(&lab, "/login").1, "east-2");
    assert!(
        east_1.take().is_empty(),
        "a request that was refused has come to a host"
    );
    // All readings of these paths belong to the same route, so they pass unchanged.
    for path in ["//other/", "/group%2fproject", "/a/../b", "/x;y/loginpage"] {
        assert_eq!(ask(&lab, path), (200, "east-1".to_owned()), "{path}");
        assert!(
            east_1
                .take()
                .iter()
                .all(|head| head.starts_with(&format!("GET {path} ")))
        );
    }
    // Escapes are decoded once, as RFC 3986, 2.4, requires: a host that decodes twice reads /login here.
    let twice = "/x/%252e%252e/login";
    assert_eq!(ask(&lab, twice), (200, "east-1".to_owned()));
    assert!(east_1.take()[0].starts_with(&format!("GET {twice} ")));
    // The connection stays open.
    let mut client = Client::connect(&lab);
    assert_eq!(client.get("a.test", "//login").status, 400);
    assert_eq!(client.get("a.test", "/").status, 200);
}

#[lab_test]
fn paths_are_normalized_for_routes_and_for_hosts() {
    let lab = Lab::new();
    let ([east_1, east_2], sb, text) = start(&lab);
    sb.reload(&text.replace("routing: request,", "routing: request, ambiguous_paths: normalize,"));
    for path in SPELLINGS {
        assert_eq!(
            ask(&lab, &format!("{path}?back=//x/..")),
            (200, "east-2".to_owned()),
            "{path}"
        );
        let heads = east_2.take();
        assert!(
            heads.len() == 2 && heads.iter().all(|head| head.starts_with("GET /login?back=//x/.. ")),
            "{heads:?}"
        );
    }
    let mut client = Client::connect(&lab);
    client.send("GET http://a.test/x/..//login HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert_eq!(client.answer("GET").status, 200);
    assert!(east_2.take()[0].starts_with("GET /login HTTP/1.1\r\n"));
    assert_eq!(ask(&lab, "/x%2f..%2flogin").0, 400, "what no spelling settles");
    assert_eq!(ask(&lab, "/group%2fproject//x"), (200, "east-1".to_owned()));
    assert!(east_1.take()[0].starts_with("GET /group%2fproject/x "));
    // Limits of the path hold for all its spellings.
    let limited = text
        .replace("routing: request,", "routing: request, ambiguous_paths: normalize,")
        .replace(
            "path: /login,",
            "path: /login, limits: { requests: { rate: 1, burst: 2 } },",
        );
    sb.reload(&limited);
    let mut client = Client::connect(&lab);
    let refused = |path: &str| client.get("a.test", path).status == 429;
    assert!(
        SPELLINGS.into_iter().cycle().take(40).any(refused),
        "no spelling has a limit"
    );
}

#[lab_test]
fn paths_pass_by_their_bytes_where_that_is_wanted() {
    let lab = Lab::new();
    let ([east_1, _east_2], sb, text) = start(&lab);
    sb.reload(&text.replace("routing: request,", "routing: request, ambiguous_paths: pass,"));
    for path in SPELLINGS {
        assert_eq!(ask(&lab, path), (200, "east-1".to_owned()), "{path}");
        assert!(
            east_1
                .take()
                .iter()
                .all(|head| head.starts_with(&format!("GET {path} ")))
        );
    }
}

#[lab_test]
fn explain_says_which_paths_are_refused() {
    let lab = Lab::new();
    let (_hosts, sb, text) = start(&lab);
    let explained = |path: &str| {
        let output = sb.cli(&["explain", "http://a.test/", "--path", path]);
        String::from_utf8(output.stdout).unwrap()
    };
    let expect = |path: &str, parts: &[&str]| {
        let text = explained(path);
        parts
            .iter()
            .for_each(|part| assert!(text.contains(part), "{path}: {part}: {text}"));
    };
    let refused = [
        "hosts may read the path as that of another route",
        "the client gets HTTP 400",
    ];
    expect("/login", &["next: east-2/east-2"]);
    expect("/x/../login?a=b", &refused);
    expect("/x/%252e%252e/login", &["next: east-1/east-1"]);
    sb.reload(&text.replace("routing: request,", "routing: request, ambiguous_paths: normalize,"));
    expect("/x/../login", &["the path becomes /login", "next: east-2/east-2"]);
    expect("/x%2f..%2flogin", &refused);
    sb.reload(&text.replace("routing: request,", "routing: request, ambiguous_paths: pass,"));
    expect("/x/../login", &["next: east-1/east-1"]);
    let wrong = sb.cli(&["explain", "a.test", "--path", "login"]);
    assert!(!wrong.status.success(), "{wrong:?}");
}

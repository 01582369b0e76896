//! Names that wildcards match, and those among them that userspace routes.

use crate::lab;

use lab::{Router, SOON, config, eventually, http};

use super::{PEEK, exits, expect_routes, start_with};

/// Two wildcards in the kernel, one within the other, and a name; a name and a wildcard whose routes are userspace's.
const ROUTES: &str = "
  - { host: \"*.test\", clusters: { east: 1 } }
  - { host: \"*.deep.test\", clusters: { west: 1 } }
  - { host: b.test, clusters: { west: 1 } }
  - { host: c.test, clusters: { west: 1 }, path: / }
  - { host: \"*.left.test\", clusters: { west: 1 }, path: / }
";

/// Names, the hosts that they lead to, and whether the kernel routes them.
const NAMES: [(&str, &str, bool); 11] = [
    ("a.test", "east-1", true),
    ("A.Test", "east-1", true),
    ("y.x.test", "east-1", true),
    ("deep.test", "east-1", true),
    ("left.test", "east-1", true),
    ("d.deep.test", "west-2", true),
    ("e.d.deep.test", "west-2", true),
    ("b.test", "west-2", true),
    ("c.test", "west-2", false),
    ("l.left.test", "west-2", false),
    // Without its last dot userspace knows it.
    ("a.test.", "east-1", false),
];

/// Names that no route has, and the status of the answer.
const UNKNOWN: [(&str, u16); 4] = [("test", 404), ("atest", 404), (".test", 400), ("a..test", 400)];

/// Routes and Ingresses of a cluster claim wildcards of one label; the configuration has others of any number.
#[test]
fn a_wildcard_of_one_label_stands_for_no_more() {
    let Some(lab) = super::lab("a_wildcard_of_one_label_stands_for_no_more") else {
        return;
    };
    let _routers = Router::start_all(&lab, &["east-1", "west-2"]);
    let clusters = config::cluster("east", &["learn: true"], &["east-1"]) + &config::cluster("west", &[], &["west-2"]);
    let routes = "\n  - { host: \"*.test\", clusters: { west: 1 } }\n";
    let body = format!("{PEEK}\n{}clusters:\n{clusters}routes:{routes}", config::WEB_LISTENERS);
    let sb = start_with(&lab, &body, 2);
    sb.wait_healthy(&["east-1", "west-2"]);
    let claims = r#"{ "routes": [{ "host": "*.one.test", "depth": "one", "weight": 1, "origin": "Route shop/web" }] }"#;
    let answer = sb.unix("PUT", "/api/v1/clusters/east/learned", claims);
    assert_eq!(answer.status, 200, "{}", answer.body);
    expect_routes(&sb, 4);
    for (name, host) in [
        ("a.one.test", "east-1"),
        ("b.a.one.test", "west-2"),
        ("one.test", "west-2"),
    ] {
        let before = exits(&sb, "routed");
        assert_eq!(http::ask(&lab, "10.1.0.1:80", name).field("host"), host, "{name}");
        assert_eq!(exits(&sb, "routed"), before + 1, "{name}");
    }
}

#[test]
fn the_longest_wildcard_wins_except_for_names_with_own_routes() {
    let Some(lab) = super::lab("the_longest_wildcard_wins_except_for_names_with_own_routes") else {
        return;
    };
    let _routers = Router::start_all(&lab, &["east-1", "west-2"]);
    let clusters = config::cluster("east", &[], &["east-1"]) + &config::cluster("west", &[], &["west-2"]);
    let with = |routes: &str| format!("{PEEK}\n{}clusters:\n{clusters}routes:{routes}", config::WEB_LISTENERS);
    let sb = start_with(&lab, &with(ROUTES), 6);
    sb.wait_healthy(&["east-1", "west-2"]);
    for (name, host, in_kernel) in NAMES {
        let before = exits(&sb, "routed");
        assert_eq!(http::ask(&lab, "10.1.0.1:80", name).field("host"), host, "{name}");
        assert_eq!(exits(&sb, "routed") - before, u64::from(in_kernel), "{name}");
        // Passed-through TLS has no path to route by.
        if name.ends_with('.') || !in_kernel {
            continue;
        }
        let tls = http::curl(&lab, "10.1.0.1", &["-k", &format!("https://{name}/")]);
        assert_eq!(http::field(&tls.body, "host"), host, "{name}: {}", tls.trace);
        assert_eq!(exits(&sb, "routed") - before, u64::from(in_kernel) * 2, "{name}");
    }
    let before = exits(&sb, "routed");
    for (name, status) in UNKNOWN {
        assert_eq!(http::ask(&lab, "10.1.0.1:80", name).status, status, "{name}");
    }
    // 62 bytes are read in the kernel, and no more.
    let long = format!("{}.test", "x".repeat(57));
    assert_eq!(http::ask(&lab, "10.1.0.1:80", &long).field("host"), "east-1");
    assert_eq!(exits(&sb, "routed"), before + 1);
    let longer = format!("x{long}");
    assert_eq!(http::ask(&lab, "10.1.0.1:80", &longer).field("host"), "east-1");
    assert_eq!(exits(&sb, "routed"), before + 1);
    for (name, said) in [
        ("x.test", "routed in the kernel, without a socket"),
        (longer.as_str(), "(long_name)"),
        ("http://c.test/", "(per_request)"),
        ("http://l.left.test/", "(per_request)"),
    ] {
        let output = sb.cli(&["explain", name]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(said), "{name}: {text}");
    }
    // An exception that goes leaves its names to the wildcard; a wildcard that goes, to the wider one.
    sb.reload(&with("\n  - { host: \"*.test\", clusters: { east: 1 } }\n"));
    for name in ["c.test", "l.left.test", "d.deep.test", "b.test"] {
        let is_routed = || {
            let before = exits(&sb, "routed");
            let host = http::ask(&lab, "10.1.0.1:80", name).field("host");
            host == "east-1" && exits(&sb, "routed") == before + 1
        };
        assert!(eventually(SOON, is_routed), "{name}");
    }
}

//! Routes that treat some clients otherwise: those clients get sockets, and the kernel routes all others.

use crate::lab;

use lab::topology::OTHER_CLIENTS;
use lab::{Router, SOON, config, eventually, http};

use super::{PEEK, exits, start_with};

const CLIENT: &str = "10.1.0.2";

/// Keys of a route to clusters east and west; whether the program routes an ordinary and another client; their answers.
const CASES: [(&str, [bool; 2], [&str; 2]); 5] = [
    (
        "prefer: [{ cluster: west, clients: [10.1.0.3/32] }]",
        [true, false],
        ["east-1", "west-2"],
    ),
    ("allow: [10.1.0.2/32]", [true, false], ["east-1", "403"]),
    ("allow: [10.1.0.0/24]", [true, true], ["east-1", "east-1"]),
    ("allow: [\"::/0\"]", [false, false], ["403", "403"]),
    (
        "allow: [10.1.0.0/16], prefer: [{ cluster: west, clients: [10.1.0.0/24] }]",
        [false, false],
        ["west-2", "west-2"],
    ),
];

#[test]
fn lists_cost_only_their_own_clients_the_kernel_peek() {
    let Some(lab) = super::lab("lists_cost_only_their_own_clients_the_kernel_peek") else {
        return;
    };
    let _routers = Router::start_all(&lab, &["east-1", "west-2"]);
    let clusters = config::cluster("east", &[], &["east-1"]) + &config::cluster("west", &[], &["west-2"]);
    let with = |name: &str, keys: &str| {
        format!(
            "{PEEK}\n{}clusters:\n{clusters}routes:\n  - {{ host: {name}, clusters: {{ east: 1, west: 0 }}, {keys} }}\n",
            config::WEB_LISTENERS
        )
    };
    let sb = start_with(&lab, &with("a.test", CASES[0].0), 2);
    sb.wait_healthy(&["east-1", "west-2"]);
    // Names and wildcards, which have different entries.
    for (pattern, name) in [("a.test", "a.test"), ("\"*.test\"", "w.test")] {
        for (keys, routed, answers) in CASES {
            sb.reload(&with(pattern, keys));
            for ((client, is_routed), answer) in [CLIENT, OTHER_CLIENTS[0]].into_iter().zip(routed).zip(answers) {
                let case = format!("{name}, {keys}, {client}");
                let before = exits(&sb, "routed");
                let host = format!("Host: {name}");
                let got = lab.client.must(&[
                    "curl",
                    "-sS",
                    "-m",
                    "10",
                    "--interface",
                    client,
                    "-w",
                    "\nstatus: %{http_code}\n",
                    "-H",
                    &host,
                    "http://10.1.0.1/",
                ]);
                let expected = if answer == "403" { "status: 403" } else { answer };
                assert!(got.contains(expected), "{case}: {got}");
                assert_eq!(exits(&sb, "routed") - before, u64::from(is_routed), "{case}");
                let output = sb.cli(&["explain", name, "--client", client]);
                let text = String::from_utf8_lossy(&output.stdout);
                let said = text.contains("routed in the kernel, without a socket");
                assert_eq!(said, is_routed, "{case}: {text}");
            }
            let text = sb.cli(&["explain", name]).stdout;
            let text = String::from_utf8_lossy(&text);
            assert!(text.contains("leaves some clients"), "{keys}: {text}");
        }
    }
    sb.reload(&with("a.test", "drain: 60s"));
    let explained = || String::from_utf8_lossy(&sb.cli(&["explain", "a.test"]).stdout).into_owned();
    let is_for_all = || !explained().contains("leaves some clients");
    assert!(eventually(SOON, is_for_all), "{}", explained());
    assert_eq!(http::ask(&lab, "10.1.0.1:80", "a.test").field("host"), "east-1");
}

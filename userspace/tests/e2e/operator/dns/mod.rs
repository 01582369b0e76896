//! `signalbox dns`: real name servers serve its output, and clients that ask them reach signalbox.

mod health_checked;
mod pages;
mod servers;

use serde_json::Value;

use self::servers::{Dig, Named, ZONE, curl_by_name, dnsmasq, has_programs, must, run, zone_is_good};
use crate::lab::{Lab, Router, Signalbox, config, privileged};

/// Names of the table, all kinds of them; one of another zone, and one that no host can have.
const ROUTES: [&str; 5] = [
    "{ host: app.example.com, clusters: { east: 1 } }",
    "{ host: \"*.apps.example.com\", clusters: { east: 1 } }",
    "{ host: x.apps.example.com, clusters: { east: 1 } }",
    "{ host: shop.example.net, clusters: { east: 1 } }",
    "{ host: a_b.example.com, clusters: { east: 1 } }",
];

/// Second address of the listeners.
const OTHER_VIP: &str = "10.1.0.10";

fn body(listen: &str) -> String {
    let routes = ROUTES.map(str::to_owned);
    format!(
        "listeners:\n  - {{ name: http, protocol: http, listen: [{listen}] }}\nclusters:\n{}routes:\n{}",
        config::cluster("east", &[], &["east-1"]),
        config::yaml_list("  ", &routes)
    )
}

/// A balancer at three addresses, and its host.
fn start(lab: &Lab) -> (Vec<Router>, Signalbox) {
    lab.add_lb_address(&format!("{OTHER_VIP}/24"));
    let routers = Router::start_all(lab, &["east-1"]);
    let listen = format!("\"10.1.0.1:80\", \"{OTHER_VIP}:80\", \"[fd00:1::1]:80\"");
    let sb = Signalbox::start(lab, &body(&listen));
    sb.wait_healthy(&["east-1"]);
    (routers, sb)
}

/// Output of `signalbox dns` with these words, which must succeed.
fn printed(sb: &Signalbox, words: &[&str]) -> String {
    must(sb.cli(&[&["dns"], words].concat()))
}

/// Checks of the records at a name server, and of the clients that use them.
fn expect_served(lab: &Lab, dig: &Dig<'_>) {
    let both = ["10.1.0.1", OTHER_VIP];
    for name in [
        "app.example.com",
        "new.apps.example.com",
        "x.apps.example.com",
        "deep.x.apps.example.com",
    ] {
        assert_eq!(dig.addresses(name, "A"), both, "{name}");
        assert_eq!(dig.addresses(name, "AAAA"), ["fd00:1::1"], "{name}");
        for family in ["-4", "-6"] {
            let answer = curl_by_name(lab, &[family, &format!("http://{name}/")]);
            // Every name without its own route has the wildcard's.
            assert!(answer.contains("host=east-1"), "{name} by {family}: {answer}");
        }
    }
    let rotated = (0..50).any(|_| dig.first("app.example.com") == "10.1.0.1")
        && (0..50).any(|_| dig.first("app.example.com") == OTHER_VIP);
    assert!(rotated, "both addresses come first in turn");
}

#[test]
fn named_serves_a_printed_zone_that_leads_clients_to_signalbox() {
    let test = "named_serves_a_printed_zone_that_leads_clients_to_signalbox";
    if !privileged(test) || !has_programs(test) {
        return;
    }
    let lab = Lab::new();
    let (_routers, sb) = start(&lab);
    let words = [
        "-o",
        "bind",
        "--zone",
        ZONE,
        "--skip-outside",
        "--name-server",
        "ns1.example.com=10.1.0.2",
    ];
    let zone = printed(&sb, &[&words[..], &["--ttl", "77"]].concat());
    assert!(
        zone.contains("; not in the zone example.com: shop.example.net") && zone.contains("a_b.example.com"),
        "{zone}"
    );
    zone_is_good(&lab, &zone);
    let named = Named::start(&lab.client, &lab, &zone, "");
    let dig = named.dig("10.1.0.2");
    expect_served(&lab, &dig);
    assert!(dig.ask(&["app.example.com", "A"]).contains("\t77\tIN\tA\t"), "the TTL");
    assert!(dig.ask(&["other.example.com", "A"]).contains("status: NXDOMAIN"));
    assert!(dig.ask(&["a_b.example.com", "A"]).contains("status: NXDOMAIN"));
    let soa = dig.ask(&[ZONE, "SOA"]);
    assert!(soa.contains("ns1.example.com. hostmaster.example.com."), "{soa}");
}

#[test]
fn dnsmasq_serves_printed_lines_that_lead_clients_to_signalbox() {
    let test = "dnsmasq_serves_printed_lines_that_lead_clients_to_signalbox";
    if !privileged(test) || !has_programs(test) {
        return;
    }
    let lab = Lab::new();
    let (_routers, sb) = start(&lab);
    let lines = printed(&sb, &["-o", "dnsmasq"]);
    let (server, dig) = dnsmasq(&lab, &lines);
    expect_served(&lab, &dig);
    assert_eq!(dig.addresses("shop.example.net", "AAAA"), ["fd00:1::1"]);
    assert_eq!(
        dig.addresses("apps.example.com", "A"),
        [""; 0],
        "a wildcard is not its domain"
    );
    // With virtual addresses these are the names' addresses, in a running signalbox, too.
    sb.reload(&(body(&format!("\"*:80\", \"{OTHER_VIP}:443\"")) + &format!("ha: {{ vips: [{OTHER_VIP}] }}\n")));
    let lines = printed(&sb, &["-o", "dnsmasq"]);
    assert!(
        lines.contains(&format!("host-record=app.example.com,{OTHER_VIP},300")),
        "{lines}"
    );
    assert!(!lines.contains("10.1.0.1,"), "{lines}");
    // A type without an address is answered here, and by no other name server.
    let lines = printed(&sb, &["-o", "dnsmasq", "--address", "10.1.0.1"]);
    drop(server);
    let (_server, dig) = dnsmasq(&lab, &lines);
    let answer = dig.ask(&["new.apps.example.com", "AAAA"]);
    assert!(
        answer.contains("status: NOERROR") && answer.contains("ANSWER: 0"),
        "{answer}"
    );
}

#[test]
fn a_client_goes_on_to_the_next_address_when_one_is_dead() {
    let test = "a_client_goes_on_to_the_next_address_when_one_is_dead";
    if !privileged(test) || !has_programs(test) {
        return;
    }
    let lab = Lab::new();
    let (_routers, sb) = start(&lab);
    // The balancer's machine has the address, and nothing listens there: the balancer that was at it has died.
    let dead = "10.1.0.9";
    lab.add_lb_address(&format!("{dead}/24"));
    let words = [
        "--address",
        dead,
        "--address",
        "10.1.0.1",
        "--zone",
        ZONE,
        "--skip-outside",
    ];
    let zone = printed(
        &sb,
        &[&words[..], &["-o", "bind", "--name-server", "ns1.example.com=10.1.0.2"]].concat(),
    );
    assert!(
        zone.contains("; no listener has 10.1.0.9: nothing answers there"),
        "{zone}"
    );
    let named = Named::start(&lab.client, &lab, &zone, "");
    let dig = named.dig("10.1.0.2");
    assert_eq!(dig.addresses("app.example.com", "A"), ["10.1.0.1", dead]);
    for _ in 0..8 {
        let answer = curl_by_name(&lab, &["http://app.example.com/"]);
        assert!(answer.contains("host=east-1"), "{answer}");
    }
}

/// The name server checks whether records for an existing zone's file are valid.
#[test]
fn records_of_a_file_fit_into_a_zone_that_exists() {
    let test = "records_of_a_file_fit_into_a_zone_that_exists";
    if !privileged(test) || !has_programs(test) {
        return;
    }
    let lab = Lab::new();
    let file = crate::lab::signalbox::write_config(&lab, "signalbox.yaml", &body("\"*:80\", \"10.1.0.1:443\""));
    let file = file.to_str().unwrap();
    let dns = |words: &[&str]| run(&[&["dns", "-f", file], words].concat());
    let records = must(dns(&[
        "-o",
        "bind",
        "--zone",
        ZONE,
        "--skip-outside",
        "--address",
        "fd00:1::1",
    ]));
    let path = lab.dir().join("records");
    std::fs::write(&path, &records).unwrap();
    zone_is_good(
        &lab,
        &format!(
            "$TTL 60\n@ IN SOA ns hostmaster 1 3600 600 1209600 60\n@ IN NS ns\nns IN A 10.1.0.2\n$INCLUDE {}\n",
            path.display()
        ),
    );
    // The listener's own address, and a hint about the others.
    let table = dns(&[]);
    let (out, notes) = (
        String::from_utf8_lossy(&table.stdout),
        String::from_utf8_lossy(&table.stderr),
    );
    assert!(out.contains("app.example.com") && out.contains("10.1.0.1"), "{out}");
    assert!(
        notes.contains("listens at every address (0.0.0.0/0:80)") && notes.contains("--address"),
        "{notes}"
    );
    let all: Value = serde_json::from_str(&must(dns(&["-o", "json", "--ttl", "0"]))).unwrap();
    assert_eq!(
        all["records"][0],
        serde_json::json!({ "name": "app.example.com", "type": "A", "address": "10.1.0.1", "ttl": 0 })
    );
    for (words, why) in [
        (&["--zone", ZONE][..], "not in the zone example.com: shop.example.net"),
        (&["--zone", "example.org", "--skip-outside"], "no name is routed"),
        (
            &["--listener", "web"],
            "no listener web routes by name; those that do: http",
        ),
        (
            &[
                "--zone",
                ZONE,
                "--skip-outside",
                "-o",
                "bind",
                "--name-server",
                "ns1.example.com",
            ],
            "ns1.example.com=192.0.2.53",
        ),
    ] {
        let output = dns(words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            (output.status.code(), output.stdout.len()),
            (Some(1), 0),
            "{words:?}: {error}"
        );
        assert!(error.contains(why), "{words:?}: {error}");
    }
    // Virtual addresses come before the listener's own.
    let text = std::fs::read_to_string(file).unwrap();
    std::fs::write(file, text + "ha: { vips: \"10.1.0.10-11\" }\n").unwrap();
    let all: Value = serde_json::from_str(&must(dns(&["-o", "json"]))).unwrap();
    let addresses = all["records"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| &record["address"]);
    assert_eq!(
        addresses.take(2).collect::<Vec<_>>(),
        ["10.1.0.10", "10.1.0.11"],
        "{all}"
    );
    std::fs::write(file, "version: 7").unwrap();
    assert_eq!(dns(&[]).status.code(), Some(2));
}

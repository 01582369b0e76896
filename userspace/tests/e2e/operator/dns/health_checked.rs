//! Records that follow the health of balancers, by the script of the page on DNS.

use super::pages::block;
use super::servers::{Named, has_programs};
use crate::lab::{Lab, Router, Signalbox, config, privileged};

/// Address in the balancer's namespace where no admin API listens: a balancer that is down.
const DOWN: &str = "127.0.0.2";

#[test]
fn records_are_kept_to_the_balancers_that_are_ready() {
    let test = "records_are_kept_to_the_balancers_that_are_ready";
    if !privileged(test) || !has_programs(test) {
        return;
    }
    let lab = Lab::new();
    let _routers = Router::start_all(&lab, &["east-1"]);
    let sb = Signalbox::start(&lab, &config::web(&["{ host: a.test, clusters: { east: 1 } }"]));
    sb.wait_healthy(&["east-1"]);
    let zone = "$TTL 60\n@ IN SOA ns hostmaster 1 3600 600 1209600 60\n@ IN NS ns\nns IN A 127.0.0.1\n\
                *.apps IN A 127.0.0.1\n*.apps IN A 127.0.0.2\n";
    let declared = block("named");
    let policy = declared
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("update-policy"))
        .unwrap();
    let named = Named::start(&lab.lb, &lab, zone, policy);
    let dig = named.dig("127.0.0.1");
    let name = "app.apps.example.com";
    assert_eq!(dig.addresses(name, "A"), ["127.0.0.1", DOWN]);
    // The page's script, with the addresses of the lab.
    let key = lab.dir().join("named/session.key");
    let script = [
        ("zone=apps.example.com", "zone=example.com".to_owned()),
        ("*.$zone", "*.apps.$zone".to_owned()),
        ("192.0.2.11 192.0.2.12", format!("127.0.0.1 {DOWN}")),
        ("nsupdate -l", format!("nsupdate -l -k {}", key.display())),
    ]
    .into_iter()
    .fold(block("health"), |script, (there, here)| {
        assert!(script.contains(there), "{there}: {script}");
        script.replace(there, &here)
    });
    let check = || lab.lb.output(&["sh", "-c", &script]);
    let done = check();
    assert!(done.status.success(), "{done:?}");
    assert_eq!(dig.addresses(name, "A"), ["127.0.0.1"]);
    // Where none is ready, the records stay.
    drop(sb);
    assert!(!check().status.success());
    assert_eq!(dig.addresses(name, "A"), ["127.0.0.1"]);
}

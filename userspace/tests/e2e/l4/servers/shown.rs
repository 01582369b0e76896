//! Answers about services, where an operator may get hosts and names wrong.

use super::east;
use crate::lab::services::greeter;
use crate::lab::{Lab, SOON, Server, Signalbox, eventually, lab_test};

/// Service `s` with hosts of both families, and `d` of direct return, for which a host names a port.
fn start(lab: &Lab) -> (Server, Signalbox) {
    let server = greeter(lab.host("east-1"), "[::]:6000", "east-1");
    let services = east::service("s", "[tcp, udp]", 6000, "") + &east::service("d", "tcp", 6001, ", mode: dsr-l2");
    let named = "name: east-1, address: 10.2.0.2";
    let text =
        east::body(&services, 6000, &["east-1"]).replace(named, &format!("{named}, ports: {{ d: 6500, s: 6000 }}"));
    let sb = Signalbox::start(lab, &text);
    sb.wait_healthy(&["east-1", "east-1-v6"]);
    (server, sb)
}

#[lab_test]
fn wrong_address_family_unused_port_and_unknown_name_are_shown() {
    let lab = Lab::new();
    let (_server, sb) = start(&lab);
    let run = |words: &[&str]| {
        let output = sb.cli(words);
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    };
    for (to, other) in [("10.1.0.1:6000", "east-1-v6"), ("[fd00:1::1]:6000", "east-1 ")] {
        let told = || {
            let (_, said) = run(&["explain", to]);
            let line = said.lines().find(|line| line.contains(other));
            line.is_some_and(|line| line.contains("takes none: it has no address of this family"))
        };
        assert!(eventually(SOON, told), "{:?}", run(&["explain", to]));
    }
    let services = sb.json("/api/v1/services")["services"].clone();
    let port = |name: &str| {
        let service = services.as_array().unwrap().iter().find(|one| one["name"] == name);
        service.unwrap()["hosts"][0]["port"].clone()
    };
    assert_eq!((port("s"), port("d")), (6000.into(), serde_json::Value::Null));
    assert!(run(&["flows", "--service", "s"]).0);
    let (is_good, said) = run(&["flows", "--service", "s:udp"]);
    assert!(
        !is_good && said.contains("there is no service \"s:udp\", but s, d"),
        "{said}"
    );
}

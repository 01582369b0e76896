//! Hosts of UDP services that are checked by datagrams: real name servers, and servers with given answers.

use crate::lab;

use lab::services::{Answerer, ask, udp};
use lab::{Lab, Ns, Proc, SOON, Signalbox, available, eventually, lab_test};

/// A name server on port 53 that knows one name.
fn name_server(host: &Ns, name: &str, lab: &Lab) -> Proc {
    let mut command = host.command("dnsmasq");
    command.args([
        "--keep-in-foreground",
        "--log-facility=-",
        "--conf-file=/dev/null",
        "--user=root",
    ]);
    command.args([
        "--pid-file=",
        "--no-resolv",
        "--no-hosts",
        "--host-record=health.test,192.0.2.1,2001:db8::1",
    ]);
    Proc::spawn(&format!("{name}-dnsmasq"), command, lab.dir())
}

fn body(check: &str, port: u16) -> String {
    format!(
        r#"services:
  - {{ name: dns, protocol: udp, listen: ["10.1.0.1:53", "[fd00:1::1]:53"], cluster: east }}
clusters:
  - name: east
    health: {{ udp: {check}, interval: 1s, fast_interval: 300ms, timeout: 500ms, rise: 1, fall: 2 }}
    hosts:
      - {{ name: east-1, address: 10.2.0.2, ports: {{ dns: {port} }} }}
      - {{ name: east-2-v6, address: "fd00:2::3", ports: {{ dns: {port} }} }}
"#
    )
}

fn wait_state(sb: &Signalbox, host: &str, is_healthy: bool, detail: &str) {
    let is_so = || {
        let host = sb.host(host);
        let said = host["last_check"]["detail"].as_str().unwrap_or_default();
        (host["health"] == "healthy") == is_healthy && said.contains(detail)
    };
    assert!(eventually(SOON, is_so), "{host}: {}", sb.host(host));
}

#[lab_test]
fn name_servers_are_asked_for_a_name() {
    if !available("name_servers_are_asked_for_a_name", &[("dnsmasq", "dnsmasq-base")]) {
        return;
    }
    let lab = Lab::new();
    let first = name_server(lab.host("east-1"), "east-1", &lab);
    let _second = name_server(lab.host("east-2"), "east-2", &lab);
    let sb = Signalbox::start(&lab, &body("{ dns: health.test }", 53));
    sb.wait_healthy(&["east-1", "east-2-v6"]);
    wait_state(&sb, "east-1", true, "DNS NOERROR");
    assert_eq!(sb.host("east-1")["checked_by"], "DNS on port 53");
    drop(first);
    wait_state(&sb, "east-1", false, "refused");
    let _third = name_server(lab.host("east-1"), "east-1-again", &lab);
    wait_state(&sb, "east-1", true, "DNS NOERROR");
    sb.reload(&body("{ dns: other.test }", 53));
    wait_state(&sb, "east-2-v6", false, "DNS REFUSED");
}

#[lab_test]
fn an_answer_must_have_what_is_expected() {
    let lab = Lab::new();
    let _first = Answerer::start(lab.host("east-1"), "[::]:5353", "east-1");
    let _second = Answerer::start(lab.host("east-2"), "[::]:5353", "east-2");
    let sb = Signalbox::start(&lab, &body(r#"{ send: "who?", expect: "-1:who" }"#, 5353));
    wait_state(&sb, "east-1", true, "answers with 11 bytes");
    wait_state(&sb, "east-2-v6", false, "has not what is expected");
    assert!(eventually(SOON, || ask(&udp(&lab, "10.1.0.1:53"), b"a").as_deref()
        == Some("east-1")));
    sb.reload(&body(r#"{ send: "hex:ff00" }"#, 5353));
    sb.wait_healthy(&["east-1", "east-2-v6"]);
}

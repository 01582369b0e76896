//! iperf3: a server on each host, a client, and both reports of a transfer.

use std::process::{Command, Output};

use serde_json::Value;

use super::east::{self, ALL};
use crate::lab::{self, Lab, Ns, Proc, Server, Signalbox};

pub(crate) const PROGRAMS: [(&str, &str); 1] = [("iperf3", "iperf3")];

/// The servers, with a port beside for the checks: a client that connects to an iperf3 server and says nothing disturbs
/// it.
pub(crate) struct Servers {
    _iperf: Vec<Proc>,
    _checks: Vec<Server>,
}

pub(crate) fn servers(lab: &Lab) -> Servers {
    let server = |host| {
        let mut command = lab.host(host).command("iperf3");
        command.arg("--server");
        Proc::spawn(&format!("{host}-iperf3"), command, lab.dir())
    };
    let servers = Servers {
        _iperf: ALL.map(server).into(),
        _checks: ALL.map(|host| lab::servers::healthy(lab.host(host))).into(),
    };
    for host in ALL {
        let listens = || lab.host(host).must(&["ss", "-Hltn", "sport = :5201"]).contains("5201");
        assert!(lab::eventually(lab::SOON, listens), "iperf3 does not listen on {host}");
    }
    servers
}

/// The services. The TCP and UDP traffic of an iperf3 test must reach the same server: by source it does.
pub(crate) fn body() -> String {
    let service = |protocol: &str| east::service(protocol, protocol, 5201, ", affinity: source");
    east::body(&(service("tcp") + &service("udp")), 1936, &ALL)
}

/// A client, from one of the client's addresses to one of the balancer's.
pub(crate) fn client(lab: &Lab, from: &str, to: &str, words: &[&str]) -> Command {
    let mut command = lab.client.command("iperf3");
    command.args(["--json", "--client", to, "--bind", from, "--connect-timeout", "10000"]);
    command.args(words);
    command
}

/// Parses the final report.
pub(crate) fn report(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(output.status.success(), "{}", report["error"]);
    report
}

/// A number of a report.
pub(crate) fn number(report: &Value, path: &str) -> f64 {
    let found = report.pointer(path).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("there is no {path} in {report:#}"))
}

/// Bytes of a service that the balancer has counted.
pub(crate) fn counted(sb: &Signalbox, service: &str, direction: &str) -> f64 {
    sb.metric(&format!(
        "signalbox_service_bytes_total{{service=\"{service}\",direction=\"{direction}\"}}"
    ))
}

/// Datagrams that sockets of a namespace had no room for: the balancer has delivered them.
pub(crate) fn overflowed(ns: &Ns) -> f64 {
    let text = ns.must(&["nstat", "--json", "--zeros", "--ignore", "--noupdate"]);
    let all: Value = serde_json::from_str(&text).unwrap();
    number(&all, "/kernel/UdpRcvbufErrors") + number(&all, "/kernel/Udp6RcvbufErrors")
}

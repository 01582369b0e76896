//! The part of `doctor` about high availability: whether keepalived is installed, and what a running signalbox reports
//! about its virtual addresses and the other nodes that share them.

use std::process::Command;

use serde_json::Value;

use super::{CheckStatus, Finding, degraded, ok};

const WHAT: &str = "high availability";
/// Oldest keepalived release that accepts the output of `signalbox ha run`, as far as known.
const OLDEST_KEEPALIVED: (u32, u32) = (2, 2);

/// Returns the findings. `ha` is the answer of a running signalbox to `GET /api/v1/ha`, if there is one.
pub(super) fn examine(ha: Option<&anyhow::Result<Value>>) -> Vec<Finding> {
    let Some(Ok(ha)) = ha else {
        return vec![keepalived(false, &version_line())];
    };
    if ha["configured"] != true {
        return vec![keepalived(false, &version_line())];
    }
    let is_needed = ha["mode"] == "keepalived";
    let mut findings = vec![availability(ha)];
    if is_needed {
        findings.push(keepalived(true, &version_line()));
    }
    findings
}

/// First line of keepalived's version; empty if it is not installed.
fn version_line() -> String {
    let output = Command::new("keepalived").arg("--version").output();
    let said = output
        .map(|output| [output.stderr, output.stdout].concat())
        .unwrap_or_default();
    let said = String::from_utf8_lossy(&said).into_owned();
    said.lines().next().unwrap_or_default().to_owned()
}

fn keepalived(is_needed: bool, line: &str) -> Finding {
    let what = "keepalived";
    let version = line
        .split_once(" v")
        .map(|(_, rest)| rest.split(' ').next().unwrap_or_default());
    let Some(version) = version else {
        let mut finding = ok(what, "not installed: only `ha` needs it");
        if is_needed {
            finding.standing = CheckStatus::Missing;
            finding.found = "not installed".to_owned();
            finding.advice = Some(
                "`signalbox ha run` cannot give addresses to this node: install the package \
                      keepalived"
                    .to_owned(),
            );
        }
        return finding;
    };
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let release = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if release < OLDEST_KEEPALIVED {
        let (major, minor) = OLDEST_KEEPALIVED;
        let advice = format!(
            "releases before {major}.{minor} have not been tested with the configuration that \
                              signalbox writes"
        );
        return degraded(what, version, advice);
    }
    ok(what, version)
}

/// Finds problems of virtual addresses and of the replication of flows.
fn availability(ha: &Value) -> Finding {
    let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let groups: Vec<_> = list(&ha["groups"])
        .iter()
        .map(|group| format!("{} {}", text(&group["name"]), text(&group["state"])))
        .collect();
    let mut wrong = Vec::new();
    if ha["supervised"] != true && ha["mode"] != "external" {
        wrong.push("no `signalbox ha run` is connected, so this node has no addresses: start it".to_owned());
    }
    if ha["ready"] != true {
        let reasons: Vec<_> = list(&ha["reasons"]).iter().map(text).collect();
        wrong.push(format!(
            "this node is not eligible for addresses: {}",
            reasons.join(", ")
        ));
    }
    let peers = list(&ha["sync"]["peers"]);
    wrong.extend(peers.iter().filter_map(peer_problem));
    if wrong.is_empty() && ha["may_preempt"] != true {
        wrong.push(
            "this node does not know all flows of the other nodes yet: it does not take over groups \
                 from them"
                .to_owned(),
        );
    }
    let names: Vec<_> = peers.iter().map(|peer| text(&peer["node"])).collect();
    let flows = if names.is_empty() {
        "flows are not replicated".to_owned()
    } else {
        format!("flows are replicated with {}", names.join(", "))
    };
    let found = format!(
        "{} on {}: {}; {flows}",
        text(&ha["name"]),
        text(&ha["node"]),
        groups.join(", ")
    );
    if wrong.is_empty() {
        ok(WHAT, found)
    } else {
        degraded(WHAT, found, wrong.join("; "))
    }
}

/// Returns the problem between this node and another one.
fn peer_problem(peer: &Value) -> Option<String> {
    let node = peer["node"].as_str().unwrap_or("unknown");
    if peer["sending"] != true {
        let why = peer["send_error"].as_str().unwrap_or("it has not been reached yet");
        return Some(format!(
            "{node} does not get this node's flows ({why}): they end if this node fails"
        ));
    }
    if peer["receiving"] != true {
        return Some(format!(
            "{node} does not report its flows: see its log and `signalbox ha sync` there"
        ));
    }
    if peer["rejected"]["no_room"].as_u64().unwrap_or_default() > 0 {
        return Some(format!("there was no room for flows of {node}: raise `ha.sync.flows`"));
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(sending: bool, receiving: bool, no_room: u64) -> Value {
        json!({
            "configured": true, "name": "router-west", "mode": "keepalived", "node": "node-a", "supervised": true,
            "ready": true, "reasons": [], "may_preempt": true,
            "groups": [{ "name": "g1", "state": "master" }, { "name": "g2", "state": null }],
            "sync": { "peers": [{
                "node": "node-b", "sending": sending, "receiving": receiving, "rejected": { "no_room": no_room },
                "send_error": "connection refused",
            }] },
        })
    }

    fn advice(ha: &Value) -> String {
        let finding = availability(ha);
        assert_eq!(finding.standing, CheckStatus::Degraded);
        finding.advice.unwrap()
    }

    #[test]
    fn a_node_that_is_well_is_described() {
        let finding = availability(&answer(true, true, 0));
        assert_eq!(
            (finding.standing, finding.found.as_str()),
            (
                CheckStatus::Ok,
                "router-west on node-a: g1 master, g2 unknown; flows are replicated with node-b"
            )
        );
    }

    #[test]
    fn whatever_is_wrong_is_said() {
        assert!(advice(&answer(false, true, 0)).contains("node-b does not get this node's flows (connection refused)"));
        assert!(advice(&answer(true, false, 0)).contains("node-b does not report"));
        assert!(advice(&answer(true, true, 3)).contains("raise `ha.sync.flows`"));
        let mut ha = answer(true, true, 0);
        (ha["supervised"], ha["ready"], ha["reasons"]) = (false.into(), false.into(), json!(["starting"]));
        let advice = advice(&ha);
        assert!(
            advice.contains("no `signalbox ha run`") && advice.contains("not eligible for addresses: starting"),
            "{advice}"
        );
    }

    #[test]
    fn keepalived_is_asked_for_its_version() {
        let line = "Keepalived v2.2.7 (01/16,2022)";
        let found = |is_needed, line| {
            let finding = keepalived(is_needed, line);
            (finding.standing, finding.found)
        };
        assert_eq!(found(true, line), (CheckStatus::Ok, "2.2.7".to_owned()));
        assert_eq!(found(true, "Keepalived v2.0.10 (11/12,2018)").0, CheckStatus::Degraded);
        assert_eq!(found(true, "").0, CheckStatus::Missing);
        assert_eq!(found(false, "").0, CheckStatus::Ok);
    }
}

//! The part of `doctor` about high availability: whether keepalived is installed, and what a running signalbox reports
//! about its virtual addresses and the other nodes that share them.

use std::process::Command;

use signalbox_api::ha::{GroupView, HaAnswer, HaNode, PeerView};
use signalbox_core::availability::ha::notice::GroupState;

use super::{CheckStatus, Finding, degraded, ok};

const WHAT: &str = "high availability";
/// Oldest keepalived release that accepts the output of `signalbox ha run`, as far as known.
const OLDEST_KEEPALIVED: (u32, u32) = (2, 2);

/// Returns the findings. `ha` is the answer of a running signalbox, if there is one.
pub(super) fn examine(ha: Option<&HaAnswer>) -> Vec<Finding> {
    let node = ha.and_then(|ha| Some((ha, ha.node.as_ref()?)));
    let Some((ha, node)) = node else {
        return vec![keepalived(false, &version_line())];
    };
    let mut findings = vec![availability(node, &ha.groups)];
    if node.mode == "keepalived" {
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
fn availability(node: &HaNode, groups: &[GroupView]) -> Finding {
    let group = |group: &GroupView| {
        let state = group.state.map_or("unknown", GroupState::as_str);
        format!("{} {state}", group.name)
    };
    let groups: Vec<_> = groups.iter().map(group).collect();
    let condition = &node.condition;
    let mut wrong = Vec::new();
    if node.lacks_supervisor() {
        wrong.push("no `signalbox ha run` is connected, so this node has no addresses: start it".to_owned());
    }
    if !condition.ready {
        wrong.push(format!(
            "this node is not eligible for addresses: {}",
            condition.reasons.join(", ")
        ));
    }
    let peers = node.sync.as_ref().map_or(&[][..], |sync| &sync.peers);
    wrong.extend(peers.iter().filter_map(peer_problem));
    if wrong.is_empty() && !condition.may_preempt {
        wrong.push(
            "this node does not know all flows of the other nodes yet: it does not take over groups \
                 from them"
                .to_owned(),
        );
    }
    let names: Vec<_> = peers.iter().map(|peer| peer.node.as_str()).collect();
    let flows = if names.is_empty() {
        "flows are not replicated".to_owned()
    } else {
        format!("flows are replicated with {}", names.join(", "))
    };
    let found = format!("{} on {}: {}; {flows}", node.name, node.node, groups.join(", "));
    if wrong.is_empty() {
        ok(WHAT, found)
    } else {
        degraded(WHAT, found, wrong.join("; "))
    }
}

/// Returns the problem between this node and another one.
fn peer_problem(peer: &PeerView) -> Option<String> {
    let node = &peer.node;
    if !peer.sending {
        let why = peer.send_error.as_deref().unwrap_or("it has not been reached yet");
        return Some(format!(
            "{node} does not get this node's flows ({why}): they end if this node fails"
        ));
    }
    if !peer.receiving {
        return Some(format!(
            "{node} does not report its flows: see its log and `signalbox ha sync` there"
        ));
    }
    let no_room = peer.rejected.get("no_room").copied().unwrap_or_default();
    (no_room > 0).then(|| format!("there was no room for flows of {node}: raise `ha.sync.flows`"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(sending: bool, receiving: bool, no_room: u64) -> HaAnswer {
        serde_json::from_value(json!({
            "configured": true, "name": "router-west", "mode": "keepalived", "node": "node-a", "supervised": true,
            "ready": true, "reasons": [], "may_preempt": true,
            "groups": [{ "name": "g1", "state": "master" }, { "name": "g2", "state": null }],
            "sync": { "peers": [{
                "node": "node-b", "sending": sending, "receiving": receiving, "rejected": { "no_room": no_room },
                "send_error": "connection refused",
            }] },
        }))
        .unwrap()
    }

    fn found(ha: &HaAnswer) -> Finding {
        availability(ha.node.as_ref().unwrap(), &ha.groups)
    }

    fn advice(ha: &HaAnswer) -> String {
        let finding = found(ha);
        assert_eq!(finding.standing, CheckStatus::Degraded);
        finding.advice.unwrap()
    }

    #[test]
    fn a_node_that_is_well_is_described() {
        let finding = found(&answer(true, true, 0));
        assert_eq!(
            (finding.standing, finding.found.as_str()),
            (
                CheckStatus::Ok,
                "router-west on node-a: g1 master, g2 unknown; flows are replicated with node-b"
            )
        );
    }

    #[test]
    fn advice_names_each_fault_of_a_node_and_its_peers() {
        assert!(advice(&answer(false, true, 0)).contains("node-b does not get this node's flows (connection refused)"));
        assert!(advice(&answer(true, false, 0)).contains("node-b does not report"));
        assert!(advice(&answer(true, true, 3)).contains("raise `ha.sync.flows`"));
        let mut ha = answer(true, true, 0);
        let node = ha.node.as_mut().unwrap();
        node.supervised = false;
        (node.condition.ready, node.condition.reasons) = (false, vec!["starting".into()]);
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

//! The part of `doctor` about rights: tests capabilities by use, pins an object for a moment, and asks a running
//! signalbox for missing ones.

use signalbox_api::status::StatusAnswer;

use signalbox_kernel::capabilities::{self, Capability};
use signalbox_kernel::pins::{self, bpffs};

use super::{Finding, degraded, ok};

/// Tests all capabilities that signalbox uses.
pub(super) fn capabilities() -> Finding {
    missing_capabilities(&capabilities::missing())
}

fn missing_capabilities(missing: &[Capability]) -> Finding {
    let what = "capabilities";
    let all = capabilities::ALL.map(|right| right.name);
    if missing.is_empty() {
        return ok(what, all.join(", "));
    }
    let names: Vec<_> = missing.iter().map(|right| right.name).collect();
    let follows: Vec<_> = missing
        .iter()
        .map(|right| format!("without {} {}", right.name, right.without))
        .collect();
    let remedy = format!("run as root, or with AmbientCapabilities={}", all.join(" "));
    degraded(
        what,
        format!("without {}", names.join(", ")),
        format!("{}; {remedy}", follows.join("; ")),
    )
}

/// Tests whether pins can be made, and whether they outlive the process.
pub(super) fn pins() -> Finding {
    let what = "pinned maps";
    if let Err(error) = pins::test_pinning() {
        let advice =
            "there is no cut-through, and there are no services: both need pinned maps, which outlive the process";
        return degraded(what, format!("nothing can be pinned: {error}"), advice);
    }
    match bpffs::private_reason() {
        None => ok(what, "can be made under /sys/fs/bpf/signalbox"),
        Some(why) => degraded(what, "they end with the process", why),
    }
}

/// Reports the answer of a running signalbox about itself.
pub(super) fn running_capabilities(status: anyhow::Result<StatusAnswer>) -> Finding {
    let what = "running signalbox";
    let status = match status {
        Ok(status) => status,
        Err(error) => return degraded(what, "does not answer", format!("{error:#}")),
    };
    let found = format!("pid {}, {}", status.pid, status.state.as_str());
    let degraded_features = status.degraded.iter().map(|of| (&of.feature, &of.why));
    let missing = status.missing_features.iter().map(|of| (&of.feature, &of.why));
    let lacks = degraded_features.chain(missing);
    let lacks: Vec<_> = lacks.map(|(feature, why)| format!("{feature}: {why}")).collect();
    if lacks.is_empty() {
        ok(what, found)
    } else {
        degraded(what, found, lacks.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::CheckStatus;
    use super::*;

    #[test]
    fn each_missing_capability_is_named_with_what_follows() {
        let finding = missing_capabilities(&capabilities::ALL[2..4]);
        assert_eq!(
            (finding.standing, finding.found.as_str()),
            (CheckStatus::Degraded, "without CAP_PERFMON, CAP_NET_RAW")
        );
        let advice = finding.advice.unwrap();
        for said in [
            "cut-through",
            "reset",
            "AmbientCapabilities=CAP_BPF CAP_NET_ADMIN CAP_PERFMON CAP_NET_RAW CAP_NET_BIND_SERVICE",
        ] {
            assert!(advice.contains(said), "{said}: {advice}");
        }
        assert_eq!(missing_capabilities(&[]).standing, CheckStatus::Ok);
    }

    #[test]
    fn a_running_signalbox_says_what_it_lacks() {
        let status = json!({
            "pid": 7, "state": "serving", "degraded": [{ "feature": "pins", "why": "private" }], "missing_features": [],
        });
        let finding = running_capabilities(Ok(serde_json::from_value(status).unwrap()));
        assert_eq!(
            (finding.standing, finding.found.as_str(), finding.advice.as_deref()),
            (CheckStatus::Degraded, "pid 7, serving", Some("pins: private"))
        );
        assert_eq!(
            running_capabilities(Ok(StatusAnswer::default())).standing,
            CheckStatus::Ok
        );
        assert_eq!(
            running_capabilities(Err(anyhow::anyhow!("refused"))).standing,
            CheckStatus::Degraded
        );
    }
}

//! The part of `doctor` about the share of connections that the kernel routes.

use signalbox_api::status::FastPath;
use signalbox_core::routing::obstacle::PeekObstacle;

use super::{Finding, degraded, ok};
use crate::show;

/// Finds out whether this machine keeps connections off the kernel's path. What the configuration asks for is no fault.
pub(super) fn examine(path: &FastPath) -> Finding {
    let (what, found) = ("fast path", show::fast_path(path));
    let of_machine = path.left_to_workers.iter().filter_map(|left| {
        let obstacle = PeekObstacle::of_label(&left.label).filter(|obstacle| obstacle.is_of_machine())?;
        let remedy = obstacle.remedy();
        Some(if remedy.is_empty() {
            left.reason.to_string()
        } else {
            format!("{}: {remedy}", left.reason)
        })
    });
    let causes: Vec<String> = of_machine.collect();
    if causes.is_empty() {
        ok(what, found)
    } else {
        degraded(what, found, causes.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use signalbox_api::status::LeftToWorkers;

    use super::super::CheckStatus;
    use super::*;

    #[test]
    fn causes_of_the_machine_are_faults_and_choices_are_none() {
        let left = |obstacle: PeekObstacle| LeftToWorkers {
            kind: "listener".into(),
            label: obstacle.label().into(),
            reason: obstacle.text().into(),
            count: 1,
        };
        let of = |obstacles: &[PeekObstacle]| {
            examine(&FastPath {
                left_to_workers: obstacles.iter().copied().map(left).collect(),
                ..FastPath::default()
            })
        };
        assert_eq!(of(&[]).standing, CheckStatus::Ok);
        let chosen = of(&[PeekObstacle::PerRequest, PeekObstacle::TerminatesTls]);
        assert_eq!((chosen.standing, chosen.advice), (CheckStatus::Ok, None));
        let found = of(&[PeekObstacle::PerRequest, PeekObstacle::NoPorts]);
        assert_eq!(found.standing, CheckStatus::Degraded);
        let advice = found.advice.unwrap();
        assert!(
            advice.contains("ip_local_port_range") && advice.contains("16384"),
            "{advice}"
        );
        assert!(!advice.contains("one by one"), "{advice}");
    }
}

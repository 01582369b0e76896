//! Eligibility: whether this node may have addresses now.

use std::time::{Duration, Instant};

use signalbox_api::ha::Condition;
use signalbox_core::model::HighAvailability;
use signalbox_core::model::ha::Preemption;

/// Eligibility of this node, with the memory that the decision needs.
#[derive(Debug, Default)]
pub(crate) struct Eligibility {
    is_eligible: bool,
    /// Time since when a signalbox that was ready no longer is.
    unready_since: Option<Instant>,
}

impl Eligibility {
    /// Decides again. The answer's second part is the time after which it must be asked again even if nothing changes.
    pub(crate) fn decide(
        &mut self,
        ha: &HighAvailability,
        condition: &Condition,
        is_well: bool,
        now: Instant,
    ) -> (bool, Option<Duration>) {
        let (is_ready, again) = self.is_ready(ha, condition, now);
        let waits = ha.preemption == Preemption::WhenSynced && ha.sync.is_some() && !condition.may_preempt;
        // A node that has addresses keeps them: no other node has flows that it would have to know first.
        self.is_eligible = is_ready && is_well && (self.is_eligible || !waits);
        (self.is_eligible, again)
    }

    /// Whether signalbox is ready. One that was, and is alive, has an interval to become so again: a new process that
    /// takes over has not checked all hosts yet.
    fn is_ready(&mut self, ha: &HighAvailability, condition: &Condition, now: Instant) -> (bool, Option<Duration>) {
        if !ha.watch.ready || condition.ready {
            self.unready_since = None;
            return (true, None);
        }
        if condition.pid == 0 || condition.stopping || !self.is_eligible {
            return (false, None);
        }
        let since = *self.unready_since.get_or_insert(now);
        let left = ha.watch.interval.saturating_sub(now.duration_since(since));
        (!left.is_zero(), (!left.is_zero()).then_some(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signalbox_config::ha::parse;

    const INTERVAL: Duration = Duration::from_secs(2);

    fn section(more: &str) -> HighAvailability {
        let nodes = "nodes: [{ name: a, address: 10.1.0.1 }, { name: b, address: 10.1.0.2 }]";
        parse(&format!("{{ vips: 10.1.1.5, {nodes}, {more} }}")).unwrap().0
    }

    fn condition(ready: bool, stopping: bool, may_preempt: bool) -> Condition {
        Condition {
            pid: 7,
            ready,
            reasons: Vec::new(),
            stopping,
            may_preempt,
        }
    }

    #[test]
    fn a_successor_has_an_interval_to_become_ready() {
        let (ha, start) = (section("watch: { interval: 2s }"), Instant::now());
        let mut eligibility = Eligibility::default();
        let mut decide = |condition: &Condition, at: Duration| eligibility.decide(&ha, condition, true, start + at);
        let unready = condition(false, false, true);
        assert_eq!(decide(&unready, Duration::ZERO), (false, None), "it never was ready");
        assert_eq!(decide(&condition(true, false, true), INTERVAL), (true, None));
        assert_eq!(decide(&unready, INTERVAL * 2), (true, Some(INTERVAL)));
        assert_eq!(
            decide(&unready, INTERVAL * 2 + INTERVAL / 2),
            (true, Some(INTERVAL / 2))
        );
        assert_eq!(decide(&condition(true, false, true), INTERVAL * 3), (true, None));
        assert_eq!(
            decide(&unready, INTERVAL * 4),
            (true, Some(INTERVAL)),
            "the time begins anew"
        );
        assert_eq!(decide(&unready, INTERVAL * 5), (false, None));
    }

    #[test]
    fn a_dead_or_stopping_signalbox_is_ineligible_at_once() {
        let (ha, now) = (section("watch: { interval: 2s }"), Instant::now());
        for gone in [Condition::default(), condition(false, true, true)] {
            let mut eligibility = Eligibility::default();
            assert!(eligibility.decide(&ha, &condition(true, false, true), true, now).0);
            assert_eq!(eligibility.decide(&ha, &gone, true, now), (false, None));
        }
        let mut eligibility = Eligibility::default();
        assert!(
            !eligibility.decide(&ha, &condition(true, false, true), false, now).0,
            "the check has failed"
        );
        let ha = section("watch: { ready: false }");
        assert!(
            eligibility.decide(&ha, &Condition::default(), true, now).0,
            "signalbox does not matter"
        );
    }

    #[test]
    fn a_node_without_its_peers_flows_takes_no_groups_but_keeps_its() {
        let sync = "sync: { listen: '10.1.0.1:8090', cert: /c, key: /k, ca: /a }";
        let (ha, now) = (section(sync), Instant::now());
        let mut eligibility = Eligibility::default();
        assert!(!eligibility.decide(&ha, &condition(true, false, false), true, now).0);
        assert!(eligibility.decide(&ha, &condition(true, false, true), true, now).0);
        assert!(eligibility.decide(&ha, &condition(true, false, false), true, now).0);
        // With a delay, or without preemption, the other node keeps the group anyhow.
        let ha = section(&format!("preemption: never, {sync}"));
        assert!(
            Eligibility::default()
                .decide(&ha, &condition(true, false, false), true, now)
                .0
        );
        let ha = section("preemption: when-synced");
        assert!(
            Eligibility::default()
                .decide(&ha, &condition(true, false, false), true, now)
                .0,
            "nothing to know"
        );
    }
}

//! Groups of virtual addresses: those that this node has, as reported by `signalbox ha run` or the operator's program.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};
use signalbox_core::availability::ha::floating::FloatingSources;
use signalbox_core::availability::ha::notice::GroupState;
use signalbox_core::limits::stats::{Counter, Gauge};
use signalbox_core::model::Model;
use tokio::sync::watch;

use crate::sys::unix_ms;

/// Time after which a node without a peer counts as alone.
const PEERLESS_TIMEOUT: Duration = Duration::from_secs(10);

/// Time after which a process without any report on groups handles all flows.
const FIRST_REPORT_TIMEOUT: Duration = Duration::from_secs(30);

/// Names of groups that this node has.
pub type OwnedGroups = BTreeSet<String>;

/// Last report on a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupReport {
    pub state: GroupState,
    /// Priority of this node in the group; 0 if not reported.
    pub priority: u8,
    /// Time of the last change of state, in milliseconds since 1970.
    pub since_ms: u64,
}

/// Groups of virtual addresses.
#[derive(Debug)]
pub struct HaGroups {
    reports: Mutex<BTreeMap<String, GroupReport>>,
    transitions: Mutex<BTreeMap<(String, &'static str), Arc<Counter>>>,
    owned: ArcSwap<OwnedGroups>,
    /// Groups that are about to leave this node.
    leaving: ArcSwap<OwnedGroups>,
    /// Whether all groups are, because the process ends.
    is_ending: AtomicBool,
    /// Whether any group has been reported yet.
    is_reported: AtomicBool,
    /// Start of the process.
    created: Instant,
    changes: watch::Sender<Arc<OwnedGroups>>,
    synced: AtomicBool,
    peers: AtomicU32,
    /// Count of supervisors that follow this process.
    followers: Gauge,
    /// True once another process has taken over.
    has_successor: AtomicBool,
}

impl Default for HaGroups {
    fn default() -> Self {
        Self {
            reports: Mutex::default(),
            transitions: Mutex::default(),
            owned: ArcSwap::default(),
            leaving: ArcSwap::default(),
            is_ending: AtomicBool::new(false),
            is_reported: AtomicBool::new(false),
            created: Instant::now(),
            changes: watch::Sender::new(Arc::default()),
            synced: AtomicBool::new(false),
            peers: AtomicU32::new(0),
            followers: Gauge::default(),
            has_successor: AtomicBool::new(false),
        }
    }
}

impl HaGroups {
    /// Stores a group's state. Returns whether it has changed.
    pub fn report(&self, group: &str, state: GroupState, priority: u8) -> bool {
        let mut reports = locked(&self.reports);
        let before = reports.get(group).copied();
        let is_change = before.is_none_or(|before| before.state != state);
        let since_ms = before
            .filter(|_| !is_change)
            .map_or_else(unix_ms, |before| before.since_ms);
        let report = GroupReport {
            state,
            priority,
            since_ms,
        };
        reports.insert(group.to_owned(), report);
        if is_change {
            self.count(group, state);
            self.publish(&reports);
        }
        self.is_reported.store(true, Relaxed);
        is_change
    }

    /// Forgets groups that are no longer configured.
    pub fn retain(&self, model: &Model) {
        let is_configured = |name: &str| {
            model
                .ha
                .iter()
                .flat_map(|ha| &ha.groups)
                .any(|group| group.name == name)
        };
        let mut reports = locked(&self.reports);
        let before = reports.len();
        reports.retain(|name, _| is_configured(name));
        if reports.len() < before {
            self.publish(&reports);
        }
    }

    fn count(&self, group: &str, state: GroupState) {
        let mut transitions = locked(&self.transitions);
        transitions.entry((group.to_owned(), state.as_str())).or_default().inc();
    }

    /// Publishes which groups this node has, if that has changed.
    fn publish(&self, reports: &BTreeMap<String, GroupReport>) {
        let is_owned =
            |(name, report): (&String, &GroupReport)| (report.state == GroupState::Master).then(|| name.clone());
        let owned: Arc<OwnedGroups> = Arc::new(reports.iter().filter_map(is_owned).collect());
        if owned != *self.owned.load() {
            self.owned.store(Arc::clone(&owned));
            self.changes.send_replace(owned);
        }
    }

    /// Report on a group.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<GroupReport> {
        locked(&self.reports).get(name).copied()
    }

    /// Names of the groups that this node has. Takes no lock.
    #[must_use]
    pub fn owned(&self) -> Arc<OwnedGroups> {
        self.owned.load_full()
    }

    /// Sets whether a group is about to leave.
    pub fn set_leaving(&self, group: &str, leaves: bool) {
        self.leaving.rcu(|leaving| {
            let mut leaving = OwnedGroups::clone(leaving);
            if leaves {
                leaving.insert(group.to_owned());
            } else {
                leaving.remove(group);
            }
            leaving
        });
    }

    /// All groups are about to leave, because the process ends.
    pub fn begin_to_end(&self) {
        self.is_ending.store(true, Relaxed);
    }

    /// Names of the groups that this node has and keeps.
    #[must_use]
    pub fn kept(&self) -> Arc<OwnedGroups> {
        let (owned, leaving) = (self.owned(), self.leaving.load());
        if self.is_ending.load(Relaxed) {
            Arc::default()
        } else if leaving.is_empty() {
            owned
        } else {
            Arc::new(owned.difference(&leaving).cloned().collect())
        }
    }

    /// Whether it has been reported which groups this node has.
    #[must_use]
    pub fn is_reported(&self) -> bool {
        self.is_reported.load(Relaxed)
    }

    /// Whether this node is known to have a virtual address. Takes no lock.
    #[must_use]
    pub fn has(&self, floating: &FloatingSources, vip: IpAddr) -> bool {
        let name = floating.group_of(vip).and_then(|group| floating.name_of(group));
        name.is_some_and(|name| self.owned.load().contains(name))
    }

    /// Whether this node is responsible for flows to an address: always if the address does not move, and for all
    /// addresses if no groups are reported. Takes no lock.
    #[must_use]
    pub fn is_responsible(&self, floating: &FloatingSources, vip: IpAddr) -> bool {
        floating.group_of(vip).is_none() || self.has(floating, vip) || self.is_never_reported()
    }

    /// Whether groups are never reported: there was no report for long enough after the start.
    #[must_use]
    pub fn is_never_reported(&self) -> bool {
        !self.is_reported() && self.created.elapsed() >= FIRST_REPORT_TIMEOUT
    }

    /// Whether connections for clients of an address may use source addresses that move with it: not if another node has
    /// them or is about to get them, because the host's answer would go there. Takes no lock.
    #[must_use]
    pub fn may_have(&self, floating: &FloatingSources, vip: IpAddr) -> bool {
        let name = floating.group_of(vip).and_then(|group| floating.name_of(group));
        let stays = |name| !self.is_ending.load(Relaxed) && !self.leaving.load().contains(name);
        !self.is_reported() || name.is_some_and(|name| self.owned.load().contains(name) && stays(name))
    }

    /// Channel with each change of the groups that this node has.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<OwnedGroups>> {
        self.changes.subscribe()
    }

    /// Counts of changes by group and new state.
    #[must_use]
    pub fn transitions(&self) -> Vec<(String, &'static str, u64)> {
        let transitions = locked(&self.transitions);
        let one =
            |((group, state), count): (&(String, &'static str), &Arc<Counter>)| (group.clone(), *state, count.get());
        transitions.iter().map(one).collect()
    }

    /// Sets whether this node knows the flows of its peers.
    pub fn set_synced(&self, synced: bool) {
        self.synced.store(synced, Relaxed);
    }

    /// Sets how many other nodes are in contact with this one.
    pub fn set_peers(&self, count: u32) {
        self.peers.store(count, Relaxed);
    }

    /// Whether this node may take groups over from others: it knows their flows, or does not replicate, or no other
    /// node has been in contact for long enough after the start.
    #[must_use]
    pub fn may_preempt(&self, model: &Model, since_start: Duration) -> bool {
        let syncs = model.ha.as_ref().is_some_and(|ha| ha.sync.is_some());
        let is_alone = self.peers.load(Relaxed) == 0 && since_start >= PEERLESS_TIMEOUT;
        !syncs || self.synced.load(Relaxed) || is_alone
    }

    /// Whether a supervisor follows this process.
    #[must_use]
    pub fn is_supervised(&self) -> bool {
        self.followers.get() > 0
    }

    /// Sends supervisors to the process that has taken over.
    pub fn leave_to_successor(&self) {
        self.has_successor.store(true, Relaxed);
    }

    /// Whether supervisors should follow another process.
    #[must_use]
    pub fn has_successor(&self) -> bool {
        self.has_successor.load(Relaxed)
    }

    /// Counts a supervisor, until the guard is dropped.
    #[must_use]
    pub fn follow(self: &Arc<Self>) -> FollowGuard {
        self.followers.enter();
        FollowGuard(Arc::clone(self))
    }
}

/// Supervisor that follows this process. Without one, this node has no group, because its groups are not reported.
#[derive(Debug)]
pub struct FollowGuard(Arc<HaGroups>);

impl Drop for FollowGuard {
    fn drop(&mut self) {
        let groups = &self.0;
        groups.followers.leave();
        if groups.is_supervised() {
            return;
        }
        let mut reports = locked(&groups.reports);
        for (name, report) in reports.iter_mut() {
            if report.state != GroupState::Fault {
                (report.state, report.since_ms) = (GroupState::Fault, unix_ms());
                groups.count(name, GroupState::Fault);
            }
        }
        groups.publish(&reports);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ownership_is_published_when_it_changes() {
        let groups = HaGroups::default();
        let mut changes = groups.subscribe();
        assert!(groups.report("g1", GroupState::Backup, 250));
        assert!(!changes.has_changed().unwrap(), "it has no group before and after");
        assert!(groups.report("g1", GroupState::Master, 250) && groups.report("g2", GroupState::Master, 240));
        assert!(!groups.report("g1", GroupState::Master, 250), "it is no change");
        assert_eq!(
            *changes.borrow_and_update().clone(),
            ["g1".to_owned(), "g2".to_owned()].into()
        );
        assert!(groups.report("g1", GroupState::Fault, 250));
        assert_eq!(*groups.owned(), ["g2".to_owned()].into());
        let counts = groups.transitions();
        assert!(counts.contains(&("g1".to_owned(), "master", 1)) && counts.contains(&("g1".to_owned(), "fault", 1)));
    }

    #[test]
    fn sources_of_a_group_are_not_used_once_it_is_about_to_leave() {
        let (ha, _) =
            crate::config::ha::parse("{ groups: [{ name: g1, vips: 10.1.0.9 }, { name: g2, vips: 10.1.0.10 }] }")
                .unwrap();
        let floating = FloatingSources::new(Some(&ha));
        let may_have = |groups: &HaGroups, vip| groups.may_have(&floating, IpAddr::from([10, 1, 0, vip]));
        let groups = HaGroups::default();
        assert!(may_have(&groups, 9), "nothing is known");
        groups.report("g1", GroupState::Master, 250);
        groups.report("g2", GroupState::Backup, 250);
        assert!(may_have(&groups, 9) && !may_have(&groups, 10) && !may_have(&groups, 11));
        groups.set_leaving("g1", true);
        assert!(!may_have(&groups, 9));
        assert!(groups.kept().is_empty() && groups.owned().contains("g1"));
        groups.set_leaving("g1", false);
        assert!(may_have(&groups, 9) && groups.kept().contains("g1"));
        groups.begin_to_end();
        assert!(!may_have(&groups, 9) && groups.kept().is_empty());
    }

    #[test]
    fn a_node_has_no_group_when_the_last_supervisor_is_gone() {
        let groups = Arc::new(HaGroups::default());
        let (first, second) = (groups.follow(), groups.follow());
        groups.report("g1", GroupState::Master, 250);
        drop(first);
        assert!(groups.is_supervised() && groups.owned().contains("g1"));
        drop(second);
        assert!(!groups.is_supervised() && groups.owned().is_empty());
        assert_eq!(groups.group("g1").unwrap().state, GroupState::Fault);
    }
}

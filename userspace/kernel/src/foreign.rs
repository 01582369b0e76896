//! Foreign programs that see packets before ours at an interface: they may drop them, or accept them, and then ours
//! never see them.

use std::fmt;

use aya::programs::{SchedClassifier, TcAttachType};

use crate::attach::{PRIORITY_COUNT, has_tcx};
use crate::interfaces::Interface;
use crate::netlink::Netlink;
use crate::{cut, l4, peek};

/// Names of our programs in TC, of any version.
const OURS: [&str; 5] = ["l4_tc", "l4_tc_ip", "cut_in", "cut_out", "peek_in"];

/// A program or filter that is not signalbox's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForeignProgram {
    interface: String,
    side: &'static str,
    what: String,
    /// Name of the first of our programs that comes after it.
    before: String,
}

impl fmt::Display for ForeignProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            interface,
            side,
            what,
            before,
        } = self;
        write!(f, "{interface}, {side}: {what} stands before {before}")
    }
}

/// Returns the foreign programs of these interfaces that run before one of our programs.
#[must_use]
pub fn before_ours(interfaces: &[Interface]) -> Vec<ForeignProgram> {
    let tcx = has_tcx();
    let sides = [(TcAttachType::Ingress, "ingress"), (TcAttachType::Egress, "egress")];
    let mut found = Vec::new();
    for interface in interfaces {
        for (side, name) in sides {
            let all = if tcx {
                programs(interface, side)
            } else {
                filters_by_priority(interface, side)
            };
            let foreign = foreign(&all).map(|(what, before)| ForeignProgram {
                interface: interface.name.clone(),
                side: name,
                what: what.to_owned(),
                before: before.to_owned(),
            });
            found.extend(foreign);
        }
    }
    found
}

/// A program in its order: its name, and whether it is ours.
type Placed = (String, bool);

fn foreign(all: &[Placed]) -> impl Iterator<Item = (&str, &str)> {
    all.iter().enumerate().filter_map(|(at, (what, is_ours))| {
        let (before, _) = all.get(at..)?.iter().find(|(_, is_ours)| *is_ours)?;
        (!is_ours).then_some((what.as_str(), before.as_str()))
    })
}

fn programs(interface: &Interface, side: TcAttachType) -> Vec<Placed> {
    let (_, all) = SchedClassifier::query_tcx(&interface.name, side).unwrap_or_default();
    let placed = all.iter().map(|program| {
        let name = program.name_as_str().unwrap_or_default();
        match OURS.contains(&name) {
            true => (name.to_owned(), true),
            false => (format!("program {} `{name}` (tcx)", program.id()), false),
        }
    });
    placed.collect()
}

fn filters_by_priority(interface: &Interface, side: TcAttachType) -> Vec<Placed> {
    let all = Netlink::open().and_then(|netlink| netlink.filters(interface.index, side));
    let mut all = all.unwrap_or_default();
    // The kernel also lists each priority separately, with handle 0.
    all.retain(|filter| filter.handle != 0);
    all.sort_unstable_by_key(|filter| filter.priority);
    let placed = all.into_iter().map(|filter| {
        let priority = filter.priority;
        match is_our_priority(priority) {
            true => (format!("our filter of priority {priority}"), true),
            false => (
                format!("a {} filter of priority {priority} (clsact)", filter.kind),
                false,
            ),
        }
    });
    placed.collect()
}

fn is_our_priority(priority: u16) -> bool {
    let last = [l4::hooks::LAST_PRIORITY, cut::hooks::LAST_PRIORITY];
    last.iter()
        .any(|last| (last + 1 - PRIORITY_COUNT..=*last).contains(&priority))
        || peek::filters::PRIORITIES.contains(&priority)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_foreign_programs_before_one_of_ours_are_reported() {
        let all = [
            ("a", false),
            ("l4_tc", true),
            ("b", false),
            ("cut_in", true),
            ("c", false),
        ];
        let all = all.map(|(name, is_ours)| (name.to_owned(), is_ours));
        let found: Vec<_> = foreign(&all).collect();
        assert_eq!(found, [("a", "l4_tc"), ("b", "cut_in")]);
        assert_eq!(foreign(&all[4..]).count(), 0);
    }
}

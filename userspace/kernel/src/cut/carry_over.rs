//! Carries cut flows of another version of signalbox over into our maps.
//!
//! The other version's programs stay on the interfaces until ours know its flows. Then they are detached, so that its
//! maps no longer change, and their counts since the copy are added.

use std::collections::HashMap;
use std::io;

use signalbox_common::cut::flow::{
    CutFlow, DirState, FlowRef, Name, SUPERSEDED, TS_DELTA_KNOWN, TS_DELTA_UNKNOWN, state,
};
use signalbox_common::cut::moving::MovingAddress;
use signalbox_common::net::{Tuple, seq};

use super::{Cut, hooks};
use crate::names;
use crate::pins::layout::{Conversion, Shape, Structures};
use crate::pins::other_version::OtherVersion;

/// Returns the shapes of tier `cut` that another version needs to read our flows.
pub(crate) fn structures() -> Structures {
    Structures::from([
        ("Flow".to_owned(), Shape::of::<CutFlow>()),
        ("Name".to_owned(), Shape::of::<Name>()),
        ("MovingAddress".to_owned(), Shape::of::<MovingAddress>()),
    ])
}

/// A flow that has been carried over.
struct CarriedFlow {
    /// Index in the other version's table; `to` is the index in ours.
    from: u32,
    to: u32,
    /// The flow as it was copied.
    copied: CutFlow,
}

/// Carries over all flows, and detaches the other version's programs. Returns the flows' indices in our table.
pub(super) fn carry_over(cut: &Cut, earlier: &OtherVersion) -> io::Result<Vec<u32>> {
    let known = earlier.structures()?;
    let shape = |name: &str| {
        let missing = || io::Error::other(format!("{} does not describe {name}", earlier.version()));
        known.get(name).ok_or_else(missing)
    };
    let flows = shape("Flow")?.plan::<CutFlow>()?;
    let state_of = shape("Flow")?.number("state")?;
    let mut numbers = NameNumbers::of(cut, earlier, &shape("Name")?.plan::<Name>()?)?;
    let table = earlier.map("CUT_FLOWS")?;
    let mut carried = Vec::new();
    let mut left = 0;
    let mut free = (0..cut.table.len()).rev();
    table.for_each(|index, bytes| {
        // Entries that are no flow yet, or that were being closed, were the business of the other version's process.
        if state_of.read(bytes) != Some(state::CUT) {
            return;
        }
        let (Some(index), Some(mut flow)) = (index.first_chunk::<4>(), flows.read::<CutFlow>(bytes)) else {
            return;
        };
        flow.host = numbers.our_number(flow.host);
        flow.route = numbers.our_number(flow.route);
        flow.listener = u16::try_from(numbers.our_number(u32::from(flow.listener))).unwrap_or_default();
        // Indices are taken from the end: workers begin at the front of their shares.
        match free
            .find(|&index| cut.table.claim(index))
            .filter(|&index| install(cut, index, flow))
        {
            Some(to) => carried.push(CarriedFlow {
                from: u32::from_ne_bytes(*index),
                to,
                copied: flow,
            }),
            None => left += 1,
        }
    })?;
    if left > 0 {
        tracing::error!(
            flows = left,
            "The flow table has no room for flows of another version: they end."
        );
    }
    retire_programs(earlier)?;
    for one in &carried {
        if let Ok(bytes) = table.get(&one.from.to_ne_bytes())
            && let Some(now) = flows.read::<CutFlow>(&bytes)
        {
            add_missed(cut, one, &now);
        }
    }
    let version = earlier.version();
    tracing::info!(
        flows = carried.len(),
        version,
        "Cut flows of another version are carried over."
    );
    Ok(carried.into_iter().map(|one| one.to).collect())
}

/// Detaches the other version's programs from the interfaces.
pub(super) fn retire_programs(earlier: &OtherVersion) -> io::Result<()> {
    hooks::remove_filters_of_other_versions();
    earlier.remove_links()
}

/// Returns the current flows of another version, of any process: until they are carried over, their ports of leg B must
/// not be given to other flows.
pub(super) fn flows(earlier: &OtherVersion) -> io::Result<Vec<CutFlow>> {
    let known = earlier.structures()?;
    let missing = || io::Error::other(format!("{} does not describe Flow", earlier.version()));
    let shape = known.get("Flow").ok_or_else(missing)?;
    let (plan, state_of) = (shape.plan::<CutFlow>()?, shape.number("state")?);
    let mut found = Vec::new();
    earlier.map("CUT_FLOWS")?.for_each(|_, bytes| {
        if state_of.read(bytes) != Some(state::FREE) {
            found.extend(plan.read::<CutFlow>(bytes));
        }
    })?;
    Ok(found)
}

/// Returns the addresses that move by another version's plan, at which its connections drain, or whose former owners
/// drain. Versions that do not describe them had none.
pub(super) fn moving_addresses(earlier: &OtherVersion) -> io::Result<Vec<([u32; 4], MovingAddress)>> {
    let known = earlier.structures()?;
    let Some(shape) = known.get("MovingAddress") else {
        return Ok(Vec::new());
    };
    let plan = shape.plan::<MovingAddress>()?;
    let mut found = Vec::new();
    earlier.map("CUT_CHAIN")?.for_each(|address, bytes| {
        let (words, []) = address.as_chunks::<4>() else { return };
        if let (&[a, b, c, d], Some(entry)) = (words, plan.read::<MovingAddress>(bytes)) {
            found.push(([a, b, c, d].map(u32::from_ne_bytes), entry));
        }
    })?;
    Ok(found)
}

/// Maps the other version's numbers of names to ours.
struct NameNumbers<'a> {
    cut: &'a Cut,
    parts: HashMap<u32, Vec<String>>,
    ours: HashMap<u32, u32>,
}

impl<'a> NameNumbers<'a> {
    fn of(cut: &'a Cut, earlier: &OtherVersion, plan: &Conversion) -> io::Result<Self> {
        let mut parts = HashMap::new();
        earlier.map("ID_NAMES")?.for_each(|number, bytes| {
            if let (Some(number), Some(name)) = (number.first_chunk::<4>(), plan.read::<Name>(bytes)) {
                parts.insert(u32::from_ne_bytes(*number), names::parts_of(&name));
            }
        })?;
        let ours = HashMap::new();
        Ok(Self { cut, parts, ours })
    }

    /// Returns our number for the other version's. 0, which no name has, if the other version has no name for it, or if
    /// there is no room for the name.
    fn our_number(&mut self, number: u32) -> u32 {
        *self.ours.entry(number).or_insert_with(|| {
            let Some(parts) = self.parts.get(&number) else { return 0 };
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            self.cut.names.number(&parts).unwrap_or_default()
        })
    }
}

/// Puts a flow into a claimed entry and into the map of tuples. False, with the entry freed, where there was no room.
fn install(cut: &Cut, index: u32, mut flow: CutFlow) -> bool {
    for way in 0..2 {
        // A later connection has these addresses and ports in our table by now.
        if matches!(cut.tuples.get::<Tuple, FlowRef>(&flow.tuple(way)), Ok(Some(_))) {
            flow.dirs[way as usize].flags |= SUPERSEDED;
        }
    }
    cut.table.install(index, &flow);
    for way in (0..2).filter(|&way| flow.dirs[way as usize].flags & SUPERSEDED == 0) {
        if let Err(error) = cut.tuples.update(&flow.tuple(way), &FlowRef::new(index, way)) {
            tracing::debug!(%error, "A flow of another version could not be entered.");
            cut.remove(&[index]);
            return false;
        }
    }
    true
}

/// Adds packets and bytes that the other version's programs have counted since the flow was copied.
fn add_missed(cut: &Cut, one: &CarriedFlow, now: &CutFlow) {
    for way in 0..2 {
        let (then, now) = (&one.copied.dirs[way], &now.dirs[way]);
        let ours = cut.table.read(one.to).dirs[way];
        cut.table.add_missed(one.to, way, &ours, &missed(then, now, &ours));
    }
}

/// Returns what to add to a direction, with lower bounds for its sequence numbers: `ours` may have advanced since
/// `then`, too. A program counts bytes from the highest number that it knows, so its count includes those missed if it
/// has seen a packet since.
fn missed(then: &DirState, now: &DirState, ours: &DirState) -> DirState {
    let has_moved = ours.snd_max != then.snd_max;
    DirState {
        packets: now.packets.wrapping_sub(then.packets),
        bytes: if has_moved {
            0
        } else {
            now.bytes.wrapping_sub(then.bytes)
        },
        // The offsets that these flags describe are not carried over: our program determines its own, from the same
        // clock.
        flags: now.flags & !(TS_DELTA_KNOWN | TS_DELTA_UNKNOWN),
        snd_max: seq::later(ours.snd_max, now.snd_max),
        ack: seq::later(ours.ack, now.ack),
        last_seen: seq::later(ours.last_seen, now.last_seen),
        ts_val: if ours.ts_val == then.ts_val {
            now.ts_val
        } else {
            ours.ts_val
        },
        ..DirState::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_missed_during_a_carry_over_are_counted_once() {
        let way = |packets, bytes, high, flags| DirState {
            packets,
            bytes,
            snd_max: high,
            flags,
            ..DirState::default()
        };
        let (then, now) = (way(10, 1000, 5000, 0), way(12, 1200, 5200, 1));
        // Our program has seen no packet yet.
        let still = missed(&then, &now, &then);
        assert_eq!(
            (still.packets, still.bytes, still.snd_max, still.flags),
            (2, 200, 5200, 1)
        );
        // Our program has seen a later packet, and counted from 5000 on.
        let moved = missed(&then, &now, &way(11, 1300, 5300, 0));
        assert_eq!((moved.packets, moved.bytes, moved.snd_max), (2, 0, 5300));
    }
}

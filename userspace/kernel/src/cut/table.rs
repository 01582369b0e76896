//! Maps `CUT_FLOWS` and `CUT_PENDING`, mapped into our memory: the state of flows is read here without a system call.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use signalbox_common::cut::PendingFlow;
use signalbox_common::cut::flow::{
    BEING_REMOVED, CutFlow, DirState, EARLY_FIN, HANDED_OFF, HANDOFF_KNOWN, PENDING_PORTS, SOCKETS_CLOSED, SUPERSEDED,
    state,
};

use super::entry_set::EntrySet;
use crate::map::MmapArray;

/// The flow table: map `CUT_FLOWS`.
pub struct FlowTable {
    entries: MmapArray<CutFlow>,
    /// Entries of the workers; those after them are for shadows.
    own: u32,
    /// How many of them programs claim on their own: the last ones.
    of_programs: AtomicU32,
    /// Entries whose flows must be reported to other balancers.
    pub changes: EntrySet,
    /// Entries whose flows were in [`Self::changes`] since they are cut.
    pub announced: EntrySet,
}

impl FlowTable {
    /// Maps the table, of whose `count` entries `shadows` are for flows of other balancers. A table that an earlier
    /// process has made may be smaller than configured: half of it is the least that the workers have.
    pub(super) fn map(fd: BorrowedFd<'_>, count: u32, shadows: u32) -> io::Result<Self> {
        // Where there is no room for flows of others, none are reported to others either: sets without entries cost
        // nothing then.
        let told = if shadows == 0 { 0 } else { count };
        Ok(Self {
            entries: MmapArray::map(fd, count)?,
            own: count.saturating_sub(shadows).max(count / 2),
            of_programs: AtomicU32::new(0),
            changes: EntrySet::new(told),
            announced: EntrySet::new(told),
        })
    }

    /// Returns the number of entries for flows that this balancer makes.
    #[must_use]
    pub fn own_len(&self) -> u32 {
        self.own
    }

    /// Returns the number of entries that programs claim on their own, where they do: half of them.
    pub(crate) const fn programs_share(&self) -> u32 {
        self.own / 2
    }

    /// Leaves their share of the entries to programs. Called before workers claim any.
    pub fn share_with_programs(&self) {
        self.of_programs.store(self.programs_share(), Ordering::Relaxed);
    }

    /// Returns the number of entries for flows that workers make: the first ones.
    #[must_use]
    pub fn worker_len(&self) -> u32 {
        self.own - self.of_programs.load(Ordering::Relaxed)
    }

    /// Returns how many of these entries are in use.
    #[must_use]
    pub fn used_among(&self, entries: std::ops::Range<u32>) -> u32 {
        entries.filter(|&index| self.state(index) != state::FREE).count() as u32
    }

    /// Returns whether an entry is one that programs claim.
    #[must_use]
    pub fn is_of_programs(&self, index: u32) -> bool {
        (self.worker_len()..self.own).contains(&index)
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.entries.count()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn state_of(&self, index: u32) -> &AtomicU32 {
        // SAFETY: aligned, within the mapping, and accessed whole by the programs too; also below.
        unsafe { AtomicU32::from_ptr(ptr::addr_of_mut!((*self.entries.at(index)).state)) }
    }

    #[must_use]
    pub fn state(&self, index: u32) -> u32 {
        self.state_of(index).load(Ordering::Acquire)
    }

    pub fn set_state(&self, index: u32, state: u32) {
        self.state_of(index).store(state, Ordering::Release);
    }

    /// Has an entry go from one state to another; false if it is not in that state any more: a program, or another process,
    /// has changed it.
    pub fn change_state(&self, index: u32, from: u32, to: u32) -> bool {
        self.state_of(index)
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Claims an entry; false if it is not free. Other processes may try at the same time.
    #[must_use]
    pub fn claim(&self, index: u32) -> bool {
        self.change_state(index, state::FREE, state::ALLOCATED)
    }

    /// Fills in a claimed entry, and offers it to the programs.
    pub fn request(&self, index: u32, flow: &PendingFlow) {
        let claimed = PendingFlow {
            state: state::ALLOCATED,
            ..*flow
        };
        // SAFETY: a claimed entry has one user: no tuple and no port leads to it.
        unsafe { self.entries.at(index).cast::<PendingFlow>().write_volatile(claimed) };
        self.set_state(index, state::REQUESTED);
    }

    /// Reads an entry whose flow is in its handshake phase.
    #[must_use]
    pub fn read_pending(&self, index: u32) -> PendingFlow {
        // SAFETY: valid and aligned, every bit pattern is a value; the programs may write at the same time, each field whole.
        unsafe { self.entries.at(index).cast::<PendingFlow>().read_volatile() }
    }

    /// Fills in a claimed entry whose flow waits for a host, which programs may answer for from then on.
    pub(crate) fn ask(&self, index: u32, flow: &PendingFlow) {
        let claimed = PendingFlow {
            state: state::ALLOCATED,
            ..*flow
        };
        // SAFETY: as in `request`; programs may read numbers of the flow that do not change.
        unsafe { self.entries.at(index).cast::<PendingFlow>().write_volatile(claimed) };
        self.set_state(index, state::CONNECTING);
    }

    /// Fills in a claimed entry with a flow that exists already.
    pub(super) fn install(&self, index: u32, flow: &CutFlow) {
        self.write_claimed(index, flow);
        self.set_state(index, flow.state);
    }

    /// Fills in a claimed entry, which stays claimed.
    pub(super) fn write_claimed(&self, index: u32, flow: &CutFlow) {
        let claimed = CutFlow {
            state: state::ALLOCATED,
            ..*flow
        };
        // SAFETY: as in `request`.
        unsafe { self.entries.at(index).write_volatile(claimed) };
    }

    /// Adds packets, bytes and flags of `missed` to a direction. Sets each sequence number to that of `missed` where it
    /// is still that of `ours`: packets may come during the call.
    pub(super) fn add_missed(&self, index: u32, way: usize, ours: &DirState, missed: &DirState) {
        // SAFETY: aligned, within the mapping; the fields are accessed whole by the programs, too.
        let (counts, numbers) = unsafe {
            let way = ptr::addr_of_mut!((*self.entries.at(index)).dirs[way]);
            let count = |field: *mut u64, more: u64| (AtomicU64::from_ptr(field), more);
            let number = |field: *mut u32, then: u32, now: u32| (AtomicU32::from_ptr(field), then, now);
            AtomicU32::from_ptr(ptr::addr_of_mut!((*way).flags)).fetch_or(missed.flags, Ordering::Relaxed);
            (
                [
                    count(ptr::addr_of_mut!((*way).packets), missed.packets),
                    count(ptr::addr_of_mut!((*way).bytes), missed.bytes),
                ],
                [
                    number(ptr::addr_of_mut!((*way).snd_max), ours.snd_max, missed.snd_max),
                    number(ptr::addr_of_mut!((*way).ack), ours.ack, missed.ack),
                    number(ptr::addr_of_mut!((*way).last_seen), ours.last_seen, missed.last_seen),
                    number(ptr::addr_of_mut!((*way).ts_val), ours.ts_val, missed.ts_val),
                ],
            )
        };
        for (count, more) in counts {
            count.fetch_add(more, Ordering::Relaxed);
        }
        for (number, then, now) in numbers {
            let _ = number.compare_exchange(then, now, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Address of an entry.
    pub(super) fn entry(&self, index: u32) -> *mut CutFlow {
        self.entries.at(index)
    }

    /// Reads an entry.
    #[must_use]
    pub fn read(&self, index: u32) -> CutFlow {
        // SAFETY: valid and aligned; the programs may write at the same time, each field whole.
        unsafe { self.entries.at(index).read_volatile() }
    }

    /// Returns the reason why the flow could not be cut.
    #[must_use]
    pub fn ineligible(&self, index: u32) -> u8 {
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(ptr::addr_of_mut!((*self.entries.at(index)).ineligible)) }.load(Ordering::Relaxed)
    }

    /// Returns the sequence number of our first byte on leg B.
    #[must_use]
    pub fn isn_b(&self, index: u32) -> u32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(ptr::addr_of_mut!((*self.entries.at(index)).isn_b)) }.load(Ordering::Relaxed)
    }

    fn handoff_state(&self, index: u32) -> &AtomicU16 {
        // SAFETY: as above.
        unsafe { AtomicU16::from_ptr(ptr::addr_of_mut!((*self.entries.at(index)).handoff_state)) }
    }

    /// Sets the sequence number on leg B up to which userspace answers for the client's bytes so far; more may follow.
    pub fn extend_handoff(&self, index: u32, end: u32) {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(ptr::addr_of_mut!((*self.entries.at(index)).handoff_end)) }
            .store(end, Ordering::Relaxed);
    }

    /// Sets the sequence number on leg B up to which its socket has to deliver. Final: no more bytes follow.
    pub fn set_handoff_end(&self, index: u32, end: u32) {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(ptr::addr_of_mut!((*self.entries.at(index)).handoff_end)) }
            .store(end, Ordering::Relaxed);
        self.handoff_state(index).store(HANDOFF_KNOWN, Ordering::Release);
    }

    #[must_use]
    pub fn is_handed_off(&self, index: u32) -> bool {
        self.handoff_state(index).load(Ordering::Acquire) >= HANDED_OFF
    }

    /// Marks the flow as handed off: its sockets have delivered everything.
    pub fn set_handed_off(&self, index: u32) {
        self.handoff_state(index).store(HANDED_OFF, Ordering::Release);
    }

    /// Marks the flow's sockets as closed.
    pub fn set_sockets_closed(&self, index: u32) {
        self.handoff_state(index).store(SOCKETS_CLOSED, Ordering::Release);
        self.changes.add(index);
    }

    /// Returns the sequence number up to which the host has acknowledged on leg B.
    #[must_use]
    pub fn acked_by_host(&self, index: u32) -> u32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(ptr::addr_of_mut!((*self.entries.at(index)).dirs[1].ack)) }.load(Ordering::Relaxed)
    }

    /// Records that `bytes` bytes of a direction have been added to the totals.
    pub fn set_accounted(&self, index: u32, way: usize, bytes: u64) {
        // SAFETY: as above; only userspace writes it.
        unsafe { AtomicU64::from_ptr(ptr::addr_of_mut!((*self.entries.at(index)).dirs[way].accounted)) }
            .store(bytes, Ordering::Relaxed);
    }

    /// Sets the marks that say which counts the flow holds.
    pub fn set_marks(&self, index: u32, marks: u8) {
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(ptr::addr_of_mut!((*self.entries.at(index)).marks)) }
            .store(marks, Ordering::Relaxed);
    }

    /// Adds a mark.
    pub fn add_mark(&self, index: u32, mark: u8) {
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(ptr::addr_of_mut!((*self.entries.at(index)).marks)) }
            .fetch_or(mark, Ordering::Relaxed);
    }

    /// Takes the marks that say which counts the flow holds: of several callers only one gets them.
    #[must_use]
    pub fn take_marks(&self, index: u32) -> u8 {
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(ptr::addr_of_mut!((*self.entries.at(index)).marks)) }.swap(0, Ordering::Relaxed)
    }

    /// Records that the client's FIN was received before the flow was cut: leg B's socket delivers it.
    pub fn set_early_fin(&self, index: u32) {
        // SAFETY: as above; the programs change its other bits one by one, too.
        unsafe { AtomicU32::from_ptr(ptr::addr_of_mut!((*self.entries.at(index)).dirs[0].flags)) }
            .fetch_or(EARLY_FIN, Ordering::Release);
    }

    /// Returns the flags of a direction: `FIN_SEEN` and so on.
    #[must_use]
    pub fn flags(&self, index: u32, way: usize) -> u32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(ptr::addr_of_mut!((*self.entries.at(index)).dirs[way].flags)) }
            .load(Ordering::Acquire)
    }

    /// Announces that a direction's entry of `CUT_CT` is being removed: no program takes it out from here on, and another
    /// connection's stays. False where a program has taken it out already.
    pub(super) fn begin_removal(&self, index: u32, way: usize) -> bool {
        // SAFETY: as above.
        let flags = unsafe { AtomicU32::from_ptr(ptr::addr_of_mut!((*self.entries.at(index)).dirs[way].flags)) };
        let begun = flags.fetch_update(Ordering::AcqRel, Ordering::Acquire, |flags| {
            (flags & SUPERSEDED == 0).then_some(flags | BEING_REMOVED)
        });
        begun.is_ok()
    }
}

/// The flow that is being connected from each source port: map `CUT_PENDING`.
pub struct PendingPorts(MmapArray<u64>);

impl PendingPorts {
    pub(super) fn map(fd: BorrowedFd<'_>) -> io::Result<Self> {
        MmapArray::map(fd, PENDING_PORTS).map(Self)
    }

    fn of(&self, port: u16) -> &AtomicU64 {
        // SAFETY: aligned, within the mapping, accessed whole by the programs.
        unsafe { AtomicU64::from_ptr(self.0.at(u32::from(port))) }
    }

    /// Takes a port for a flow; false while another flow is being connected from it.
    #[must_use]
    pub fn take(&self, port: u16, index: u32) -> bool {
        self.of(port)
            .compare_exchange(0, u64::from(index) + 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    pub fn give_back(&self, port: u16) {
        self.of(port).store(0, Ordering::Release);
    }

    /// Whether a port is a certain flow's.
    pub fn is_of(&self, port: u16, index: u32) -> bool {
        self.of(port).load(Ordering::Acquire) == u64::from(index) + 1
    }

    /// Gives a port back, if it is a certain flow's; returns whether it was.
    pub fn give_back_of(&self, port: u16, index: u32) -> bool {
        self.of(port)
            .compare_exchange(u64::from(index) + 1, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Frees the ports that an ended process has left taken, except those of flows that are `kept`.
    pub fn clear(&self, kept: impl Fn(u32) -> bool) {
        for port in 0..=u16::MAX {
            let taken = self.of(port).load(Ordering::Acquire);
            if taken != 0 && !kept((taken - 1) as u32) {
                self.give_back_of(port, (taken - 1) as u32);
            }
        }
    }
}

/// Returns the current tick of the programs' clock (`CLOCK_MONOTONIC`, 2^20 ns, modulo 2^32).
#[must_use]
pub fn tick() -> u32 {
    (clock() >> 20) as u32
}

/// Returns a time in ticks, rounded down; the greatest number of ticks for a longer time.
#[must_use]
pub fn ticks_of(time: std::time::Duration) -> u32 {
    const MAX_TICKS: u128 = 1 << 31;
    (time.as_nanos() >> 20).min(MAX_TICKS) as u32
}

/// Returns the clock that programs read: `CLOCK_MONOTONIC_COARSE` in ns.
#[must_use]
pub fn clock() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC_COARSE);
    now.map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

/// Returns the milliseconds of `CLOCK_MONOTONIC`, modulo 2^32, as programs read them.
#[must_use]
pub fn monotonic_ms() -> u32 {
    monotonic().as_millis() as u32
}

/// Returns `CLOCK_MONOTONIC`.
#[must_use]
pub fn monotonic() -> std::time::Duration {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    now.map_or_else(|_| std::time::Duration::ZERO, std::time::Duration::from)
}

/// Returns the time from one tick to another. A tick slightly later than `now` was written after `now` was read: the
/// result is 0 then, and not the fifty days that ticks take to wrap.
#[must_use]
pub fn duration_between(then: u32, now: u32) -> std::time::Duration {
    const MAX_SKEW_TICKS: u32 = 1 << 16;
    let count = now.wrapping_sub(then);
    let count = if count > u32::MAX - MAX_SKEW_TICKS { 0 } else { count };
    std::time::Duration::from_nanos(u64::from(count) << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_in_the_future_counts_as_no_elapsed_time() {
        assert_eq!(duration_between(5, 3).as_nanos(), 0);
        assert_eq!(duration_between(2, u32::MAX).as_nanos(), 0);
        assert_eq!(duration_between(u32::MAX, 1).as_nanos(), 2 << 20);
        assert_eq!(duration_between(7, 7 + (1 << 31)).as_nanos(), 1 << 51);
    }
}

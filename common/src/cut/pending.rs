//! A flow in its handshake phase: an entry of `CUT_FLOWS` from userspace's request until the host's SYN-ACK, which makes
//! it a [`CutFlow`] in the same bytes.

use core::mem::offset_of;

use super::flow::{CutFlow, DirState, arriving_tuple};
use crate::net::Tuple;

/// Bit of [`PendingFlow::agreed`]: the host's SYN-ACK leaves the flow [`HELD`](super::flow::state::HELD) instead of
/// cutting it. Set by userspace, beside the `OFFERED_*` bits.
pub const HOLD: u32 = 1 << 8;

/// Entry in state `REQUESTED`, `CONNECTING` or `INELIGIBLE`. Fields that a [`CutFlow`] has too lie at the same offsets.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingFlow {
    /// Field of the maps of feature `next_abi` alone: moves all others to other offsets.
    #[cfg(feature = "next_abi")]
    pub later: [u32; 16],
    /// State of the entry, a constant of [`super::flow::state`].
    pub state: u32,
    /// Why the flow cannot be cut, a constant of [`super::flow::ineligible`], where the state is `INELIGIBLE`.
    pub ineligible: u8,
    /// See [`CutFlow::marks`].
    pub marks: u8,
    /// Window scales of leg A: the client's in the lower four bits, the balancer's in the upper. Known from leg B's SYN on.
    pub scale_a: u8,
    /// Window scale of the balancer on leg B, in the lower four bits. Known from leg B's SYN on.
    pub scale_b: u8,
    /// Client's port and the VIP's, as in [`Tuple::ports`].
    pub ports_a: u32,
    /// Host's port and the balancer's, as in [`Tuple::ports`].
    pub ports_b: u32,
    /// Bytes that go to the host in front of the client's.
    pub injected: u32,
    /// Bytes that userspace has taken off the client's stream.
    pub consumed: u32,
    /// Clock of leg A's socket in milliseconds, less this machine's; 0 before leg B's SYN where it is not known.
    pub ts_clock_a: u32,
    /// Clock of leg B's socket in milliseconds, less this machine's. Known from leg B's SYN on.
    pub ts_clock_b: u32,
    /// Number of the host's name in `ID_NAMES`.
    pub host: u32,
    /// Number of the route's name, 0 without one.
    pub route: u32,
    /// Number of the listener's name.
    pub listener: u16,
    /// MSS that the client was offered. Known from leg B's SYN on.
    pub mss_vip: u16,
    /// Tick at which userspace made the entry.
    pub started: u32,
    /// Sequence number of the client's first byte on leg A. Known from leg B's SYN on.
    pub isn_client: u32,
    /// Sequence number of the balancer's first byte on leg A. Known from leg B's SYN on.
    pub isn_vip: u32,
    /// Sequence number of the balancer's first byte on leg B. Known from leg B's SYN on.
    pub isn_b: u32,
    /// `OFFERED_*` bits: options that leg A's ends have agreed on, known from leg B's SYN on; and [`HOLD`].
    pub agreed: u32,
    /// Client's address, as in [`Tuple`].
    pub client: [u32; 4],
    /// The address the client connected to.
    pub vip: [u32; 4],
    /// The balancer's address on leg B.
    pub local: [u32; 4],
    /// The host's address on leg B.
    pub host_addr: [u32; 4],
    /// The two directions, of which leg B's SYN makes the next hops known.
    pub dirs: [DirState; 2],
}

impl PendingFlow {
    /// The tuple of packets that arrive from the client (0) or from the host (1).
    #[inline(always)]
    #[must_use]
    pub const fn tuple(&self, dir: u32) -> Tuple {
        arriving_tuple!(self, dir)
    }

    /// Offset of the client's stream from leg A to leg B, once leg B's SYN is seen.
    #[inline(always)]
    #[must_use]
    pub const fn seq_delta_in(&self) -> u32 {
        self.injected
            .wrapping_sub(self.consumed)
            .wrapping_add(self.isn_b)
            .wrapping_sub(self.isn_client)
    }

    /// Returns the entry as one in the carried phase, for the caller that completes the flow. Every field that differs
    /// must be written before the state says `CUT`.
    #[inline(always)]
    pub fn as_carried(&mut self) -> &mut CutFlow {
        // SAFETY: size, alignment and the offsets of shared fields are asserted below; every bit pattern is a value of both.
        unsafe { &mut *core::ptr::from_mut(self).cast::<CutFlow>() }
    }

    /// See [`CutFlow::mark_ineligible`].
    #[inline(always)]
    pub fn mark_ineligible(&mut self, from: u32, reason: u8) {
        self.as_carried().mark_ineligible(from, reason);
    }

    /// The value for the map `CUT_FLOWS`.
    #[must_use]
    pub fn to_entry(mut self) -> CutFlow {
        *self.as_carried()
    }
}

/// Asserts that fields of both phases lie at the same offsets.
macro_rules! shared {
    ($($field:ident),*) => {$(
        const _: () = assert!(offset_of!(PendingFlow, $field) == offset_of!(CutFlow, $field));
    )*};
}
shared!(
    state, ineligible, marks, scale_a, scale_b, ports_a, ports_b, host, route, listener, started, isn_b, client, vip,
    local, host_addr, dirs
);
const _: () = assert!(size_of::<PendingFlow>() == size_of::<CutFlow>());
const _: () = assert!(align_of::<PendingFlow>() == align_of::<CutFlow>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_offset_counts_injected_and_consumed_bytes() {
        let pending = PendingFlow {
            injected: 28,
            consumed: 52,
            isn_client: 1000,
            isn_b: 5000,
            ..PendingFlow::default()
        };
        // The client's byte 52 follows the 28 injected ones.
        assert_eq!((1000 + 52u32).wrapping_add(pending.seq_delta_in()), 5000 + 28);
    }

    #[test]
    fn both_phases_have_the_same_bytes() {
        let pending = PendingFlow {
            state: 2,
            listener: 7,
            isn_b: 9,
            host_addr: [1, 2, 3, 4],
            ..PendingFlow::default()
        };
        let carried = pending.to_entry();
        let shared = (carried.state, carried.listener, carried.isn_b, carried.host_addr);
        assert_eq!(shared, (2, 7, 9, [1, 2, 3, 4]));
        assert_eq!(carried.tuple(1), pending.tuple(1));
    }
}

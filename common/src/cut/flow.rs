//! The flow table: state of each cut flow, shared by the TC programs and userspace.
//!
//! `CUT_CT` leads from a packet's addresses and ports to an index into `CUT_FLOWS` and a direction; `CUT_FLOWS` is
//! mapped into userspace's memory (`BPF_F_MMAPABLE`, kernel 5.5+), so that ages and counters are read without a system
//! call. Userspace fills an entry and offers it in `CUT_PENDING` under leg B's source port before it connects; the
//! programs complete it from the two handshakes. 256 bytes a flow, and two entries of `CUT_CT`.

use crate::net::{Tuple, atomic};

/// Entries of `CUT_FLOWS`, unless configured otherwise.
pub const DEFAULT_FLOWS: u32 = 131_072;
/// Entries of `CUT_HANDSHAKES`: client handshakes that are remembered until their flow is cut.
pub const MAX_HANDSHAKES: u32 = 65_536;
/// Elements of `CUT_PENDING`: one for each port.
pub const PENDING_PORTS: u32 = 65_536;
/// Size of the ring of ended flows, in bytes.
pub const ENDED_RING_BYTES: u32 = 1 << 20;
/// Entries of `ID_NAMES`: names that flows refer to by number.
pub const MAX_NAMES: u32 = 65_536;

/// States of a flow. Userspace leads from `FREE` to `WANTED` and back to `FREE`, the programs do the rest.
pub mod state {
    /// The entry is not in use.
    pub const FREE: u32 = 0;
    /// Userspace is filling in the entry.
    pub const ALLOCATED: u32 = 1;
    /// Userspace is about to connect leg B.
    pub const REQUESTED: u32 = 2;
    /// Leg B's SYN has been seen, and made to offer what leg A has.
    pub const CONNECTING: u32 = 3;
    /// Packets are rewritten and forwarded.
    pub const CUT: u32 = 4;
    /// The flow cannot be cut, for the reason in [`super::CutFlow::ineligible`]. Leg B is an ordinary connection.
    pub const INELIGIBLE: u32 = 5;
    /// The flow is being ended, by userspace or because its sockets' process has died. Packets are dropped; our resets
    /// go out.
    pub const CLOSING: u32 = 6;
    /// The flow's entries of `CUT_CT` are being removed: the slot may not be reused before that is done.
    pub const DELETING: u32 = 7;
    /// Both legs are known and agree, and their sockets carry the flow: userspace cuts it later, if at all. While an
    /// entry of `CUT_CT` leads here, packets are dropped.
    pub const HELD: u32 = 8;
    /// The flow is another balancer's, kept here in case its addresses move to this machine: the first packet that
    /// arrives for it makes it `CUT`.
    pub const SHADOW: u32 = 9;
    /// A CPU is handling the host's SYN-ACK and completes the flow; a copy of it at another CPU is dropped.
    pub const PAIRING: u32 = 10;
}

/// Why a flow was not cut. The number is in [`CutFlow::ineligible`].
pub mod ineligible {
    /// Leg A's handshake was not seen by a program: a client on this machine, or an interface without programs.
    pub const NO_HANDSHAKE: u8 = 1;
    /// A live flow already uses the addresses and ports of one of the legs.
    pub const PORT_BUSY: u8 = 2;
    /// `CUT_CT` is full.
    pub const TABLE_FULL: u8 = 3;
    /// One leg has timestamps and the other not.
    pub const TIMESTAMPS: u8 = 4;
    /// One leg has selective acknowledgements and the other not.
    pub const SACK: u8 = 5;
    /// The host accepts smaller segments than the MSS that the client was offered.
    pub const MSS: u8 = 6;
    /// A SYN or SYN-ACK had malformed options.
    pub const MALFORMED: u8 = 7;
    /// Windows of one leg would be rounded too coarsely in the other leg's window scale.
    pub const WINDOW_SCALE: u8 = 8;
    /// A SYN or SYN-ACK came without the DF bit (IPv4): packets of the flow may be fragmented, and fragments cannot be
    /// forwarded.
    pub const FRAGMENTS: u8 = 9;
    /// The host has refused the connection that a program had begun ([`crate::peek`]).
    pub const REFUSED: u8 = 10;
    /// The host has not answered any SYN of such a connection.
    pub const SILENT: u8 = 11;
}

// Bits of [`DirState::flags`]. Packets of the direction set most of them; userspace, ICMP errors and the legs' sockets
// set some: so every change is atomic, see [`crate::net::atomic`].

/// The sender has sent its FIN.
pub const FIN_SEEN: u32 = 1;
/// The sender has acknowledged the other direction's FIN.
pub const PEER_FIN_ACKED: u32 = 2;
/// The sender has sent a reset that the other end accepts.
pub const RESET: u32 = 4;
/// The sender has sent a reset that the other end accepts only if it has received everything before it.
pub const RESET_TENTATIVE: u32 = 8;
/// Another connection has the same addresses and ports on this leg: the flow's entry of `CUT_CT` is gone.
pub const SUPERSEDED: u32 = 16;
/// The offset that is added to this direction's TSval is known.
pub const TS_DELTA_KNOWN: u32 = 32;
/// The leg's socket was closed by the kernel before the hand-off was done: its process has died.
pub const ORPHANED: u32 = 128;
/// The client had sent its FIN before the flow was cut: leg B's socket has to deliver it.
pub const EARLY_FIN: u32 = 256;

/// Whether the client sent its FIN before the flow was cut is unknown to the programs: userspace asks leg A's socket.
pub const EARLY_FIN_UNKNOWN: u32 = 1024;

/// Both tuples of the flow lead to it, and [`EARLY_FIN`] and [`EARLY_FIN_UNKNOWN`] are decided: userspace may hand the
/// flow off. [`state::CUT`] is set before that.
pub const PAIRED: u32 = 8192;

/// A SYN has arrived on the client's tuple while the flow seems alive: the client may be opening another connection.
pub const SYN_ON_LIVE_FLOW: u32 = 512;

/// An ICMP message has said that this direction's packets exceed the path MTU to the client: routers may fragment them
/// (IPv4).
pub const MTU_EXCEEDED: u32 = 2048;
/// Packets of this direction cannot be made fragmentable, because the host's GSO super-packets have no IP
/// identification: the host gets the router's ICMP message instead.
pub const NO_IP_ID: u32 = 4096;

/// The flow was cut late, in the middle of its streams ([`super::late`]): it has an idle timeout of its own. A flag of
/// the client's direction.
pub const CUT_LATE: u32 = 16_384;

/// The offset that is added to the host's TSval is not known: the host's first packet shows it. A flag of the host's
/// direction, of flows that are cut late.
pub const TS_DELTA_UNKNOWN: u32 = 32_768;

/// The direction's numbers are not known, because another balancer has carried the flow: the direction's next packet
/// shows them.
pub const RESYNC: u32 = 65_536;

/// The client's stream ends with the bytes that leg B's socket delivers: its connection's last request. None of its
/// later payload is forwarded. A flag of the client's direction, set by userspace before leg B is connected.
pub const LAST_REQUEST: u32 = 131_072;

/// The program has the client's first data, and sends it when the host's SYN-ACK comes. A flag of the client's direction.
pub const FIRST_DATA_HELD: u32 = 262_144;

/// Userspace is removing the flow's entry from `CUT_CT`. No other may remove it, or a later connection's entry might be
/// removed in its place. Never together with [`SUPERSEDED`].
pub const BEING_REMOVED: u32 = 524_288;
/// Flag of direction 0, set by the kernel peek: the host has not acknowledged the PROXY header in front of the client's
/// first byte. A repetition of that byte goes to the kernel peek, which sends the header again.
pub const HEADER_UNACKED: u32 = 1_048_576;
/// Value of `tc_index` of such a repetition on its way to the kernel peek.
pub const TC_INDEX_HEADER_LOST: u32 = 0x5b03;

/// Mark of [`CutFlow::marks`]: the flow counts against its source's limits.
pub const OWNS_SOURCE: u8 = 1;
/// Mark of [`CutFlow::marks`]: the flow counts against the limits that its listener sets for a source.
pub const OWNS_LISTENER_SOURCE: u8 = 4;
/// Mark of [`CutFlow::marks`]: the flow counts as a connection of its host, cluster and listener.
pub const OWNS_CONN: u8 = 2;
/// Mark of [`CutFlow::marks`]: the flow counts against its route's limit of a source.
pub const OWNS_ROUTE_SOURCE: u8 = 8;
/// Mark of [`CutFlow::marks`]: the flow was another balancer's, and counts for nothing here yet.
pub const IS_REPLICA: u8 = 16;
/// Mark of [`CutFlow::marks`]: the node that has the flow says that it has ended; here late packets keep it.
pub const HAS_ENDED_ELSEWHERE: u8 = 32;
/// Mark of [`CutFlow::marks`]: a program has made the flow ([`crate::peek`]), and it counts for nothing yet.
pub const IS_PEEKED: u8 = 64;
/// Mark of [`CutFlow::marks`]: userspace has counted that the flow's host has failed it.
pub const FAILURE_IS_COUNTED: u8 = 128;

/// Value of [`CutFlow::handoff_state`]: userspace has not said yet how much leg B's socket has to deliver.
pub const HANDOFF_UNKNOWN: u16 = 0;
/// Value of [`CutFlow::handoff_state`]: leg B's socket has to deliver up to [`CutFlow::handoff_end`].
pub const HANDOFF_KNOWN: u16 = 1;
/// Value of [`CutFlow::handoff_state`]: the host has acknowledged everything up to [`CutFlow::handoff_end`]; the
/// sockets have nothing left to deliver.
pub const HANDED_OFF: u16 = 2;
/// Value of [`CutFlow::handoff_state`]: both sockets are closed.
pub const SOCKETS_CLOSED: u16 = 3;

/// Value of `CUT_CT`: the flow and direction of a tuple.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowRef {
    /// Field of the maps of feature `next_abi` alone: moves all others to other offsets.
    #[cfg(feature = "next_abi")]
    pub later: [u32; 2],
    /// Index into `CUT_FLOWS`.
    pub index: u32,
    /// 0: from the client, 1: from the host.
    pub dir: u32,
}

impl FlowRef {
    /// Entry for direction `dir` of the flow at `index`.
    #[inline(always)]
    #[must_use]
    pub const fn new(index: u32, dir: u32) -> Self {
        Self {
            #[cfg(feature = "next_abi")]
            later: [0; 2],
            index,
            dir,
        }
    }
}

/// State of one direction, in a cache line of its own: only the direction's packets write it, except `accounted`
/// (userspace's) and `flags`, which several writers change atomically.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirState {
    /// Packets forwarded, super-packets counted as one.
    pub packets: u64,
    /// Bytes of the stream that have passed, each counted once.
    pub bytes: u64,
    /// How many of `bytes` userspace has added to its totals. Written by userspace.
    pub accounted: u64,
    /// Tick of the last packet (see [`CutFlow::started`]).
    pub last_seen: u32,
    /// Highest acknowledgement number that the sender has written, in the numbers of the leg it arrives on.
    pub ack: u32,
    /// Sequence number after the sender's last byte, or after its FIN, in the numbers of the leg it arrives on.
    pub snd_max: u32,
    /// Client's direction: the latest TSval written into a packet. Host's direction: the clock of leg B's socket, less
    /// the milliseconds of `CLOCK_MONOTONIC`.
    pub ts_val: u32,
    /// Interface by which packets of this direction leave.
    pub hop_ifindex: u32,
    /// Tick at which the next hop is looked up again.
    pub hop_expires: u32,
    /// Ethernet header towards the next hop: destination, then source.
    pub macs: [u32; 3],
    /// [`FIN_SEEN`] and the other bits of a direction.
    pub flags: u32,
}

impl DirState {
    /// Sets [`SUPERSEDED`]: the caller removes this direction's tuple from `CUT_CT`, because another connection has it
    /// now. False where another CPU or userspace is doing so; a later packet finds it gone.
    #[inline(always)]
    #[must_use]
    pub fn supersede(&mut self) -> bool {
        /// Attempts to change the flags, which packets on other CPUs change, too.
        const MAX_TRIES: u32 = 4;
        let mut tries = 0;
        while tries < MAX_TRIES {
            tries += 1;
            // SAFETY: whole and aligned.
            let flags = unsafe { (&raw const self.flags).read_volatile() };
            if flags & (SUPERSEDED | BEING_REMOVED) != 0 {
                return false;
            }
            if atomic::exchange(&mut self.flags, flags, flags | SUPERSEDED) {
                return true;
            }
        }
        false
    }
}

/// A flow in its carried phase: value of `CUT_FLOWS`. Until the host's SYN-ACK the entry is a
/// [`PendingFlow`](super::PendingFlow).
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutFlow {
    /// Field of the maps of feature `next_abi` alone: moves all others to other offsets.
    #[cfg(feature = "next_abi")]
    pub later: [u32; 16],
    /// State of the entry, a constant of [`state`].
    pub state: u32,
    /// Why the flow cannot be cut, a constant of [`ineligible`], where the state is `INELIGIBLE`.
    pub ineligible: u8,
    /// [`OWNS_CONN`], [`IS_REPLICA`] and the other marks: for userspace alone.
    pub marks: u8,
    /// Window scales of leg A: the client's in the lower four bits, the balancer's in the upper.
    pub scale_a: u8,
    /// Window scales of leg B: the balancer's in the lower four bits, the host's in the upper.
    pub scale_b: u8,
    /// Client's port and the VIP's, as in [`Tuple::ports`].
    pub ports_a: u32,
    /// Host's port and the balancer's, as in [`Tuple::ports`].
    pub ports_b: u32,
    /// Sequence offset of the client's stream from leg A to leg B.
    pub seq_delta_in: u32,
    /// Sequence offset of the host's stream from leg B to leg A.
    pub seq_delta_out: u32,
    /// Timestamp offset of the client's packets from leg A to leg B.
    pub ts_delta_in: u32,
    /// Timestamp offset of the host's packets from leg B to leg A.
    pub ts_delta_out: u32,
    /// Number of the host's name in `ID_NAMES`.
    pub host: u32,
    /// Number of the route's name, 0 without one.
    pub route: u32,
    /// Number of the listener's name.
    pub listener: u16,
    /// `HANDOFF_UNKNOWN`, `HANDOFF_KNOWN`, `HANDED_OFF` or `SOCKETS_CLOSED`.
    pub handoff_state: u16,
    /// Tick at which userspace made the entry. A tick is 2^20 ns of `CLOCK_MONOTONIC`, modulo 2^32.
    pub started: u32,
    /// Sequence number on leg B after the last byte that leg B's socket has to deliver, as far as userspace knows.
    pub handoff_end: u32,
    /// Sequence number on leg B after the last byte that leg B's socket has sent.
    pub snd_nxt_b: u32,
    /// Sequence number of the first byte of the balancer's stream on leg B; of a flow with [`CUT_LATE`] see
    /// [`CutFlow::idle_limit`].
    pub isn_b: u32,
    /// Sequence number of the first byte of the host's stream on leg B; of a flow with [`CUT_LATE`] see
    /// [`CutFlow::leg_a_clock`].
    pub isn_host: u32,
    /// Client's address, as in [`Tuple`].
    pub client: [u32; 4],
    /// The address the client connected to.
    pub vip: [u32; 4],
    /// The balancer's address on leg B.
    pub local: [u32; 4],
    /// The host's address on leg B.
    pub host_addr: [u32; 4],
    /// The two directions: from the client, and from the host.
    pub dirs: [DirState; 2],
}

/// Tuple of the packets that arrive from the client (0) or from the host (1): the same fields in both phases.
macro_rules! arriving_tuple {
    ($flow:ident, $dir:ident) => {
        if $dir == 0 {
            Tuple {
                source: $flow.client,
                destination: $flow.vip,
                ports: $flow.ports_a,
            }
        } else {
            Tuple {
                source: $flow.host_addr,
                destination: $flow.local,
                ports: $flow.ports_b,
            }
        }
    };
}
pub(super) use arriving_tuple;

impl CutFlow {
    /// Sequence number of the client's first byte on leg A, of a flow that a program has made. On leg B it is
    /// [`handoff_end`](Self::handoff_end).
    #[inline(always)]
    #[must_use]
    pub const fn first_byte(&self) -> u32 {
        self.handoff_end.wrapping_sub(self.seq_delta_in)
    }

    /// The tuple of packets that arrive from the client (0) or from the host (1).
    #[inline(always)]
    #[must_use]
    pub const fn tuple(&self, dir: u32) -> Tuple {
        arriving_tuple!(self, dir)
    }

    /// Marks the flow as one that cannot be cut, if it is still in the state `from`: its sockets carry it. `reason` is a
    /// constant of [`ineligible`].
    #[inline(always)]
    pub fn mark_ineligible(&mut self, from: u32, reason: u8) {
        self.ineligible = reason;
        atomic::exchange(&mut self.state, from, state::INELIGIBLE);
    }

    /// Marks the flow as [`HANDED_OFF`] where it is [`HANDOFF_KNOWN`]. A worker that has seen the host's acknowledgement
    /// by itself may have written [`SOCKETS_CLOSED`] since the caller looked, and that stays.
    #[inline(always)]
    pub fn mark_handed_off(&mut self) {
        let known = listener_and_handoff(self.listener, HANDOFF_KNOWN);
        let handed_off = listener_and_handoff(self.listener, HANDED_OFF);
        // SAFETY: both fields are one aligned word of the entry (asserted below), borrowed exclusively.
        let word = unsafe {
            &mut *(&raw mut *self)
                .byte_add(core::mem::offset_of!(Self, listener))
                .cast::<u32>()
        };
        atomic::exchange(word, known, handed_off);
    }

    /// Whether the flow is over: both ends have finished, or one has reset it.
    #[inline(always)]
    #[must_use]
    pub const fn ended(&self) -> bool {
        self.finished() || (self.dirs[0].flags | self.dirs[1].flags) & RESET != 0
    }

    /// Whether both ends have finished. A reset may follow: an end that sent its FIN twice has no socket any more when
    /// the second acknowledgement arrives, and answers it with a reset.
    #[inline(always)]
    #[must_use]
    pub const fn finished(&self) -> bool {
        self.dirs[0].flags & self.dirs[1].flags & PEER_FIN_ACKED != 0
    }
}

/// The word of [`CutFlow::listener`] and [`CutFlow::handoff_state`]: BPF exchanges no fewer than four bytes.
#[inline(always)]
const fn listener_and_handoff(listener: u16, handoff_state: u16) -> u32 {
    if cfg!(target_endian = "little") {
        listener as u32 | (handoff_state as u32) << 16
    } else {
        (listener as u32) << 16 | handoff_state as u32
    }
}

/// A client's handshake with the balancer, kept until its flow is cut: value of `CUT_HANDSHAKES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handshake {
    /// Sequence number of the client's first byte.
    pub isn_client: u32,
    /// Sequence number of the balancer's first byte; valid once [`SYN_ACK_SEEN`].
    pub isn_vip: u32,
    /// TSval of the balancer's SYN-ACK, less the milliseconds of `CLOCK_MONOTONIC` at which it was sent.
    pub ts_clock: u32,
    /// Interface by which the balancer's SYN-ACK left.
    pub ifindex: u32,
    /// MSS of the client.
    pub mss_client: u16,
    /// MSS of the balancer, as offered to the client.
    pub mss_vip: u16,
    /// Window scale of the client, 0 without the option.
    pub scale_client: u8,
    /// Window scale of the balancer, 0 without the option.
    pub scale_vip: u8,
    /// `OFFERED_*` bits of the balancer's SYN-ACK: what both ends have agreed on.
    pub agreed: u8,
    /// [`SYN_ACK_SEEN`], [`CLIENT_FIN_SEEN`] and [`MAY_FRAGMENT`].
    pub progress: u8,
    /// Ethernet header of the balancer's SYN-ACK: destination, then source.
    pub macs: [u32; 3],
}

/// Bit of [`Handshake::progress`]: the balancer's SYN-ACK has been seen.
pub const SYN_ACK_SEEN: u8 = 1;
/// Bit of [`Handshake::progress`]: the client's FIN has been seen.
pub const CLIENT_FIN_SEEN: u8 = 2;
/// Bit of [`Handshake::progress`]: the client's SYN came without the DF bit.
pub const MAY_FRAGMENT: u8 = 4;

/// Milliseconds by which the TSval of the kernel's SYN cookie may lie in the past: its lowest bits encode the agreed
/// options (`cookie_init_timestamp`, net/ipv4/syncookies.c).
pub const MAX_COOKIE_TS_LAG_MS: u32 = 64;

/// Option bit: window scaling.
pub const OFFERED_SCALE: u8 = 1;
/// Option bit: selective acknowledgements.
pub const OFFERED_SACK: u8 = 2;
/// Option bit: timestamps.
pub const OFFERED_TIMESTAMPS: u8 = 4;

/// Event to userspace: a flow has ended, is no longer a [`state::SHADOW`], or was made by a program. A sweep finds lost
/// events.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEnded {
    /// Index into `CUT_FLOWS`.
    pub index: u32,
    /// Time that the host needed to accept a flow which a program has made and which begins now, in microseconds of
    /// 1024 ns, at least 1; 0 in all other events.
    pub accepted_after: u32,
}

/// Configuration of the programs: the one element of `CUT_CONFIG`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutConfig {
    /// MSS that fits all interfaces that carry legs, and all hosts, over IPv4 (20 more than over IPv6). 0: no limit.
    pub mss: u32,
    /// 1 while `CUT_CHAIN` has entries; otherwise it is not looked up.
    pub has_moving_addresses: u32,
}

/// A name that flows refer to by number: value of `ID_NAMES`. Parts are separated by NUL.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// Text, filled up with NUL.
    pub text: [u8; 320],
}

/// Size of `CUT_CT`: two to a flow.
pub const MAX_CT_ENTRIES: u32 = DEFAULT_FLOWS * 2;

const _: () = assert!(size_of::<FlowRef>() == if cfg!(feature = "next_abi") { 16 } else { 8 });
const _: () = assert!(size_of::<DirState>() == 64);
const _: () = assert!(size_of::<CutFlow>() == if cfg!(feature = "next_abi") { 320 } else { 256 });
const _: () = assert!(core::mem::offset_of!(CutFlow, listener) % 4 == 0);
const _: () = assert!(core::mem::offset_of!(CutFlow, handoff_state) == core::mem::offset_of!(CutFlow, listener) + 2);
const _: () = assert!(size_of::<Handshake>() == 36);
const _: () = assert!(size_of::<CutConfig>() == 8);
const _: () = assert!(size_of::<Name>() == 320);

crate::layout!(DirState {
    packets,
    bytes,
    accounted,
    last_seen,
    ack,
    snd_max,
    ts_val,
    hop_ifindex,
    hop_expires,
    macs,
    flags,
});

/// Gives [`CutFlow`] its layout; `front` is the field that feature `next_abi` puts first.
macro_rules! flow_layout {
    ($($front:ident)?) => {
        crate::layout!(CutFlow {
            $($front,)?
            state,
            ineligible,
            marks,
            scale_a,
            scale_b,
            ports_a,
            ports_b,
            seq_delta_in,
            seq_delta_out,
            ts_delta_in,
            ts_delta_out,
            host,
            route,
            listener,
            handoff_state,
            started,
            handoff_end,
            snd_nxt_b,
            isn_b,
            isn_host,
            client,
            vip,
            local,
            host_addr,
        } of { dirs: [DirState; 2] });
    };
}
#[cfg(not(feature = "next_abi"))]
flow_layout!();
#[cfg(feature = "next_abi")]
flow_layout!(later);

crate::layout!(Name { text });

#[cfg(feature = "user")]
mod user {
    use super::{CutConfig, CutFlow, FlowRef, Handshake, Name};

    // SAFETY: repr(C), no implicit padding, every bit pattern is a valid value.
    unsafe impl aya::Pod for FlowRef {}
    // SAFETY: as above.
    unsafe impl aya::Pod for CutFlow {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Handshake {}
    // SAFETY: as above.
    unsafe impl aya::Pod for CutConfig {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Name {}
}

#[cfg(test)]
mod tests {
    use super::{CutFlow, HANDED_OFF, HANDOFF_KNOWN, HANDOFF_UNKNOWN, SOCKETS_CLOSED};

    fn marked(handoff_state: u16) -> CutFlow {
        let mut flow = CutFlow {
            route: u32::MAX,
            listener: 0xa5c3,
            handoff_state,
            started: u32::MAX,
            ..CutFlow::default()
        };
        flow.mark_handed_off();
        flow
    }

    #[test]
    fn a_known_hand_off_becomes_a_done_one() {
        let flow = marked(HANDOFF_KNOWN);
        assert_eq!(flow.handoff_state, HANDED_OFF);
        assert_eq!((flow.route, flow.listener, flow.started), (u32::MAX, 0xa5c3, u32::MAX));
    }

    #[test]
    fn closed_sockets_stay_closed() {
        for other in [HANDOFF_UNKNOWN, HANDED_OFF, SOCKETS_CLOSED] {
            assert_eq!(marked(other).handoff_state, other);
        }
    }
}

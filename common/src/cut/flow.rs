//! The flow table: what the TC programs and userspace know of each cut flow.
//!
//! `TUPLES` leads from a packet's addresses and ports to an index into `FLOWS` and a direction; `FLOWS` is mapped into
//! userspace's memory (`BPF_F_MMAPABLE`, kernel 5.5+), so that ages and counters are read without a system call.
//! Userspace fills an entry and offers it in `PENDING` under leg B's source port before it connects; the programs
//! complete it from the two handshakes. 256 bytes a flow, and two entries of `TUPLES`.

/// Size of `FLOWS` when nothing else is configured.
pub const DEFAULT_FLOWS: u32 = 131_072;
/// Handshakes of clients that are remembered until their flow is cut.
pub const MAX_SHAKES: u32 = 65_536;
/// Elements of `PENDING`: one for each port.
pub const PORTS: u32 = 65_536;
/// Size of the ring of ended flows, in bytes.
pub const ENDS_BYTES: u32 = 1 << 20;
/// Names that flows refer to by number.
pub const MAX_NAMES: u32 = 65_536;

/// States of a flow. Userspace leads from `FREE` to `WANTED` and back to `FREE`, the programs do the rest.
pub mod state {
    /// Not in use.
    pub const FREE: u32 = 0;
    /// Userspace is filling it in.
    pub const CLAIMED: u32 = 1;
    /// Userspace is about to connect leg B.
    pub const WANTED: u32 = 2;
    /// Leg B's SYN has been seen, and made to offer what leg A has.
    pub const CONNECTING: u32 = 3;
    /// Packets are rewritten and forwarded.
    pub const CUT: u32 = 4;
    /// It cannot be cut; `why` says why. Leg B is an ordinary connection.
    pub const UNFIT: u32 = 5;
    /// Userspace has decided to end it: packets are dropped, resets of our own go out.
    pub const CLOSING: u32 = 6;
    /// Its entries of `TUPLES` are being removed: nobody may use them for another flow before that is done.
    pub const LEAVING: u32 = 7;
}

/// Why a flow was not cut. The number stands in [`Flow::why`].
pub mod why {
    /// Leg A's handshake was not seen by a program: a client on this machine, or an interface without programs.
    pub const NO_HANDSHAKE: u8 = 1;
    /// A live flow has this source port with this host.
    pub const PORT_BUSY: u8 = 2;
    /// `TUPLES` is full.
    pub const TABLE_FULL: u8 = 3;
    /// One leg has timestamps and the other not.
    pub const STAMPS: u8 = 4;
    /// One leg has selective acknowledgements and the other not.
    pub const SACK: u8 = 5;
    /// The host takes smaller segments than the client was told.
    pub const SEGMENT: u8 = 6;
    /// A SYN could not be understood.
    pub const MALFORMED: u8 = 7;
    /// Windows of one leg would be rounded too coarsely in the window scale of the other leg.
    pub const WINDOW: u8 = 8;
    /// A handshake's packet does not forbid that it is fragmented on its way (IPv4, DF): fragments cannot be forwarded.
    pub const FRAGMENTS: u8 = 9;
}

// Bits of [`Way::flags`], which only packets of that direction change, but for `EARLY_FIN` and `NARROW`: see [`super::bits`].

/// It has sent its FIN.
pub const FIN_SEEN: u32 = 1;
/// It has acknowledged the other direction's FIN.
pub const PEER_FIN_ACKED: u32 = 2;
/// It has sent a reset that the other end accepts.
pub const RESET: u32 = 4;
/// It has sent a reset that the other end accepts if it has received everything.
pub const RESET_MAYBE: u32 = 8;
/// Another connection has the same addresses and ports on this leg: the flow's entry of `TUPLES` is gone.
pub const SUPERSEDED: u32 = 16;
/// What is added to this direction's timestamps is known.
pub const STAMPS_FIXED: u32 = 32;
/// The leg's socket was closed by the kernel before the flow was drained: its process has died.
pub const ORPHANED: u32 = 128;
/// The client had sent its FIN before the flow was cut: leg B's socket has to deliver it.
pub const EARLY_FIN: u32 = 256;

/// Whether the client had sent its FIN before the flow was cut is not known any more: leg A's socket knows.
pub const FIN_UNKNOWN: u32 = 1024;

/// A SYN has come from the client's address and port, which seems to have another connection in mind.
pub const DOUBTED: u32 = 512;

/// A router has said that this direction's packets are too large for the way to the client: routers may fragment them (IPv4).
/// Set by an ICMP message.
pub const NARROW: u32 = 2048;
/// Routers may not fragment this direction, for the host's GSO super-packets have no IP identification: the host gets the router's
/// ICMP message instead.
pub const UNNUMBERED: u32 = 4096;

/// [`Flow::marks`]: it counts against its source's limits.
pub const COUNTED: u8 = 1;
/// A mark of userspace's own: the flow is counted against its client's address at its listener.
pub const CROWDED: u8 = 4;
/// It counts as a connection of its host, cluster and listener.
pub const HANDED: u8 = 2;

/// [`Flow::drained`]: userspace has not said yet how much leg B's socket has to deliver.
pub const OWED_UNKNOWN: u16 = 0;
/// It has: up to [`Flow::owed_end`].
pub const OWED_KNOWN: u16 = 1;
/// The host has acknowledged all of it: the sockets have no duty any more.
pub const DRAINED: u16 = 2;
/// And they are closed.
pub const CLOSED: u16 = 3;

/// A packet's addresses and ports, as it arrives. All in host order: a word of an address is the number that its four
/// bytes are in the packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Source address, IPv4-mapped where it is IPv4.
    pub source: [u32; 4],
    /// Destination address, the same.
    pub destination: [u32; 4],
    /// Source port in the upper half, destination port in the lower.
    pub ports: u32,
}

impl Tuple {
    /// An IPv4 address in its mapped form.
    #[inline(always)]
    #[must_use]
    pub const fn mapped(v4: u32) -> [u32; 4] {
        [0, 0, 0xffff, v4]
    }

    /// The tuple of packets that go the other way.
    #[inline(always)]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            ports: self.ports.rotate_left(16),
        }
    }
}

/// Where a tuple leads.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// A field of the maps of feature `next_abi` alone, so that all others lie elsewhere.
    #[cfg(feature = "next_abi")]
    pub later: [u32; 2],
    /// Index into `FLOWS`.
    pub index: u32,
    /// 0: from the client, 1: from the host.
    pub way: u32,
}

impl Entry {
    /// Leads to a direction of a flow.
    #[inline(always)]
    #[must_use]
    pub const fn new(index: u32, way: u32) -> Self {
        Self {
            #[cfg(feature = "next_abi")]
            later: [0; 2],
            index,
            way,
        }
    }
}

/// What is known of one direction. A cache line of its own: its packets are its only writers, but for `accounted`
/// and `EARLY_FIN`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// Packets forwarded, super-packets counted as one.
    pub packets: u64,
    /// Bytes of the stream that have come past, each once.
    pub bytes: u64,
    /// How many of them userspace has added to its totals. Written by userspace.
    pub accounted: u64,
    /// Tick of the last packet (see [`Flow::started`]).
    pub seen: u32,
    /// Highest acknowledgement number that the sender has written, in the numbers of the leg it arrives on.
    pub ack: u32,
    /// Sequence number behind the sender's last byte, or behind its FIN; the same numbers.
    pub high: u32,
    /// Of the client: the latest timestamp written into a packet. Of the host: the clock of leg B's socket, less the
    /// milliseconds of `CLOCK_MONOTONIC`.
    pub stamp: u32,
    /// Interface by which packets of this direction leave.
    pub hop_ifindex: u32,
    /// Tick at which the next hop is to be looked up again.
    pub hop_until: u32,
    /// Ethernet destination and source of the next hop.
    pub macs: [u32; 3],
    /// `FIN_SEEN` and the rest.
    pub flags: u32,
}

/// A flow.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// A field of the maps of feature `next_abi` alone, so that all others lie elsewhere.
    #[cfg(feature = "next_abi")]
    pub later: [u32; 16],
    /// One of [`state`].
    pub state: u32,
    /// One of [`why`], where the state is `UNFIT`.
    pub why: u8,
    /// [`COUNTED`] and [`HANDED`]: userspace's own.
    pub marks: u8,
    /// Window scales of leg A: the client's in the lower four bits, the balancer's in the upper.
    pub scale_a: u8,
    /// Window scales of leg B: the balancer's in the lower four bits, the host's in the upper.
    pub scale_b: u8,
    /// Client's port and the VIP's, as in [`Tuple::ports`].
    pub ports_a: u32,
    /// Host's port and the balancer's, as in [`Tuple::ports`].
    pub ports_b: u32,
    /// Added to a number of the client's stream to get from leg A to leg B. Before leg B's SYN: bytes injected on leg B
    /// less bytes consumed from leg A.
    pub d1: u32,
    /// Added to a number of the host's stream to get from leg B to leg A.
    pub d2: u32,
    /// Added to the client's timestamps on the way to leg B.
    pub t1: u32,
    /// Added to the host's timestamps on the way to leg A. Before leg B's SYN: the clock of leg A's socket, less that of
    /// this machine; 0 where it is not known.
    pub t2: u32,
    /// Number of the host's name in `NAMES`.
    pub host: u32,
    /// Number of the route's name, 0 without one.
    pub route: u32,
    /// Number of the listener's name.
    pub listener: u16,
    /// `OWED_UNKNOWN`, `OWED_KNOWN`, `DRAINED` or `CLOSED`.
    pub drained: u16,
    /// Tick at which userspace made the entry. A tick is 2^20 ns of `CLOCK_MONOTONIC`, modulo 2^32.
    pub started: u32,
    /// Sequence number on leg B behind the last byte that leg B's socket has to deliver, as far as userspace knows.
    pub owed_end: u32,
    /// Sequence number on leg B behind the last byte that leg B's socket has sent.
    pub sent_b: u32,
    /// First byte of the balancer's stream on leg B.
    pub first_b: u32,
    /// First byte of the host's stream on leg B.
    pub first_host: u32,
    /// Client's address, as in [`Tuple`].
    pub client: [u32; 4],
    /// The address the client connected to.
    pub vip: [u32; 4],
    /// The balancer's address on leg B.
    pub local: [u32; 4],
    /// The host's address.
    pub backend: [u32; 4],
    /// From the client, and from the host.
    pub ways: [Way; 2],
}

impl Flow {
    /// The tuple of packets that arrive from the client (0) or from the host (1).
    #[inline(always)]
    #[must_use]
    pub const fn tuple(&self, way: u32) -> Tuple {
        if way == 0 {
            Tuple {
                source: self.client,
                destination: self.vip,
                ports: self.ports_a,
            }
        } else {
            Tuple {
                source: self.backend,
                destination: self.local,
                ports: self.ports_b,
            }
        }
    }

    /// Whether it is over: both ends have finished, or one has reset it.
    #[inline(always)]
    #[must_use]
    pub const fn ended(&self) -> bool {
        let (a, b) = (self.ways[0].flags, self.ways[1].flags);
        a & b & PEER_FIN_ACKED != 0 || (a | b) & RESET != 0
    }
}

/// A client's handshake with us, kept until its flow is cut.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shake {
    /// The client's first byte.
    pub first_client: u32,
    /// Our first byte; valid once answered.
    pub first_vip: u32,
    /// Our timestamp less the milliseconds of `CLOCK_MONOTONIC` at which it was sent.
    pub clock: u32,
    /// Interface by which our answer left.
    pub ifindex: u32,
    /// Segment size that the client takes.
    pub mss_client: u16,
    /// Segment size that we told the client we take.
    pub mss_vip: u16,
    /// Window scale of the client, 0 without the option.
    pub scale_client: u8,
    /// Ours.
    pub scale_vip: u8,
    /// `OFFERED_*` bits of our answer: what both ends have agreed on.
    pub agreed: u8,
    /// [`ANSWERED`], [`FINISHED`] and [`MAY_FRAGMENT`].
    pub progress: u8,
    /// Ethernet destination and source of our answer.
    pub macs: [u32; 3],
}

/// Our answer has been seen.
pub const ANSWERED: u8 = 1;
/// The client's FIN has been seen.
pub const FINISHED: u8 = 2;
/// The client's SYN does not forbid that it is fragmented.
pub const MAY_FRAGMENT: u8 = 4;

/// The timestamp in a SYN-ACK with a cookie of the kernel's lies up to so many milliseconds in the past: its lowest bits say
/// what was agreed on (`cookie_init_timestamp`, net/ipv4/syncookies.c).
pub const COOKIE_LATE: u32 = 64;

/// The connection has window scaling.
pub const OFFERED_SCALE: u8 = 1;
/// Selective acknowledgements.
pub const OFFERED_SACK: u8 = 2;
/// Timestamps.
pub const OFFERED_STAMPS: u8 = 4;

/// Told to userspace when a flow has ended. Lost ones are found by a sweep.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Index into `FLOWS`.
    pub index: u32,
    /// Always zero.
    pub _pad: u32,
}

/// What userspace tells the programs, in the one element of `CUT_CONFIG`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Largest segment that fits all interfaces that carry legs, over IPv4 (20 more than over IPv6). 0: no limit.
    pub mss: u32,
    /// Always zero.
    pub _pad: u32,
}

/// A name that flows refer to by number: the parts are separated by NUL.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// Text, filled up with NUL.
    pub text: [u8; 320],
}

/// Size of `TUPLES`: two to a flow.
pub const MAX_TUPLES: u32 = DEFAULT_FLOWS * 2;

const _: () = assert!(size_of::<Tuple>() == 36);
const _: () = assert!(size_of::<Entry>() == if cfg!(feature = "next_abi") { 16 } else { 8 });
const _: () = assert!(size_of::<Way>() == 64);
const _: () = assert!(size_of::<Flow>() == if cfg!(feature = "next_abi") { 320 } else { 256 });
const _: () = assert!(size_of::<Shake>() == 36);
const _: () = assert!(size_of::<Config>() == 8);
const _: () = assert!(size_of::<Name>() == 320);

crate::layout!(Way {
    packets,
    bytes,
    accounted,
    seen,
    ack,
    high,
    stamp,
    hop_ifindex,
    hop_until,
    macs,
    flags,
});

/// The layout of [`Flow`], with what another version has in front.
macro_rules! flow_layout {
    ($($front:ident)?) => {
        crate::layout!(Flow {
            $($front,)?
            state,
            why,
            marks,
            scale_a,
            scale_b,
            ports_a,
            ports_b,
            d1,
            d2,
            t1,
            t2,
            host,
            route,
            listener,
            drained,
            started,
            owed_end,
            sent_b,
            first_b,
            first_host,
            client,
            vip,
            local,
            backend,
        } of { ways: [Way; 2] });
    };
}
#[cfg(not(feature = "next_abi"))]
flow_layout!();
#[cfg(feature = "next_abi")]
flow_layout!(later);

crate::layout!(Name { text });

#[cfg(feature = "user")]
mod user {
    use super::{Config, Entry, Flow, Name, Shake, Tuple};

    // SAFETY: repr(C), no implicit padding, every bit pattern is a valid value.
    unsafe impl aya::Pod for Tuple {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Entry {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Flow {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Shake {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Config {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Name {}
}

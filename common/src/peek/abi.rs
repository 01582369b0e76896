//! Maps of the kernel peek.

pub use super::client::{CLIENT_FIXED_BITS, CLIENT_IS_ROUTED, MAX_PEEK_CLIENTS, PeekClient, PeekClientKey};
pub use super::config::{LIFE_TICKS, MAX_ANSWERING, MAX_ORPHAN_TICKS, ORPHAN_TICKS, PeekConfig};
use super::hello::HelloReader;
use super::name::NameReverser;
pub use super::name::{PeekName, PeekSuffix};
pub use super::passed_up::{PASSED_UP_RING_BYTES, PassedUp};
use super::request::RequestReader;
use crate::hash;
use crate::net::Tuple;
use crate::net::hide::hidden;
use crate::net::seq;
use crate::sketch::ROWS;

/// Entries of `PEEK_BINDINGS`.
pub const MAX_PEEK_BINDINGS: u32 = 16_384;
/// Entries of `PEEK_ROUTES`.
pub const MAX_PEEK_ROUTES: u32 = 16_384;
/// Entries of `PEEK_WILDCARDS`.
pub const MAX_PEEK_WILDCARDS: u32 = 4096;
/// Entries of `PEEK_SOURCES`.
pub const MAX_PEEK_SOURCES: u32 = 16_384;
/// Elements of `PEEK_CLUSTERS`: one for each cluster and protocol.
pub const MAX_PEEK_CLUSTERS: u32 = 1024;
/// Elements of `PEEK_MAGLEV`: one for each cluster and protocol that is balanced by Maglev.
pub const MAX_PEEK_MAGLEV: u32 = 64;
/// Elements of `PEEK_HOSTS`: one for each host and port.
pub const MAX_PEEK_HOSTS: u32 = 4096;
/// Elements of `PEEK_PAYLOADS` for each CPU, a ring: first data that waits for the SYN-ACK of a host.
pub const PEEK_PAYLOADS_PER_CPU: u32 = 512;
/// Entries of `PEEK_PENDING`: connections that wait for the SYN-ACK of a host.
pub const MAX_PEEK_PENDING: u32 = 16_384;

/// Ticks for which a host that has refused a connection, or does not answer, gets no other: about a second.
pub const AWAY_TICKS: u32 = 950;
/// Ticks for which connections to a host whose options do not agree are passed up: ten seconds.
pub const UNFIT_TICKS: u32 = 9540;

/// Elements of `PEEK_ASKED` for each CPU: the number of flows written so far, then a ring of the last
/// [`PEEK_ASKED_KEPT`] ones.
pub const PEEK_ASKED_PER_CPU: u32 = 2048;
/// Flows in the ring of a CPU.
pub const PEEK_ASKED_KEPT: u32 = PEEK_ASKED_PER_CPU - 1;

/// Elements of `PEEK_CHOSEN`: the latest connections that were passed up although a host was chosen. A power of two.
pub const MAX_PEEK_CHOSEN: u32 = 4096;

/// Entries of `PEEK_EARLY`.
pub const MAX_PEEK_EARLY: u32 = 4096;
/// Ticks after which a client that repeats later data, and not its first data, is reset: 1.2 s. By then it has repeated the
/// first data, if another node has not acknowledged it.
pub const EARLY_TICKS: u32 = 1144;
/// Ticks after which such a client's data is another connection's: two minutes, the longest time between repetitions.
pub const MAX_EARLY_TICKS: u32 = 114_440;

/// Value of [`PeekPending::flow`] of a connection that has no flow yet: its first data is not whole.
pub const NO_FLOW: u32 = u32::MAX;

/// Entries of `PEEK_DONE`: the latest connections whose first data was delivered or passed up.
pub const MAX_PEEK_DONE: u32 = 65_536;

/// Entries of `PEEK_GUESSES`: the latest sources that have sent wrong cookies.
pub const MAX_PEEK_GUESSES: u32 = 16_384;
/// Wrong cookies of a source in a second that make the program reject those without timestamps for a while.
pub const MAX_WRONG_COOKIES_PER_SECOND: u64 = 64;

/// MSS that clients are offered over IPv4, where no interface has less: Ethernet's.
pub const MAX_CLIENT_MSS: u32 = 1460;

/// Words of `PEEK_COUNTS`: connections of hosts, and connections that wait for a host of a cluster.
pub const MAX_PEEK_COUNTS: u32 = 65_536;
/// Word of `PEEK_COUNTS` that counts all connections.
pub const COUNT_OF_ALL: u32 = 0;
/// Entries of `PEEK_LIMITS`: routes and listeners with limits.
pub const MAX_PEEK_LIMITS: u32 = 16_640;
/// Bit of a key of `PEEK_LIMITS`: the rest is the number of a listener, and not of a route.
pub const LIMITS_OF_LISTENER: u32 = 1 << 31;

/// Counts that a flow of the program is in: bits of [`PeekAbout::counted`].
pub mod counted {
    /// Connections of its host.
    pub const BY_HOST: u32 = 1;
    /// All connections.
    pub const IN_ALL: u32 = 1 << 1;
    /// Connections of its source.
    pub const BY_SOURCE: u32 = 1 << 2;
    /// Connections of its source at the listener.
    pub const AT_LISTENER: u32 = 1 << 3;
    /// Connections of its source at the route.
    pub const AT_ROUTE: u32 = 1 << 4;
}

/// Most bytes of first data that are kept: two segments.
pub const MAX_PAYLOAD_BYTES: u32 = 2920;
/// Room for first data; a power of two, so that an offset is kept within it by a mask.
pub const PAYLOAD_ROOM: usize = 4096;

/// Room in front of first data, for a PROXY header; a power of two.
pub const HEAD_ROOM: usize = 256;

/// Most turns of a route among its clusters, and of a cluster among its hosts; with more, connections are passed up.
pub const MAX_TURNS: usize = 128;
/// Most clusters of a route.
pub const MAX_ROUTE_CLUSTERS: usize = 8;
/// Most hosts of a cluster that are chosen by their load.
pub const MAX_CLUSTER_HOSTS: usize = 32;

/// Slots of a Maglev table: those of `signalbox_core::routing::maglev`.
pub const MAGLEV_SLOTS: usize = 65_537;

/// How a host of a cluster is chosen.
pub mod balance {
    /// The host of each turn.
    pub const TURNS: u32 = 0;
    /// The host with the fewest connections for its weight.
    pub const LEAST_CONNECTIONS: u32 = 1;
    /// Of the hosts of two random turns the one with fewer connections for its weight.
    pub const RANDOM_TWO: u32 = 2;
    /// The host of the slot of the client's address.
    pub const MAGLEV: u32 = 3;
}

/// Protocols by which a listener's connections are named.
pub mod protocol {
    /// None any more: SYNs are left to the kernel, and connections with a cookie are passed up.
    pub const PASS_UP: u8 = 0;
    /// The Host of an HTTP/1 request.
    pub const HTTP: u8 = 1;
    /// The SNI of a ClientHello.
    pub const TLS: u8 = 2;
}

/// Operand of the call of the kernel function `bpf_sk_assign_tcp_reqsk`, which userspace replaces: a number that no
/// helper has.
pub const KFUNC_ASSIGN_REQUEST: u32 = 0x5b0c_0001;

/// Value of `PEEK_BINDINGS`: the listener of an address and port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeekBinding {
    /// Number of the listener's name in `ID_NAMES`.
    pub listener: u16,
    /// A constant of [`protocol`].
    pub protocol: u8,
    /// Number of an address that moves between nodes, in `PEEK_SOURCES`; 0: hosts are connected to from
    /// [`PeekHost::local`].
    pub moving: u8,
    /// List of the clients whose connections are routed, a number in `PEEK_CLIENTS`; 0: all clients'. SYNs of others are
    /// left to the kernel.
    pub clients: u16,
    /// 1: another node may have the address, and its packets count from the moment at which this machine has it.
    pub is_awaited: u16,
}

/// Key of `PEEK_SOURCES`, whose value is the address that a host is connected to from.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PeekSourceKey {
    /// Number of the clients' destination: [`PeekBinding::moving`].
    pub moving: u32,
    /// Element of `PEEK_HOSTS`.
    pub host: u32,
}

/// Key of a search in `PEEK_WILDCARDS`, as the kernel lays it out (`struct bpf_lpm_trie_key_hdr`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PeekSuffixKey {
    /// Length of the key in bits.
    pub bits: u32,
    /// The key.
    pub suffix: PeekSuffix,
}

/// Value of `PEEK_WILDCARDS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeekWildcard {
    /// Bytes of the wildcard after its star.
    pub length: u32,
    /// Routes of the names in which the star matches one label, and for several.
    pub routes: [PeekRoute; 2],
}

/// Value of `PEEK_ROUTES`: turns of a route among its clusters.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeekRoute {
    /// Number of the route's name in `ID_NAMES`.
    pub number: u32,
    /// Element of `PEEK_TICKETS` that counts the route's connections.
    pub ticket: u32,
    /// Number of turns; 0: userspace routes the name.
    pub turns: u32,
    /// Number of the list in `PEEK_CLIENTS` that says which clients the program routes; 0: all of them.
    pub clients: u16,
    /// 1: `PEEK_LIMITS` has limits of the route.
    pub limits: u16,
    /// Elements of `PEEK_CLUSTERS`.
    pub clusters: [u16; MAX_ROUTE_CLUSTERS],
    /// Index into `clusters` of each turn.
    pub turn: [u8; MAX_TURNS],
}

impl PeekRoute {
    /// Of names that userspace routes.
    pub const LEFT_OUT: Self = Self {
        number: 0,
        ticket: 0,
        turns: 0,
        clients: 0,
        limits: 0,
        clusters: [0; MAX_ROUTE_CLUSTERS],
        turn: [0; MAX_TURNS],
    };
}

/// Value of `PEEK_CLUSTERS`: how a host of a cluster is chosen.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeekCluster {
    /// A constant of [`balance`].
    pub balance: u32,
    /// Element of `PEEK_MAGLEV`, of a cluster that is balanced so.
    pub maglev: u32,
    /// Most connections of a host; 0: no limit.
    pub max_host_connections: u32,
    /// Word of `PEEK_COUNTS` that counts the connections that wait for a host.
    pub queue: u32,
    /// Bits of [`part`](super::proxy::part): the PROXY header that its hosts get.
    pub proxy: u32,
    /// Number of turns, or of hosts.
    pub turns: u32,
    /// Element of `PEEK_HOSTS` of each turn, or host.
    pub turn: [u16; MAX_TURNS],
}

/// Value of `PEEK_MAGLEV`: the host of each slot, by its place in [`PeekCluster::turn`].
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PeekMaglev {
    /// Hosts of the slots.
    pub slot: [u8; MAGLEV_SLOTS],
    /// Always zero.
    pub _pad: [u8; 7],
}

/// Value of `PEEK_HOSTS`, mapped into userspace.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeekHost {
    /// Address of the host, as in [`Tuple`](crate::net::Tuple).
    pub address: [u32; 4],
    /// Address of the balancer from which the host is connected.
    pub local: [u32; 4],
    /// Port of the host.
    pub port: u32,
    /// Number of the host's name in `ID_NAMES`.
    pub number: u32,
    /// Weight of the host, at least 1.
    pub weight: u32,
    /// Interface by which the kernel's routes lead to the host.
    pub ifindex: u32,
    /// Word of `PEEK_COUNTS` that counts the host's connections.
    pub count: u32,
    /// Connections that the host has refused, or whose SYN-ACK did not agree with the client's options.
    pub refused: u32,
    /// Tick until which new connections to the host are passed up: its options do not agree with clients'.
    pub unfit_until: u32,
    /// Tick at which the next hop is looked up again.
    pub hop_expires: u32,
    /// Interface of the next hop.
    pub hop_ifindex: u32,
    /// Ethernet header towards the next hop: destination, then source.
    pub macs: [u32; 3],
    /// 1: `local` moves between nodes, which divide its ports.
    pub is_moving: u32,
    /// Tick until which new connections go to other hosts: the host has refused one, or does not answer.
    pub away_until: u32,
    /// Always zero.
    pub _pad: [u32; 10],
}

/// Value of `PEEK_LIMITS`: limits of a listener's sources, or of a route's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeekLimits {
    /// Seed of the sources' cells.
    pub seed: u64,
    /// Time that a connection takes of a source's bucket, and that of the whole bucket, in ns; 0: no rate.
    pub cost: u64,
    /// See `cost`.
    pub most: u64,
    /// Most connections of a source at once; 0: no limit.
    pub concurrent: u32,
    /// Of a listener: bits of an address that are its source, of IPv6 in the low byte, of IPv4-mapped in the next.
    pub bits: u32,
}

/// Facts of a flow that its entry in `CUT_FLOWS` has no room for: element of `PEEK_ABOUT`, mapped into userspace.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeekAbout {
    /// Name that the client has asked for.
    pub name: PeekName,
    /// [`CutFlow::started`](crate::cut::CutFlow::started) of the flow that the element is about.
    pub started: u32,
    /// Time that the host took to accept the flow, in units of 1024 ns; 0 until it has.
    pub accepted_after: u32,
    /// Bits of [`counted`]: counts that nobody has given back or taken over yet.
    pub counted: u32,
    /// Word of `PEEK_COUNTS` of the flow's host.
    pub count: u32,
    /// Bits of [`part`](super::proxy::part): the PROXY header that the flow's host gets.
    pub parts: u32,
    /// Always zero.
    pub _pad: u32,
}

/// The host that the program has chosen for a connection that it has passed up: element of `PEEK_CHOSEN`, mapped into
/// userspace. The latest connection with the same element replaces an earlier one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeekChosen {
    /// [`PeekHost::number`] of the host.
    pub host: u32,
    /// 1: the host takes no connections now, so another one of its cluster is to be chosen.
    pub is_away: u32,
    /// Tick of the choice.
    pub tick: u32,
    /// Second number that [`place`](Self::place) gives for the connection.
    pub check: u32,
}

impl PeekChosen {
    /// Element of a client's tuple, and a number by which the connection is told from others with the same element.
    #[inline(always)]
    #[must_use]
    pub const fn place(client: &Tuple) -> (u32, u32) {
        let ends = hash::words(client.ports as u64, &client.source);
        let hash = hash::words(ends, &client.destination);
        (hash as u32 & (MAX_PEEK_CHOSEN - 1), (hash >> 32) as u32)
    }
}

/// First data of a client: element of `PEEK_PAYLOADS`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PeekPayload {
    /// Number of the element's use: a reader with an older one finds that the element is overwritten.
    pub generation: u32,
    /// Number of bytes.
    pub length: u32,
    /// Always zero.
    pub _pad: [u32; 2],
    /// A PROXY header that ends where the bytes begin.
    pub head: [u8; HEAD_ROOM],
    /// The bytes.
    pub data: [u8; PAYLOAD_ROOM],
}

impl PeekHost {
    /// Value of [`away_until`](Self::away_until) or [`unfit_until`](Self::unfit_until), some ticks from now. Never 0.
    #[inline(always)]
    #[must_use]
    pub const fn until(now: u32, ticks: u32) -> u32 {
        now.wrapping_add(ticks) | 1
    }

    /// Whether new connections go to other hosts.
    #[inline(always)]
    #[must_use]
    pub const fn is_away(&self, now: u32) -> bool {
        self.away_until != 0 && seq::is_ahead(self.away_until, now, AWAY_TICKS + 1)
    }

    /// Whether the host's options agree with those of clients, as far as is known.
    #[inline(always)]
    #[must_use]
    pub const fn is_fit(&self, now: u32) -> bool {
        self.unfit_until == 0 || !seq::is_ahead(self.unfit_until, now, UNFIT_TICKS + 1)
    }
}

impl PeekPayload {
    /// Offset of [`head`](Self::head), which the bytes follow.
    pub const HEAD_OFFSET: usize = core::mem::offset_of!(Self, head);

    /// Pointer to a byte of the head, or of the bytes after it.
    #[inline(always)]
    #[must_use]
    pub const fn from_head(&mut self, at: u32) -> *mut u8 {
        // SAFETY: callers check offsets: both arrays together have HEAD_ROOM + PAYLOAD_ROOM bytes.
        unsafe {
            core::ptr::from_mut(self)
                .cast::<u8>()
                .add(Self::HEAD_OFFSET + at as usize)
        }
    }

    /// The byte at `at`; a byte after the payload's end may have any value.
    #[inline(always)]
    #[must_use]
    pub fn byte(&self, at: u32) -> u8 {
        let at = hidden(at) as usize & (PAYLOAD_ROOM - 1);
        self.data[at]
    }

    /// Eight bytes from `at`, which must be a payload's offset; the first byte is the lowest.
    #[inline(always)]
    #[must_use]
    pub fn word(&self, at: u32) -> u64 {
        let at = hidden(at) & (PAYLOAD_ROOM as u32 - 1);
        if at > MAX_PAYLOAD_BYTES {
            return 0;
        }
        // SAFETY: MAX_PAYLOAD_BYTES + 8 is within the room.
        u64::from_le(unsafe { self.data.as_ptr().add(at as usize).cast::<u64>().read_unaligned() })
    }
}

/// Reading of first data: the one element of `PEEK_READING`. It is in a map and not on the stack, so that all steps are
/// the same to the verifier.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PeekReading {
    /// The name that is read.
    pub name: PeekName,
    /// State of the reading of a request.
    pub request: RequestReader,
    /// State of the reading of a hello.
    pub hello: HelloReader,
    /// State of the reversal of the name.
    pub reverser: NameReverser,
    /// The name, reversed.
    pub suffix: PeekSuffixKey,
    /// The client, in the list of the name's route.
    pub client: PeekClientKey,
    /// The connection in the making.
    pub pending: PeekPending,
    /// Tuple of its host's packets.
    pub arriving: Tuple,
    /// Search of the least loaded host.
    pub least: PeekLeast,
    /// The client's source, and its cells for each limit.
    pub source: [u32; 4],
    /// See `source`.
    pub cells: [[u32; ROWS]; 3],
    /// Most connections of a host of the cluster, and the word of those that wait for one.
    pub max_host_connections: u32,
    /// See `max_host_connections`.
    pub queue: u32,
    /// Bits of [`counted`].
    pub counted: u32,
    /// 1: the route has limits.
    pub limits: u32,
    /// Bits of [`part`](super::proxy::part): the PROXY header that the host gets.
    pub parts: u32,
    /// The header's fixed part and addresses, in network order.
    pub proxy: [u32; 13],
    /// Bytes that the writing of the header overwrites for a moment.
    pub saved: [u32; 16],
    /// Number of its route.
    pub route: u32,
    /// State of the client's packet's checksum, as the program numbers it.
    pub checksum: u32,
    /// 1: a host has been chosen.
    pub has_chosen: u32,
}

/// Search of the host with the fewest connections for its weight. Hosts get turns, so that equal ones get equally many.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PeekLeast {
    /// Load of the least loaded host so far, and its weight.
    load: u64,
    weight: u64,
    /// Its element of `PEEK_HOSTS`, or [`NONE`](Self::NONE).
    pub host: u32,
    /// Turn of the next host.
    pub turn: u32,
    /// Number of hosts compared.
    pub compared: u32,
    /// Tick at which the search began. In memory: programs have little stack.
    pub began: u32,
}

impl PeekLeast {
    /// No host yet.
    pub const NONE: u32 = u32::MAX;

    /// A search that begins with the host of a turn, at a tick.
    #[inline(always)]
    #[must_use]
    pub const fn new(turn: u32, began: u32) -> Self {
        Self {
            load: 0,
            weight: 1,
            host: Self::NONE,
            turn,
            compared: 0,
            began,
        }
    }

    /// Compares a host of a load and weight with the least loaded one so far.
    #[inline(always)]
    pub fn compare(&mut self, host: u32, load: u64, weight: u32) {
        let weight = u64::from(weight);
        // Compares a/w < b/v as a*v < b*w.
        if self.host == Self::NONE || load * self.weight < self.load * weight {
            (self.host, self.load, self.weight) = (host, load, weight);
        }
    }

    /// Goes on to the next of `turns` hosts.
    #[inline(always)]
    pub const fn next(&mut self, turns: u32) {
        self.compared += 1;
        self.turn = if self.turn + 1 < turns { self.turn + 1 } else { 0 };
    }
}

/// Value of `PEEK_PENDING`: a client's connection that waits for the SYN-ACK of a host, or for the rest of its first data.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeekPending {
    /// Entry of `CUT_FLOWS`, or [`NO_FLOW`].
    pub flow: u32,
    /// Source port of leg B.
    pub port: u32,
    /// Element of `PEEK_PAYLOADS`, and the number of its use.
    pub payload: u32,
    /// See `payload`.
    pub generation: u32,
    /// Element of `PEEK_HOSTS`.
    pub host: u32,
    /// SYNs sent to the host, except those after a challenge.
    pub attempts: u16,
    /// Value of `attempts` at the last challenge of the host's (RFC 5961, section 4) that was answered; 0 for none.
    pub challenged: u16,
    /// Time of the first SYN to the host: `CLOCK_MONOTONIC` in units of 1024 ns, modulo 2^32.
    pub asked: u32,
    /// TSval of the client's first data, and its TSecr.
    pub ts_val: u32,
    /// See `ts_val`.
    pub ts_ecr: u32,
    /// Window of the client's first data, as in its header.
    pub window: u16,
    /// MSS of the client, or a little less.
    pub mss: u16,
    /// Sequence number of the client's first byte, and what it acknowledges until it gets an answer.
    pub seq: u32,
    /// See `seq`.
    pub ack: u32,
}

/// Value of `PEEK_GUESSES`: wrong cookies of a source.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeekGuesses {
    /// Second in which they are counted: 2^30 ns of `CLOCK_MONOTONIC`.
    pub second: u32,
    /// Second until which cookies without timestamps are not accepted.
    pub until: u32,
    /// Their number in that second.
    pub count: u64,
}

/// Places of a CPU in the ranges that it claims from: the one element of `PEEK_CURSOR`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeekCursor {
    /// Flow to be tried next.
    pub flow: u32,
    /// Source port to be tried next.
    pub port: u32,
    /// Payload to be used next.
    pub payload: u32,
    /// Jump to the next try, of the search that goes on.
    pub stride: u32,
    /// Flow or port that the search has claimed.
    pub claimed: u32,
    /// Number of nodes that share the ports.
    pub nodes: u32,
    /// Flows that were written into `PEEK_ASKED`.
    pub asked: u32,
}

const _: () = assert!(size_of::<PeekBinding>() == 8);
const _: () = assert!(size_of::<PeekName>() == 64);
const _: () = assert!(size_of::<PeekSuffixKey>() == 68);
const _: () = assert!(size_of::<PeekRoute>() == 160);
const _: () = assert!(size_of::<PeekWildcard>() == 324);
const _: () = assert!(size_of::<PeekCluster>() == 280);
const _: () = assert!(size_of::<PeekMaglev>() == 65_544);
const _: () = assert!(size_of::<PeekHost>() == 128);
const _: () = assert!(size_of::<PeekLimits>() == 32);
const _: () = assert!(size_of::<PeekAbout>() == 88);
// Programs copy the name by words.
const _: () = assert!(core::mem::offset_of!(PeekAbout, name) == 0 && core::mem::offset_of!(PeekReading, name) == 0);
const _: () = assert!(align_of::<PeekReading>() == 8);
const _: () = assert!(size_of::<PeekPayload>() == 4368);
// A header and the bytes after it are sent as one piece.
const _: () = assert!(core::mem::offset_of!(PeekPayload, data) == PeekPayload::HEAD_OFFSET + HEAD_ROOM);
const _: () = assert!(size_of::<PeekPending>() == 48);
const _: () = assert!(size_of::<PeekGuesses>() == 16);
const _: () = assert!(size_of::<PeekChosen>() == 16);
const _: () = assert!(MAX_PEEK_CHOSEN.is_power_of_two());

#[cfg(feature = "user")]
mod user {
    use super::{
        PeekBinding, PeekCluster, PeekCursor, PeekHost, PeekLimits, PeekMaglev, PeekName, PeekPending, PeekRoute,
        PeekSuffix, PeekWildcard,
    };

    // SAFETY: repr(C), no implicit padding, every bit pattern is a valid value.
    unsafe impl aya::Pod for PeekBinding {}
    // SAFETY: as above.
    unsafe impl aya::Pod for PeekName {}
    // SAFETY: as above.
    unsafe impl aya::Pod for PeekRoute {}
    // SAFETY: as above.
    unsafe impl aya::Pod for PeekSuffix {}
    // SAFETY: as above.
    unsafe impl aya::Pod for PeekWildcard {}
    // SAFETY: as above.
    unsafe impl aya::Pod for PeekCluster {}
    // SAFETY: as above.
    unsafe impl aya::Pod for PeekHost {}
    // SAFETY: as above.
    unsafe impl aya::Pod for PeekLimits {}
    // SAFETY: as above.
    unsafe impl aya::Pod for PeekMaglev {}
    // SAFETY: as above.
    unsafe impl aya::Pod for PeekPending {}
    // SAFETY: as above.
    unsafe impl aya::Pod for PeekCursor {}
}

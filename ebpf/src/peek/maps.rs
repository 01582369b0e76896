//! The maps of the kernel peek, and those of tier `cut` that it fills.

use aya_ebpf::{
    helpers::bpf_get_smp_processor_id,
    macros::map,
    maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, RingBuf},
};
use signalbox_common::{
    cut::{
        PendingFlow,
        flow::{CutFlow, DEFAULT_FLOWS, ENDED_RING_BYTES, FlowEnded, FlowRef, MAX_CT_ENTRIES, PENDING_PORTS},
    },
    net::{Tuple, atomic},
    peek::abi::{
        MAX_PEEK_BINDINGS, MAX_PEEK_CHOSEN, MAX_PEEK_CLIENTS, MAX_PEEK_CLUSTERS, MAX_PEEK_COUNTS, MAX_PEEK_DONE,
        MAX_PEEK_EARLY, MAX_PEEK_GUESSES, MAX_PEEK_HOSTS, MAX_PEEK_LIMITS, MAX_PEEK_MAGLEV, MAX_PEEK_PENDING,
        MAX_PEEK_ROUTES, MAX_PEEK_SOURCES, MAX_PEEK_WILDCARDS, PASSED_UP_RING_BYTES, PEEK_ASKED_KEPT,
        PEEK_ASKED_PER_CPU, PEEK_PAYLOADS_PER_CPU, PeekAbout, PeekBinding, PeekChosen, PeekClient, PeekCluster,
        PeekConfig, PeekCursor, PeekGuesses, PeekHost, PeekLimits, PeekMaglev, PeekName, PeekPayload, PeekPending,
        PeekReading, PeekRoute, PeekSourceKey, PeekSuffix, PeekWildcard,
    },
    peek::cookie_key::PeekCookies,
    sketch::first_cell::ALL_CELLS,
    steer::SteerKey,
};

use super::{frame::Frame, segment::Segment};

const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_F_NO_PREALLOC: u32 = 1;
const BPF_RB_NO_WAKEUP: u64 = 1;

/// Connection table of tier `cut`.
///
/// - Entry: see object `cut_through`
/// - Writer: cut_in; peek_in removes entries of flows that have ended, or that their host refuses
/// - Reader: peek_in, which checks whether a port is in use and finds the flow of a SYN-ACK
/// - Size: that of cut_through; pinned
#[map]
pub static CUT_CT: HashMap<Tuple, FlowRef> = HashMap::pinned(MAX_CT_ENTRIES, 0);

/// Flow table of tier `cut`.
///
/// - Entry: see object `cut_through`
/// - Writer: peek_in claims and fills entries of its own share
/// - Reader: peek_in
/// - Size: that of cut_through; pinned
#[map]
pub static CUT_FLOWS: Array<CutFlow> = Array::pinned(DEFAULT_FLOWS, BPF_F_MMAPABLE);

/// Flows that are being connected, by leg B's source port.
///
/// - Entry: see object `cut_through`
/// - Writer: peek_in claims ports of its own share
/// - Reader: peek_in
/// - Size: that of cut_through; pinned
#[map]
pub static CUT_PENDING: Array<u64> = Array::pinned(PENDING_PORTS, BPF_F_MMAPABLE);

/// Events to the flow GC.
///
/// - Entry: see object `cut_through`
/// - Writer: peek_in, for flows that userspace has to count
/// - Reader: reconcile/flow_gc.rs
/// - Size: that of cut_through; pinned
#[map]
static CUT_FLOW_ENDED: RingBuf = RingBuf::pinned(ENDED_RING_BYTES, 0);

/// Destinations whose connections are routed in the kernel.
///
/// - Entry: family, port and address prefix -> listener, protocol, number of an address that moves
/// - Writer: reconcile/kernel_peek.rs through kernel/src/peek.rs
/// - Reader: peek_in, for every packet of no cut flow
/// - Size: 16384; not declared as pinned: `kernel/src/peek/orphan.rs` pins it where the program outlives its process
#[map]
pub static PEEK_BINDINGS: LpmTrie<SteerKey, PeekBinding> =
    LpmTrie::with_max_entries(MAX_PEEK_BINDINGS, BPF_F_NO_PREALLOC);

/// Source addresses that move between nodes together with an address of clients.
///
/// - Entry: number of the clients' destination, host -> address that the host is connected to from
/// - Writer: reconcile/kernel_peek.rs through kernel/src/peek.rs
/// - Reader: peek_in at first data
/// - Size: 16384; not pinned
#[map]
pub static PEEK_SOURCES: HashMap<PeekSourceKey, [u32; 4]> =
    HashMap::with_max_entries(MAX_PEEK_SOURCES, BPF_F_NO_PREALLOC);

/// Routes.
///
/// - Entry: protocol and name -> turns among clusters
/// - Writer: reconcile/kernel_peek.rs through kernel/src/peek.rs
/// - Reader: peek_in at first data
/// - Size: 16384; not pinned
#[map]
pub static PEEK_ROUTES: HashMap<PeekName, PeekRoute> = HashMap::with_max_entries(MAX_PEEK_ROUTES, BPF_F_NO_PREALLOC);

/// Routes of wildcards.
///
/// - Entry: protocol and name, backwards -> routes of the names that begin so
/// - Writer: reconcile/kernel_peek.rs through kernel/src/peek.rs
/// - Reader: peek_in at first data, for names that are not in `PEEK_ROUTES`
/// - Size: 4096; not pinned
#[map]
pub static PEEK_WILDCARDS: LpmTrie<PeekSuffix, PeekWildcard> =
    LpmTrie::with_max_entries(MAX_PEEK_WILDCARDS, BPF_F_NO_PREALLOC);

/// Lists of clients: of routes that treat some clients otherwise, the clients whose connections are routed here.
///
/// - Entry: list, family and address prefix -> 1: routed here, 0: passed up
/// - Writer: reconcile/kernel_peek.rs through kernel/src/peek.rs
/// - Reader: peek_in at first data, for routes that have a list
/// - Size: 65536; not pinned
#[map]
pub static PEEK_CLIENTS: LpmTrie<PeekClient, u32> = LpmTrie::with_max_entries(MAX_PEEK_CLIENTS, BPF_F_NO_PREALLOC);

/// Counters of connections, from which turns are drawn: first those of routes, then those of clusters.
///
/// - Entry: number of a route, or of a cluster -> connections
/// - Writer: peek_in
/// - Reader: peek_in
/// - Size: 16384 routes and 1024 clusters; not pinned
#[map]
pub static PEEK_TICKETS: Array<u64> = Array::with_max_entries(MAX_PEEK_ROUTES + MAX_PEEK_CLUSTERS, 0);

/// Clusters, for each protocol.
///
/// - Entry: index -> turns among hosts, or hosts that are compared
/// - Writer: reconcile/kernel_peek.rs through kernel/src/peek.rs
/// - Reader: peek_in at first data
/// - Size: 1024; not pinned
#[map]
pub static PEEK_CLUSTERS: Array<PeekCluster> = Array::with_max_entries(MAX_PEEK_CLUSTERS, 0);

/// Maglev tables of clusters.
///
/// - Entry: index -> the host of each slot, by its place in the cluster
/// - Writer: reconcile/kernel_peek.rs through kernel/src/peek.rs
/// - Reader: peek_in at first data
/// - Size: 64; not pinned
#[map]
pub static PEEK_MAGLEV: Array<PeekMaglev> = Array::with_max_entries(MAX_PEEK_MAGLEV, 0);

/// Hosts, for each port.
///
/// - Entry: index -> address, load, next hop
/// - Writer: reconcile/kernel_peek.rs through kernel/src/peek.rs; peek_in: load, next hop, refusals
/// - Reader: peek_in at first data
/// - Size: 4096, mapped into userspace; not pinned
#[map]
pub static PEEK_HOSTS: Array<PeekHost> = Array::with_max_entries(MAX_PEEK_HOSTS, BPF_F_MMAPABLE);

/// Facts of flows that their entries in `CUT_FLOWS` have no room for.
///
/// - Entry: number of the flow among those of peek_in -> name asked for, time until the host's answer
/// - Writer: peek_in
/// - Reader: reconcile/flow_gc/release.rs through kernel/src/peek.rs, for the access log
/// - Size: half of the flows of this node, mapped into userspace; not pinned
#[map]
pub static PEEK_ABOUT: Array<PeekAbout> = Array::with_max_entries(DEFAULT_FLOWS / 2, BPF_F_MMAPABLE);

/// First data that waits for the SYN-ACK of a host.
///
/// - Entry: index -> bytes
/// - Writer: peek_in; the oldest is overwritten, and its client repeats it
/// - Reader: peek_in
/// - Size: 512 for each CPU; not pinned
#[map]
pub static PEEK_PAYLOADS: Array<PeekPayload> = Array::with_max_entries(PEEK_PAYLOADS_PER_CPU, 0);

/// Connections that wait for the SYN-ACK of a host.
///
/// - Entry: a client's tuple -> flow, port, first data
/// - Writer: peek_in
/// - Reader: peek_in
/// - Size: 16384, the least recently used are evicted; not pinned
#[map]
pub static PEEK_PENDING: LruHashMap<Tuple, PeekPending> = LruHashMap::with_max_entries(MAX_PEEK_PENDING, 0);

/// Connections whose first data was routed or passed up: a late copy of it begins no other connection.
///
/// - Entry: a client's tuple -> number of its first byte; its complement where it was passed up
/// - Writer: peek_in
/// - Reader: peek_in at first data
/// - Size: 65536, the least recently used are evicted; not pinned
#[map]
pub static PEEK_DONE: LruHashMap<Tuple, u32> = LruHashMap::with_max_entries(MAX_PEEK_DONE, 0);

/// Flows whose hosts were sent a SYN, or have refused: a ring of each CPU.
///
/// - Entry: index -> flow, and the tick at which it began in the upper half; a CPU's first: number of flows so far
/// - Writer: peek_in
/// - Reader: reconcile/kernel_peek/syn_timer.rs, which repeats SYNs, or asks another host
/// - Size: 2048 for each CPU, mapped into userspace; not pinned
#[map]
pub static PEEK_ASKED: Array<u64> = Array::with_max_entries(PEEK_ASKED_PER_CPU, BPF_F_MMAPABLE);

/// Hosts chosen for connections that are passed up: a worker connects to the same one, so that weights stay exact.
///
/// - Entry: hash of a client's tuple -> host, tick, check of the tuple
/// - Writer: peek_in
/// - Reader: datapath/route.rs through kernel/src/peek.rs
/// - Size: 4096, the latest ones; mapped into userspace; not pinned
#[map]
pub static PEEK_CHOSEN: Array<PeekChosen> = Array::with_max_entries(MAX_PEEK_CHOSEN, BPF_F_MMAPABLE);

/// Connections whose sockets userspace makes.
///
/// - Entry: tuple, handshake, first data
/// - Writer: peek_in, where the kernel would make no socket from a cookie
/// - Reader: datapath/repaired.rs through kernel/src/peek.rs
/// - Size: 4 MiB; not pinned
#[map]
pub static PEEK_PASSED_UP: RingBuf = RingBuf::with_byte_size(PASSED_UP_RING_BYTES, 0);

/// Keys of the SYN cookies.
///
/// - Entry: 0 -> the current key and the former one, with their clocks
/// - Writer: kernel/src/peek/cookie_keys.rs through its mapping, when a node that shares addresses has an older key
/// - Reader: peek_in, userspace
/// - Size: 1; not declared as pinned: `kernel/src/peek.rs` pins it, and a successor accepts its predecessor's cookies
#[map]
pub static PEEK_COOKIES: Array<PeekCookies> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Clients whose first data is missing, although later data has come.
///
/// - Entry: a client's tuple -> number of the later data, tick at which it was first seen
/// - Writer: peek_in
/// - Reader: peek_in, which has the kernel reset a connection that another node has lost
/// - Size: 4096, the least recently used are evicted; not pinned
#[map]
pub static PEEK_EARLY: LruHashMap<Tuple, [u32; 3]> = LruHashMap::with_max_entries(MAX_PEEK_EARLY, 0);

/// Wrong cookies, by source: an IPv4 address, or the first half of an IPv6 address.
///
/// - Entry: address -> their number in a second
/// - Writer: peek_in
/// - Reader: peek_in, for cookies without timestamps
/// - Size: 16384, the least recently used are evicted; not pinned
#[map]
pub static PEEK_GUESSES: LruHashMap<[u32; 4], PeekGuesses> = LruHashMap::with_max_entries(MAX_PEEK_GUESSES, 0);

/// Connections: of hosts, in all, and those that wait for a host.
///
/// - Entry: word -> number; word 0: all connections, the others as userspace has given them out
/// - Writer: peek_in, and workers through their mapping
/// - Reader: peek_in at first data, userspace
/// - Size: 65536; not pinned: each process counts for itself
#[map]
pub static PEEK_COUNTS: Array<u64> = Array::with_max_entries(MAX_PEEK_COUNTS, BPF_F_MMAPABLE);

/// Sketches of the connections and token buckets of sources.
///
/// - Entry: cell -> number, or bucket
/// - Writer: peek_in, and workers through their mapping
/// - Reader: peek_in at first data, userspace
/// - Size: 4 sketches of 98304 cells; not pinned
#[map]
pub static PEEK_SKETCHES: Array<u64> = Array::with_max_entries(ALL_CELLS, BPF_F_MMAPABLE);

/// Limits of routes and listeners, where they have some.
///
/// - Entry: number of a route, or of a listener with `LIMITS_OF_LISTENER` -> limits of a source
/// - Writer: reconcile/kernel_peek.rs through kernel/src/peek.rs
/// - Reader: peek_in at first data
/// - Size: 16640; not pinned
#[map]
pub static PEEK_LIMITS: HashMap<u32, PeekLimits> = HashMap::with_max_entries(MAX_PEEK_LIMITS, BPF_F_NO_PREALLOC);

/// Settings of the program.
///
/// - Entry: 0 -> key of numbers, shares of flows and ports, tick until which userspace counts as alive
/// - Writer: kernel/src/peek.rs, every half second
/// - Reader: peek_in
/// - Size: 1; not declared as pinned: `kernel/src/peek/orphan.rs` pins it where the program outlives its process
#[map]
pub static PEEK_CONFIG: Array<PeekConfig> = Array::with_max_entries(1, 0);

/// Places of a CPU in the ranges from which it claims.
///
/// - Entry: 0 -> next flow, port and payload
/// - Writer: peek_in
/// - Reader: peek_in
/// - Size: 1, per CPU; not pinned
#[map]
pub static PEEK_CURSOR: PerCpuArray<PeekCursor> = PerCpuArray::with_max_entries(1, 0);

/// The segment that has arrived: the stack has no room for it.
///
/// - Entry: 0 -> tuple, TCP header, length of its data
/// - Writer: peek_in
/// - Reader: peek_in
/// - Size: 1, per CPU; not pinned
#[map]
pub static PEEK_SEGMENT: PerCpuArray<Segment> = PerCpuArray::with_max_entries(1, 0);

/// The segment that is being made.
///
/// - Entry: 0 -> addresses, header
/// - Writer: peek_in
/// - Reader: peek_in
/// - Size: 1, per CPU; not pinned
#[map]
pub static PEEK_FRAME: PerCpuArray<Frame> = PerCpuArray::with_max_entries(1, 0);

/// The first data that is being read.
///
/// - Entry: 0 -> name, state of the reading
/// - Writer: peek_in
/// - Reader: peek_in
/// - Size: 1, per CPU; not pinned
#[map]
pub static PEEK_READING: PerCpuArray<PeekReading> = PerCpuArray::with_max_entries(1, 0);

/// Reports a flow to userspace, without waking it: userspace polls. `accepted_after`: see [`FlowEnded`].
#[inline(always)]
pub fn notify(index: u32, accepted_after: u32) {
    let event = FlowEnded { index, accepted_after };
    let _ = CUT_FLOW_ENDED.output::<FlowEnded>(event, BPF_RB_NO_WAKEUP);
}

/// Tells userspace of a flow whose host is sent a SYN, or refuses it: userspace asks again, or asks another host.
#[inline(always)]
pub fn note_asked(flow: u32, started: u32) {
    let Some(cursor) = PEEK_CURSOR.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: this CPU's element; a number is read and written. Aligned elements of the ring are written whole.
    unsafe {
        let ring = bpf_get_smp_processor_id() * PEEK_ASKED_PER_CPU;
        let before = (*cursor).asked;
        (*cursor).asked = before.wrapping_add(1);
        if let (Some(count), Some(asked)) = (
            PEEK_ASKED.get_ptr_mut(ring),
            PEEK_ASKED.get_ptr_mut(ring + 1 + before % PEEK_ASKED_KEPT),
        ) {
            asked.write_volatile(u64::from(flow) | u64::from(started) << 32);
            // Userspace reads it first.
            count.write_volatile(u64::from(before.wrapping_add(1)));
        }
    }
}

/// Flow that is being connected from a source port: its index, and its entry.
#[inline(always)]
pub fn pending_flow(port: u32) -> Option<(u32, *mut PendingFlow)> {
    let index = CUT_PENDING.get(port & 0xffff)?;
    // SAFETY: an element of the array; userspace changes it through its mapping, so it is read once, volatile.
    let index = unsafe { core::ptr::from_ref(index).read_volatile() };
    let index = index.checked_sub(1)? as u32;
    Some((index, CUT_FLOWS.get_ptr_mut(index)?.cast()))
}

/// Facts of a flow beside its entry.
#[inline(always)]
pub fn about(config: &PeekConfig, flow: u32) -> Option<*mut PeekAbout> {
    PEEK_ABOUT.get_ptr_mut(flow.wrapping_sub(config.first_flow))
}

/// Claims a source port for a flow; false where it is in use.
#[inline(always)]
pub fn claim_port(port: u32, flow: u32) -> bool {
    let Some(element) = CUT_PENDING.get_ptr_mut(port & 0xffff) else {
        return false;
    };
    // SAFETY: the lower half of an aligned element, whose upper half is always zero (little-endian).
    atomic::exchange(unsafe { &mut *element.cast::<u32>() }, 0, flow + 1)
}

/// Gives back a source port that a flow had while it was being connected.
#[inline(always)]
pub fn release_port(port: u32, flow: u32) {
    if let Some(element) = CUT_PENDING.get_ptr_mut(port & 0xffff) {
        // SAFETY: as above.
        atomic::exchange(unsafe { &mut *element.cast::<u32>() }, flow + 1, 0);
    }
}

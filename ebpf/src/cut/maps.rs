//! The maps of tier `cut`. The maps of flows are pinned by userspace, and outlive it.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, LpmTrie, LruHashMap, RingBuf},
};
use signalbox_common::{
    cut::PendingFlow,
    cut::flow::{
        CutConfig, CutFlow, DEFAULT_FLOWS, ENDED_RING_BYTES, FlowEnded, FlowRef, Handshake, MAX_CT_ENTRIES,
        MAX_HANDSHAKES, MAX_NAMES, Name, PENDING_PORTS, Tuple,
    },
    steer::{MAX_BINDINGS, SteerKey},
};

const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_F_NO_PREALLOC: u32 = 1;
const BPF_RB_NO_WAKEUP: u64 = 1;

/// Connection table: the flow and direction of a packet of either leg.
///
/// - Entry: addresses and ports as packets arrive -> index in `CUT_FLOWS`, direction
/// - Writer: cut_in (ebpf/src/cut/pair.rs) at the host's SYN-ACK; datapath/cut/gc.rs removes, and cut_in and cut_out
///   where a new connection has the same ports; kernel/cut/carry_over.rs
/// - Reader: cut_in, cut_out, for every packet
/// - Size: two to a flow, preallocated: in a burst of new flows a program could get no memory; pinned: outlives the
///   process
#[map]
pub static CUT_CT: HashMap<Tuple, FlowRef> = HashMap::with_max_entries(MAX_CT_ENTRIES, 0);

/// Flow table: an entry is a `PendingFlow` until the host's SYN-ACK, and a `CutFlow` from then on.
///
/// - Entry: index -> addresses, offsets of sequence numbers and timestamps, counters, state
/// - Writer: datapath/cut/attempt.rs, datapath/cut/handoff.rs; cut_in, cut_out; datapath/cut/gc.rs;
///   kernel/cut/carry_over.rs
/// - Reader: all of them; the admin API
/// - Size: `limits.cut_flows` (131072), mapped into userspace; pinned: outlives the process
#[map]
pub static CUT_FLOWS: Array<CutFlow> = Array::with_max_entries(DEFAULT_FLOWS, BPF_F_MMAPABLE);

/// Flow that is being connected, by leg B's source port.
///
/// - Entry: source port -> index in `CUT_FLOWS` plus one; 64 bits, the least distance of an array map's elements
/// - Writer: datapath/cut/attempt.rs through kernel/cut/table.rs; datapath/cut/gc.rs clears it at a start
/// - Reader: cut_out at leg B's SYN, cut_in at the host's SYN-ACK
/// - Size: 65536, one per port, mapped into userspace; pinned: two processes share the ports during a takeover
#[map]
pub static CUT_PENDING: Array<u64> = Array::with_max_entries(PENDING_PORTS, BPF_F_MMAPABLE);

/// Handshakes of clients with the balancer.
///
/// - Entry: a client's tuple -> initial sequence numbers, options, clock
/// - Writer: cut_in, cut_out; kernel/cut.rs for HTTP/2 clients that were greeted; l4_xdp, l4_tc remove (cookies)
/// - Reader: cut_in at SYN-ACKs, FINs and new connections on known ports; cut_out at SYNs and SYN-ACKs
/// - Size: 65536, those least recently used make room: a flood of SYNs costs the cut, not the connection; pinned: a
///   takeover loses none
#[map]
pub static CUT_HANDSHAKES: LruHashMap<Tuple, Handshake> = LruHashMap::with_max_entries(MAX_HANDSHAKES, 0);

/// Events: flows that have ended.
///
/// - Entry: event -> index in `CUT_FLOWS`
/// - Writer: cut_in, cut_out, without waking the reader
/// - Reader: datapath/cut/gc.rs, which also sweeps the flow table, in case the ring was full
/// - Size: 1 MiB; pinned: events of the time without a process are read by the next one
#[map]
static CUT_FLOW_ENDED: RingBuf = RingBuf::with_byte_size(ENDED_RING_BYTES, 0);

/// Destinations whose connections may be cut: only their handshakes are recorded.
///
/// - Entry: family, port and address prefix -> 1
/// - Writer: control/listener_set.rs through kernel/cut.rs
/// - Reader: cut_in at a client's SYN
/// - Size: 16384; not pinned: flows that are cut do not need it
#[map]
pub static CUT_BINDINGS: LpmTrie<SteerKey, u32> = LpmTrie::with_max_entries(MAX_BINDINGS, BPF_F_NO_PREALLOC);

/// Settings that all flows share.
///
/// - Entry: 0 -> largest segment size that fits all interfaces of legs
/// - Writer: kernel/cut.rs, every two seconds
/// - Reader: cut_out, at the balancer's SYN-ACKs and SYNs
/// - Size: 1; not pinned: flows that are cut do not need it
#[map]
pub static CUT_CONFIG: Array<CutConfig> = Array::with_max_entries(1, 0);

/// Names of hosts, listeners, routes and services by the numbers that flows hold.
///
/// - Entry: number -> text, parts separated by NUL
/// - Writer: datapath/cut/registry.rs, l4/apply.rs; kernel/cut/carry_over.rs, kernel/l4/carry_over.rs
/// - Reader: the same of the next process; no program
/// - Size: 65536; pinned, and as `L4_NAMES` by layer 4: another process has to know what numbers in flows stand for
#[map]
pub static ID_NAMES: HashMap<u32, Name> = HashMap::with_max_entries(MAX_NAMES, BPF_F_NO_PREALLOC);

/// Tells userspace that a flow has ended, without waking it: it polls. A full ring loses the event; a sweep finds the
/// flow all the same.
#[inline(always)]
pub fn notify_ended(index: u32) {
    let _ = CUT_FLOW_ENDED.output::<FlowEnded>(FlowEnded { index, _pad: 0 }, BPF_RB_NO_WAKEUP);
}

/// Looks up the flow that is being connected from a source port of leg B: its index, and its entry.
#[inline(always)]
pub fn pending_flow(port: u32) -> Option<(u32, *mut PendingFlow)> {
    let index = CUT_PENDING.get(port & 0xffff)?;
    // SAFETY: an element of the array; userspace changes it through its mapping, so it is read once, volatile.
    let index = unsafe { core::ptr::from_ref(index).read_volatile() };
    let index = index.checked_sub(1)? as u32;
    Some((index, CUT_FLOWS.get_ptr_mut(index)?.cast()))
}

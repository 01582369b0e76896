//! The maps of tier `cut`.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, LpmTrie, RingBuf},
};
use signalbox_common::{
    cut::{
        PendingFlow,
        flow::{
            CutConfig, CutFlow, DEFAULT_FLOWS, ENDED_RING_BYTES, FlowEnded, FlowRef, MAX_CT_ENTRIES, PENDING_PORTS,
        },
        moving::{MAX_MOVING_ADDRESSES, MovingAddress},
    },
    net::Tuple,
    steer::{MAX_BINDINGS, SteerKey},
};

const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_F_NO_PREALLOC: u32 = 1;
const BPF_RB_NO_WAKEUP: u64 = 1;

/// Connection table: the flow and direction of a packet of either leg.
///
/// - Entry: addresses and ports of an arriving packet -> index in `CUT_FLOWS`, direction
/// - Writer: cut_in (ebpf/src/cut/pair.rs) at the host's SYN-ACK; reconcile/flow_gc.rs removes, and cut_in and cut_out
///   where a new connection has the same ports; kernel/src/cut/carry_over.rs
/// - Reader: cut_in, cut_out, for every packet
/// - Size: two per flow, preallocated: in a burst of new flows a program could get no memory; pinned: outlives the
///   process
#[map]
pub static CUT_CT: HashMap<Tuple, FlowRef> = HashMap::pinned(MAX_CT_ENTRIES, 0);

/// Flow table: an entry is a `PendingFlow` until the host's SYN-ACK, and a `CutFlow` from then on.
///
/// - Entry: index -> addresses, offsets of sequence numbers and timestamps, counters, state
/// - Writer: datapath/cut/attempt.rs, datapath/cut/handoff.rs; cut_in, cut_out; reconcile/flow_gc.rs;
///   kernel/src/cut/carry_over.rs
/// - Reader: all of them; the admin API
/// - Size: `limits.cut_flows` (131072), mapped into userspace; pinned: outlives the process
#[map]
pub static CUT_FLOWS: Array<CutFlow> = Array::pinned(DEFAULT_FLOWS, BPF_F_MMAPABLE);

/// Flow that is being connected, by leg B's source port.
///
/// - Entry: source port -> index in `CUT_FLOWS` plus one; 64 bits, the smallest distance of an array map's elements
/// - Writer: datapath/cut/attempt.rs through kernel/src/cut/table.rs; reconcile/flow_gc.rs clears it at a start
/// - Reader: cut_out at leg B's SYN, cut_in at the host's SYN-ACK
/// - Size: 65536, one per port, mapped into userspace; pinned: two processes share the ports during a takeover
#[map]
pub static CUT_PENDING: Array<u64> = Array::pinned(PENDING_PORTS, BPF_F_MMAPABLE);

/// Events: flows that have ended, or whose addresses have moved to this machine.
///
/// - Entry: event -> index in `CUT_FLOWS`
/// - Writer: cut_in, cut_out, without waking the reader
/// - Reader: reconcile/flow_gc.rs, which also sweeps the flow table, in case the ring was full
/// - Size: 1 MiB; pinned: the next process reads events of the time without a process
#[map]
static CUT_FLOW_ENDED: RingBuf = RingBuf::pinned(ENDED_RING_BYTES, 0);

/// Destinations whose connections may be cut: only their handshakes are recorded.
///
/// - Entry: family, port and address prefix -> 1
/// - Writer: control/listener_set.rs through kernel/src/cut.rs
/// - Reader: cut_in at a client's SYN
/// - Size: 16384; not pinned: flows that are cut do not need it
#[map]
pub static CUT_BINDINGS: LpmTrie<SteerKey, u32> = LpmTrie::with_max_entries(MAX_BINDINGS, BPF_F_NO_PREALLOC);

/// Addresses of groups that are moving between nodes by plan.
///
/// - Entry: address -> this machine's role, its former owner's Ethernet address, interface, end of the drain
/// - Writer: kernel/src/cut/moving.rs
/// - Reader: cut_in, for packets of no cut flow that are no SYN and for ARP requests, while `CUT_CONFIG` says that there
///   are any
/// - Size: 4096; pinned: a successor goes on, and a former owner whose process has died answers no ARP requests
#[map]
pub static CUT_CHAIN: HashMap<[u32; 4], MovingAddress> = HashMap::pinned(MAX_MOVING_ADDRESSES, 0);

/// Settings that all flows share.
///
/// - Entry: 0 -> largest segment size that fits all interfaces of legs and all hosts; whether `CUT_CHAIN` has entries
/// - Writer: kernel/src/cut.rs, every two seconds; kernel/src/cut/moving.rs
/// - Reader: cut_out, at the balancer's SYN-ACKs and SYNs; cut_in, for packets of no cut flow
/// - Size: 1; not pinned: flows that are cut do not need it
#[map]
pub static CUT_CONFIG: Array<CutConfig> = Array::with_max_entries(1, 0);

/// Reports to userspace that a flow has ended or is promoted, without waking it: userspace polls. A full ring loses the
/// event; a sweep finds the flow all the same.
#[inline(always)]
pub fn notify_ended(index: u32) {
    let _ = CUT_FLOW_ENDED.output::<FlowEnded>(
        FlowEnded {
            index,
            accepted_after: 0,
        },
        BPF_RB_NO_WAKEUP,
    );
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

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

/// Flow and direction by a packet's addresses and ports. Preallocated: a burst of new flows would find no memory
/// otherwise, since a program can only take what the kernel has set aside for it.
#[map]
pub static CUT_CT: HashMap<Tuple, FlowRef> = HashMap::with_max_entries(MAX_CT_ENTRIES, 0);

#[map]
pub static CUT_FLOWS: Array<CutFlow> = Array::with_max_entries(DEFAULT_FLOWS, BPF_F_MMAPABLE);

/// Flow that is being connected, by leg B's source port: its index plus one. 64 bits, because that is how far apart the
/// elements of an array map are at least.
#[map]
pub static CUT_PENDING: Array<u64> = Array::with_max_entries(PENDING_PORTS, BPF_F_MMAPABLE);

/// Handshakes of clients, by the client's tuple. The oldest make room: a flood of SYNs costs the cut, not the
/// connection.
#[map]
pub static CUT_HANDSHAKES: LruHashMap<Tuple, Handshake> = LruHashMap::with_max_entries(MAX_HANDSHAKES, 0);

/// Events: flows that have ended.
#[map]
static CUT_FLOW_ENDED: RingBuf = RingBuf::with_byte_size(ENDED_RING_BYTES, 0);

/// Destinations whose connections may be cut: their handshakes are remembered.
#[map]
pub static CUT_BINDINGS: LpmTrie<SteerKey, u32> = LpmTrie::with_max_entries(MAX_BINDINGS, BPF_F_NO_PREALLOC);

#[map]
pub static CUT_CONFIG: Array<CutConfig> = Array::with_max_entries(1, 0);

/// Names by the numbers that flows hold: for userspace alone, so that another process can tell what they stand for.
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

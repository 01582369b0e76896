//! The maps of tier `cut`. The maps of flows are pinned by userspace, and outlive it.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, LpmTrie, LruHashMap, RingBuf},
};
use signalbox_common::{
    cut::flow::{
        Config, DEFAULT_FLOWS, ENDS_BYTES, Ended, Entry, Flow, MAX_NAMES, MAX_SHAKES, MAX_TUPLES, Name, PORTS, Shake,
        Tuple,
    },
    steer::{MAX_BINDINGS, SteerKey},
};

const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_F_NO_PREALLOC: u32 = 1;
const BPF_RB_NO_WAKEUP: u64 = 1;

/// Flow and direction by a packet's addresses and ports. Preallocated: a burst of new flows would find no memory
/// otherwise, since a program can only take what the kernel has set aside for it.
#[map]
pub static TUPLES: HashMap<Tuple, Entry> = HashMap::with_max_entries(MAX_TUPLES, 0);

#[map]
pub static FLOWS: Array<Flow> = Array::with_max_entries(DEFAULT_FLOWS, BPF_F_MMAPABLE);

/// Flow that is being connected, by leg B's source port: its index plus one. 64 bits, because that is how far apart the
/// elements of an array map are at least.
#[map]
pub static PENDING: Array<u64> = Array::with_max_entries(PORTS, BPF_F_MMAPABLE);

/// Handshakes of clients, by the client's tuple. The oldest make room: a flood of SYNs costs the cut, not the
/// connection.
#[map]
pub static SHAKES: LruHashMap<Tuple, Shake> = LruHashMap::with_max_entries(MAX_SHAKES, 0);

/// Events: flows that have ended.
#[map]
static ENDS: RingBuf = RingBuf::with_byte_size(ENDS_BYTES, 0);

/// Destinations whose connections may be cut: their handshakes are remembered.
#[map]
pub static CUT_BINDINGS: LpmTrie<SteerKey, u32> = LpmTrie::with_max_entries(MAX_BINDINGS, BPF_F_NO_PREALLOC);

#[map]
pub static CUT_CONFIG: Array<Config> = Array::with_max_entries(1, 0);

/// Names by the numbers that flows hold: for userspace alone, so that another process can tell what they stand for.
#[map]
pub static NAMES: HashMap<u32, Name> = HashMap::with_max_entries(MAX_NAMES, BPF_F_NO_PREALLOC);

/// Tells userspace that a flow has ended, without waking it: it polls. A full ring loses the event; a sweep finds the
/// flow all the same.
#[inline(always)]
pub fn tell(index: u32) {
    let _ = ENDS.output::<Ended>(Ended { index, _pad: 0 }, BPF_RB_NO_WAKEUP);
}

/// Looks up the flow that is being connected from a source port of leg B: its index, and its entry.
#[inline(always)]
pub fn pending(port: u32) -> Option<(u32, *mut Flow)> {
    let index = PENDING.get(port & 0xffff)?;
    // SAFETY: an element of the array; userspace changes it through its mapping, so it is read once, volatile.
    let index = unsafe { core::ptr::from_ref(index).read_volatile() };
    let index = index.checked_sub(1)? as u32;
    Some((index, FLOWS.get_ptr_mut(index)?))
}

//! The maps of the shield, and `ShieldMaps` for them. None is pinned: each process fills its own before its programs
//! replace another's.

use aya_ebpf::{
    bindings::{bpf_fib_lookup as FibParams, bpf_sock_tuple},
    helpers::{bpf_fib_lookup, bpf_map_lookup_elem, bpf_sk_release, bpf_skc_lookup_tcp, bpf_tcp_gen_syncookie},
    macros::map,
    maps::{Array, HashMap, LpmTrie, PerCpuArray, RingBuf, lpm_trie},
};
use core::ffi::c_void;
use signalbox_common::net::ip::TCP;
use signalbox_common::net::target::{PORT_BITMAP_WORDS, PortBit};
use signalbox_common::net::tuple::is_v4;
use signalbox_common::net::{Key, Target, Tuple};
use signalbox_common::shield::{
    Bucket, ConnCountKey, Decision, DroppedPacket, Guard, Settings, ShieldMaps,
    abi::{
        CachedGuard, DEFAULT_SOURCES, GUARD_CACHE_ENTRIES, GuardStats, MAX_CONN_COUNTS, MAX_GUARDS, MAX_PREFIX_TABLES,
        MAX_PREFIX_TARGETS, MAX_TARGETS, NO_GUARD, SAMPLE_RING_BYTES, SynRate,
    },
    prefixes::{self, NO_MATCH, Node, Nodes},
};
use signalbox_common::{
    Reason,
    l4::verdict::{Action, Verdict},
};
use signalbox_common::{
    parts::SHIELD,
    steer::{STEER_FIXED_BITS, SteerKey},
};

use crate::clock::coarse_ns;
use crate::handshakes::CUT_HANDSHAKES;
use crate::l4::maps::{BPF_F_CURRENT_NETNS, BPF_TCP_LISTEN, BpfMaps, socket_tuple};
use crate::packet_view::hide_from_verifier;
use crate::parts;

const BPF_F_NO_PREALLOC: u32 = 1;
const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_ANY: u64 = 0;
const BPF_RB_NO_WAKEUP: u64 = 1;

/// Ports that are guarded at one address or more.
///
/// - Entry: word -> a bit for each of 64 ports, as in `L4_PORT_BITMAP`
/// - Writer: reconcile/l4/guards.rs
/// - Reader: l4_xdp, l4_tc, first of all
/// - Size: 2048 words; not pinned: the shield ends with the programs of its process
#[map]
static SHIELD_PORT_BITMAP: Array<u64> = Array::with_max_entries(PORT_BITMAP_WORDS, 0);

/// Ports that are guarded at some prefix, and so at addresses that are not listed one by one.
///
/// - Entry: word -> a bit for each of 64 ports, as in `L4_PORT_BITMAP`
/// - Writer: reconcile/l4/guards.rs
/// - Reader: l4_xdp, l4_tc, when mode `nat` chooses a source port (common/src/l4/nat_ports.rs)
/// - Size: 2048 words; not pinned, as `SHIELD_PORT_BITMAP`
#[map]
static SHIELD_WILDCARD_PORTS: Array<u64> = Array::with_max_entries(PORT_BITMAP_WORDS, 0);

/// Guards of single addresses; addresses of listeners and services without a shield have none.
///
/// - Entry: address, port, protocol -> number of a guard
/// - Writer: reconcile/l4/guards.rs
/// - Reader: l4_xdp, l4_tc, where `SHIELD_GUARD_CACHE` does not know the destination
/// - Size: 131072; not pinned, as `SHIELD_PORT_BITMAP`
#[map]
static SHIELD_TARGETS: HashMap<Target, u32> = HashMap::with_max_entries(MAX_TARGETS, BPF_F_NO_PREALLOC);

/// Guards of prefixes.
///
/// - Entry: family, port and address prefix -> number of a guard
/// - Writer: reconcile/l4/guards.rs
/// - Reader: l4_xdp, l4_tc, where `SHIELD_TARGETS` has no entry
/// - Size: 16384; not pinned, as `SHIELD_PORT_BITMAP`
#[map]
static SHIELD_PREFIX_TARGETS: LpmTrie<SteerKey, u32> = LpmTrie::with_max_entries(MAX_PREFIX_TARGETS, BPF_F_NO_PREALLOC);

/// Rules of guards: each listener and service with a shield has one.
///
/// - Entry: number of a guard -> rates, limits, features
/// - Writer: reconcile/l4/guards.rs
/// - Reader: l4_xdp, l4_tc
/// - Size: 2048; not pinned, as `SHIELD_PORT_BITMAP`
#[map]
static SHIELD_GUARDS: Array<Guard> = Array::with_max_entries(MAX_GUARDS, 0);

/// Settings that all guards share.
///
/// - Entry: 0 -> seed of the hash, number of buckets, side of `SHIELD_SHARED_PREFIXES` in force, generation, what to do
///   with headers that cannot be read
/// - Writer: reconcile/l4/guards.rs
/// - Reader: l4_xdp, l4_tc
/// - Size: 1; not pinned, as `SHIELD_PORT_BITMAP`
#[map]
static SHIELD_SETTINGS: Array<Settings> = Array::with_max_entries(1, 0);

/// Prefixes common to all guards, twice: one side is in force, the other is written. They have a map of their own
/// beside `SHIELD_GUARD_PREFIXES`: only a lookup in a map that the verifier knows is inlined, and a denied packet then
/// costs a third.
///
/// - Entry: index -> node of a trie
/// - Writer: reconcile/l4/guards.rs
/// - Reader: l4_xdp, l4_tc
/// - Size: as many as the lists need, twice, mapped into userspace; not pinned, as `SHIELD_PORT_BITMAP`
#[map]
static SHIELD_SHARED_PREFIXES: Array<Node> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Guards of recent destinations.
///
/// - Entry: hash of a destination -> number of a guard, generation of the settings
/// - Writer: l4_xdp, l4_tc
/// - Reader: l4_xdp, l4_tc
/// - Size: 16, per CPU; not pinned, as `SHIELD_PORT_BITMAP`
#[map]
static SHIELD_GUARD_CACHE: PerCpuArray<CachedGuard> = PerCpuArray::with_max_entries(GUARD_CACHE_ENTRIES, 0);

/// Prefixes of single guards: an array of maps, each an array of trie nodes, replaced whole by one swap, as
/// `L4_TABLES`.
///
/// - Entry: number of a guard -> trie
/// - Writer: reconcile/l4/guards.rs
/// - Reader: l4_xdp, l4_tc
/// - Size: 2049; not pinned, as `SHIELD_PORT_BITMAP`
#[map]
static SHIELD_GUARD_PREFIXES: Array<u32> = Array::with_max_entries(MAX_PREFIX_TABLES, 0);

/// Token buckets of sources, four to an element.
///
/// - Entry: hash of a source and guard -> bucket
/// - Writer: l4_xdp, l4_tc
/// - Reader: l4_xdp, l4_tc; reconcile/l4/guard_view.rs for `shield explain`
/// - Size: a quarter of `shield.sources` (262144); not pinned, as `SHIELD_PORT_BITMAP`
#[map]
static SHIELD_SOURCES: Array<Bucket> = Array::with_max_entries(DEFAULT_SOURCES / 4, 0);

/// Concurrent connections of sources.
///
/// - Entry: source, guard -> count
/// - Writer: l4_xdp, l4_tc when a service's flow is confirmed and ended; reconcile/l4/guard_view.rs recounts, and
///   enters sources that workers have refused
/// - Reader: l4_xdp, l4_tc at a SYN to a listener and at the first packet of a service's flow
/// - Size: 131072; not pinned, as `SHIELD_PORT_BITMAP`
#[map]
static SHIELD_CONN_COUNT: HashMap<ConnCountKey, u32> = HashMap::with_max_entries(MAX_CONN_COUNTS, BPF_F_NO_PREALLOC);

/// Decisions of guards.
///
/// - Entry: number of a guard -> counts by `Decision`
/// - Writer: l4_xdp, l4_tc
/// - Reader: reconcile/l4/guard_view.rs for the admin API and /metrics
/// - Size: 2048, per CPU; not pinned, as `SHIELD_PORT_BITMAP`
#[map]
static SHIELD_STATS: PerCpuArray<GuardStats> = PerCpuArray::with_max_entries(MAX_GUARDS, 0);

/// Rates of SYNs to guards, of all CPUs together: a client on a quiet CPU is in the same flood.
///
/// - Entry: number of a guard -> a second, and the SYNs in it
/// - Writer: l4_xdp, l4_tc, at a SYN
/// - Reader: l4_xdp, l4_tc, to decide on cookies
/// - Size: 2048; not pinned, as `SHIELD_PORT_BITMAP`
#[map]
static SHIELD_SYN_RATES: Array<SynRate> = Array::with_max_entries(MAX_GUARDS, 0);

/// Samples that may still be taken.
///
/// - Entry: number of a `Decision` -> samples left
/// - Writer: reconcile/l4/guard_view.rs, every 100 ms; l4_xdp, l4_tc (take)
/// - Reader: l4_xdp, l4_tc
/// - Size: 8, per CPU; not pinned, as `SHIELD_PORT_BITMAP`
#[map]
static SHIELD_SAMPLE_QUOTA: PerCpuArray<u64> = PerCpuArray::with_max_entries(8, 0);

/// Samples of dropped packets.
///
/// - Entry: event -> headers, guard, decision
/// - Writer: l4_xdp, l4_tc, without waking the reader: waking costs more than the drop
/// - Reader: reconcile/l4/guard_view.rs, every 100 ms, for `signalbox drops`
/// - Size: 128 KiB; not pinned: a full ring loses samples, not counts
#[map]
static SHIELD_SAMPLES: RingBuf = RingBuf::with_byte_size(SAMPLE_RING_BYTES, 0);

/// An inner map of `SHIELD_GUARD_PREFIXES`.
struct GuardPrefixes(*mut c_void);

impl Nodes for GuardPrefixes {
    #[inline(always)]
    fn node(&self, index: u32) -> Option<&Node> {
        // SAFETY: the map's elements are nodes; the helper checks the index. A replaced map stays until the program
        // ends.
        unsafe {
            bpf_map_lookup_elem(self.0, (&raw const index).cast())
                .cast::<Node>()
                .as_ref()
        }
    }
}

/// Side of `SHIELD_SHARED_PREFIXES` that begins at this index.
struct SharedPrefixes(u32);

impl Nodes for SharedPrefixes {
    #[inline(always)]
    fn node(&self, index: u32) -> Option<&Node> {
        SHIELD_SHARED_PREFIXES.get(self.0.wrapping_add(index))
    }
}

impl BpfMaps {
    /// Looks up the guard of a destination, by address first and then by prefix.
    #[inline(always)]
    fn find_guard(&self, target: &Target, key: &Key, version: u32) -> Option<u32> {
        // SAFETY: a number, read at once.
        if let Some(guard) = unsafe { SHIELD_TARGETS.get(target) } {
            return Some(*guard);
        }
        if target.port_protocol & 0xff != TCP {
            return None;
        }
        let mut addr = [0u8; 16];
        let mut i = 0;
        while i < 4 {
            let word = target.address[i].to_be_bytes();
            addr[4 * i] = word[0];
            addr[4 * i + 1] = word[1];
            addr[4 * i + 2] = word[2];
            addr[4 * i + 3] = word[3];
            i += 1;
        }
        let place = SteerKey::new((target.port_protocol >> 16) as u16, version as u8, addr);
        let guard = *SHIELD_PREFIX_TARGETS.get(&lpm_trie::Key::new(STEER_FIXED_BITS + 128, place))?;
        // A prefix may include other machines' addresses, whose packets are only routed through this machine.
        (is_forwarded(self.ctx, self.ifindex, key, version) == 0).then_some(guard)
    }
}

/// Whether the kernel would route a packet on to another machine: 1 or 0.
#[inline(never)]
pub fn is_forwarded(ctx: *mut c_void, ifindex: u32, key: &Key, version: u32) -> u32 {
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    // `BPF_FIB_LKUP_RET_*`: a route out, or one whose neighbour is not known or whose MTU is too small. Local addresses
    // are "not forwarded", and a machine that does not forward says so.
    const SUCCESS: i64 = 0;
    const NO_NEIGHBOUR: i64 = 7;
    const FRAGMENTS_NEEDED: i64 = 8;
    // SAFETY: all-zero parameters are valid; fields of unions are set by family, as the kernel reads them.
    let found = unsafe {
        let mut params: FibParams = core::mem::zeroed();
        params.l4_protocol = TCP as u8;
        params.ifindex = ifindex;
        if version == 4 {
            params.family = AF_INET;
            params.__bindgen_anon_3.ipv4_src = key.source[3].to_be();
            params.__bindgen_anon_4.ipv4_dst = key.destination[3].to_be();
        } else {
            params.family = AF_INET6;
            params.__bindgen_anon_3.ipv6_src = key.source.map(u32::to_be);
            params.__bindgen_anon_4.ipv6_dst = key.destination.map(u32::to_be);
        }
        bpf_fib_lookup(ctx, &raw mut params, size_of::<FibParams>() as i32, 0)
    };
    u32::from(found == SUCCESS || found == NO_NEIGHBOUR || found == FRAGMENTS_NEEDED)
}

impl ShieldMaps for BpfMaps {
    #[inline(always)]
    fn clock_ns(&self) -> u64 {
        coarse_ns()
    }

    #[inline(always)]
    fn settings(&self) -> Option<&Settings> {
        SHIELD_SETTINGS.get(0)
    }

    #[inline(always)]
    fn is_port_guarded(&self, at: PortBit) -> bool {
        parts::has(SHIELD)
            && SHIELD_PORT_BITMAP
                .get(at.word)
                .is_some_and(|word| *word >> at.bit & 1 != 0)
    }

    #[inline(always)]
    fn is_wildcard_guarded(&self, at: PortBit) -> bool {
        SHIELD_WILDCARD_PORTS
            .get(at.word)
            .is_some_and(|word| *word >> at.bit & 1 != 0)
    }

    #[inline(always)]
    fn guard_of(&self, key: &Key, version: u32, round: u32) -> u32 {
        let at = (key.destination[3] ^ key.ports ^ key.protocol) % GUARD_CACHE_ENTRIES;
        // SAFETY: this CPU's element.
        let Some(recent) = SHIELD_GUARD_CACHE.get_ptr_mut(at).map(|recent| unsafe { &mut *recent }) else {
            return NO_GUARD;
        };
        let target = Target::new(key.destination, key.ports as u16, key.protocol as u8);
        // Words that map an IPv4 address into an IPv6 one are the same in all.
        let is_known = recent.target.port_protocol == target.port_protocol
            && recent.target.address[3] == target.address[3]
            && recent.version == version
            && recent.generation == round
            && (version == 4
                || (recent.target.address[2] == target.address[2]
                    && recent.target.address[1] == target.address[1]
                    && recent.target.address[0] == target.address[0]));
        if !is_known {
            core::hint::cold_path();
            // Copies, so that the fast path keeps nothing in memory for this one.
            let (target, key) = (target, *key);
            recent.guard = self.find_guard(&target, &key, version).unwrap_or(NO_GUARD);
            recent.target = target;
            recent.version = version;
            recent.generation = round;
        }
        recent.guard
    }

    #[inline(always)]
    fn guard(&self, number: u32) -> Option<&Guard> {
        SHIELD_GUARDS.get(number)
    }

    #[inline(always)]
    fn shared_verdict(&self, first: u32, address: &[u32; 4], is_v4: bool) -> u32 {
        prefixes::verdict(&SharedPrefixes(first), address, is_v4)
    }

    #[inline(always)]
    fn guard_verdict(&self, guard: u32, address: &[u32; 4], is_v4: bool) -> u32 {
        // SAFETY: the outer map's elements are maps, and so is the value that it returns.
        let inner = unsafe {
            let outer = (&raw const SHIELD_GUARD_PREFIXES).cast_mut().cast();
            bpf_map_lookup_elem(outer, (&raw const guard).cast())
        };
        if inner.is_null() {
            return NO_MATCH;
        }
        prefixes::verdict(&GuardPrefixes(inner), address, is_v4)
    }

    #[inline(always)]
    fn bucket(&self, place: u32) -> Option<&mut Bucket> {
        // SAFETY: a non-null element. Other CPUs may write the same cells, each field whole.
        SHIELD_SOURCES.get_ptr_mut(place).map(|bucket| unsafe { &mut *bucket })
    }

    #[inline(always)]
    fn conn_count(&self, key: &ConnCountKey) -> u32 {
        // SAFETY: a number, read at once.
        unsafe { SHIELD_CONN_COUNT.get(key) }.copied().unwrap_or(0)
    }

    #[inline(always)]
    fn conn_opened(&self, key: &ConnCountKey) {
        match SHIELD_CONN_COUNT.get_ptr_mut(key) {
            // SAFETY: a non-null element; the next count makes up for an addition that another CPU undoes.
            Some(count) => unsafe { *count += 1 },
            None => drop(SHIELD_CONN_COUNT.insert(key, &1, BPF_ANY)),
        }
    }

    #[inline(always)]
    fn conn_closed(&self, key: &ConnCountKey) {
        if let Some(count) = SHIELD_CONN_COUNT.get_ptr_mut(key) {
            // SAFETY: as above.
            unsafe {
                if *count > 0 {
                    *count -= 1;
                }
            }
        }
    }

    #[inline(always)]
    fn guard_stats(&self, guard: u32) -> Option<&mut GuardStats> {
        // SAFETY: this CPU's element.
        SHIELD_STATS.get_ptr_mut(guard).map(|stats| unsafe { &mut *stats })
    }

    #[inline(always)]
    fn syn_rate(&self, guard: u32) -> Option<&mut SynRate> {
        // SAFETY: a non-null element; a SYN that another CPU's count undoes makes no difference.
        SHIELD_SYN_RATES.get_ptr_mut(guard).map(|flood| unsafe { &mut *flood })
    }

    #[inline(always)]
    fn take_sample_quota(&self, judged: Decision) -> bool {
        let Some(quota) = SHIELD_SAMPLE_QUOTA.get_ptr_mut(judged as u32) else {
            return false;
        };
        // SAFETY: this CPU's element.
        unsafe {
            if *quota == 0 {
                return false;
            }
            *quota -= 1;
        }
        true
    }

    #[inline(always)]
    fn send_sample(&self, dropped: &DroppedPacket) {
        // No wake-up: the reader polls often enough, and a wake-up is expensive. A full ring loses samples, not counts.
        let _ = SHIELD_SAMPLES.output::<DroppedPacket>(dropped, BPF_RB_NO_WAKEUP);
    }

    #[inline(always)]
    fn make_cookie(&self, key: &Key, headers: &[u32; 25], length: u32) -> Option<(u32, u16)> {
        let length = length & 0x3c;
        // SAFETY: all-zero parameters are valid; the helpers read as much as they are told; a socket that is found is
        // released.
        unsafe {
            let mut tuple: bpf_sock_tuple = core::mem::zeroed();
            let size = socket_tuple(key, is_v4(&key.source), &mut tuple);
            let socket = bpf_skc_lookup_tcp(self.ctx, &raw mut tuple, size, BPF_F_CURRENT_NETNS, 0);
            if socket.is_null() {
                return None;
            }
            let mut made = -1;
            if (*socket).state == BPF_TCP_LISTEN && length >= 20 {
                let ip = headers.as_ptr().cast_mut().cast();
                let tcp = headers.as_ptr().add(10).cast_mut().cast();
                made = bpf_tcp_gen_syncookie(socket.cast(), ip, 40, tcp, length);
            }
            bpf_sk_release(socket.cast());
            if made >= 0 {
                // The handshake of an earlier connection of this tuple: tier `cut` would mistake it for this one's.
                let tuple = Tuple {
                    source: key.source,
                    destination: key.destination,
                    ports: key.ports,
                };
                let _ = CUT_HANDSHAKES.remove(&tuple);
            }
            (made >= 0).then_some((made as u32, (made >> 32) as u16))
        }
    }

    #[inline(always)]
    fn frame_length(&self) -> u32 {
        self.frame
    }

    #[inline(always)]
    fn hide_from_verifier(&self, value: u32) -> u32 {
        hide_from_verifier(value, self.frame)
    }

    #[inline(always)]
    fn ingress_ifindex(&self) -> u32 {
        self.ifindex
    }
}

/// Verdict on a frame with a tag of VLAN 0 before another tag, or by XDP one of 802.1ad. The kernel would treat the
/// frame as untagged, and its packet has not been checked.
#[inline(always)]
pub fn odd_priority_tag() -> Verdict {
    if SHIELD_SETTINGS
        .get(0)
        .is_some_and(|settings| settings.drop_unparsable != 0)
    {
        Verdict::new(Reason::ShieldMalformed, Action::Drop)
    } else {
        Verdict::new(Reason::L4Miss, Action::Pass)
    }
}

//! The maps of the shield, and [`Kernel`] for them. None is pinned: each process fills its own before its programs take
//! the place of another's.

use aya_ebpf::{
    bindings::{bpf_fib_lookup as FibParams, bpf_sock_tuple},
    helpers::{bpf_fib_lookup, bpf_map_lookup_elem, bpf_sk_release, bpf_skc_lookup_tcp, bpf_tcp_gen_syncookie},
    macros::map,
    maps::{Array, HashMap, LpmTrie, PerCpuArray, RingBuf, lpm_trie},
};
use core::ffi::c_void;
use signalbox_common::cut::Tuple;
use signalbox_common::l4::{Key, Target, abi::PortBit, abi::WANTED_WORDS, decide::is_v4, packet::TCP};
use signalbox_common::shield::{
    Bucket, CrowdKey, Dropped, Guard, Judged, Kernel, Settings,
    abi::{
        DEFAULT_SOURCES, Flood, MAX_CROWD, MAX_GUARDS, MAX_PREFIXED, MAX_TABLES, MAX_TARGETS, NO_GUARD, RECENT, Recent,
        SAMPLE_BYTES, Tally,
    },
    prefixes::{self, NONE, Node, Nodes},
};
use signalbox_common::{
    parts::SHIELD,
    steer::{STEER_FIXED_BITS, SteerKey},
};

use crate::clock::coarse_ns;
use crate::cut::{maps::SHAKES, skb::forgotten};
use crate::l4::maps::{HERE, LISTEN, Maps, tuple_of};
use crate::parts;

const BPF_F_NO_PREALLOC: u32 = 1;
const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_ANY: u64 = 0;
const BPF_RB_NO_WAKEUP: u64 = 1;

/// Ports that are guarded at any address: a bit for each port and protocol, as in `L4_WANTED`.
#[map]
static SHIELD_PORTS: Array<u64> = Array::with_max_entries(WANTED_WORDS, 0);

/// Ports that are guarded at some prefix, and so at addresses that are not listed one by one.
#[map]
static SHIELD_ANYWHERE: Array<u64> = Array::with_max_entries(WANTED_WORDS, 0);

/// Guards by address, port and protocol.
#[map]
static SHIELD_TARGETS: HashMap<Target, u32> = HashMap::with_max_entries(MAX_TARGETS, BPF_F_NO_PREALLOC);

/// Guards by prefix and TCP port.
#[map]
static SHIELD_PREFIXED: LpmTrie<SteerKey, u32> = LpmTrie::with_max_entries(MAX_PREFIXED, BPF_F_NO_PREALLOC);

#[map]
static SHIELD_GUARDS: Array<Guard> = Array::with_max_entries(MAX_GUARDS, 0);

#[map]
static SHIELD_SETTINGS: Array<Settings> = Array::with_max_entries(1, 0);

/// Table of the prefixes common to all guards, twice: one side is in force, the other is written. A map of its own and
/// not one of `SHIELD_TABLES`, because only a look-up in a map that the verifier knows is inlined: a denied packet
/// costs a third.
#[map]
static SHIELD_NODES: Array<Node> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Cache of the guards of recent destinations.
#[map]
static SHIELD_RECENT: PerCpuArray<Recent> = PerCpuArray::with_max_entries(RECENT, 0);

/// Tables of guards' own prefixes: an array of maps, each an array of [`Node`]s, replaced whole by one swap; see
/// `L4_TABLES` for why it is declared otherwise here.
#[map]
static SHIELD_TABLES: Array<u32> = Array::with_max_entries(MAX_TABLES, 0);

#[map]
static SHIELD_SOURCES: Array<Bucket> = Array::with_max_entries(DEFAULT_SOURCES / 4, 0);

/// Concurrent connections by source and guard. Userspace recounts them now and then; in between only the programs'
/// changes are added.
#[map]
static SHIELD_CROWD: HashMap<CrowdKey, u32> = HashMap::with_max_entries(MAX_CROWD, BPF_F_NO_PREALLOC);

#[map]
static SHIELD_TALLY: PerCpuArray<Tally> = PerCpuArray::with_max_entries(MAX_GUARDS, 0);

/// Rates of SYNs to guards, of all CPUs together: a client on a quiet CPU is in the same flood.
#[map]
static SHIELD_FLOODS: Array<Flood> = Array::with_max_entries(MAX_GUARDS, 0);

/// Samples of each kind that may still be taken, by [`Judged`]. Userspace refills the quota whenever it looks.
#[map]
static SHIELD_QUOTA: PerCpuArray<u64> = PerCpuArray::with_max_entries(8, 0);

#[map]
static SHIELD_SAMPLES: RingBuf = RingBuf::with_byte_size(SAMPLE_BYTES, 0);

/// An inner map of `SHIELD_TABLES`.
struct Table(*mut c_void);

impl Nodes for Table {
    #[inline(always)]
    fn node(&self, index: u32) -> Option<&Node> {
        // SAFETY: the map's elements are nodes; the helper checks the index. What has been replaced stays until the
        // program ends.
        unsafe {
            bpf_map_lookup_elem(self.0, (&raw const index).cast())
                .cast::<Node>()
                .as_ref()
        }
    }
}

/// Side of `SHIELD_NODES` that begins at this index.
struct Side(u32);

impl Nodes for Side {
    #[inline(always)]
    fn node(&self, index: u32) -> Option<&Node> {
        SHIELD_NODES.get(self.0.wrapping_add(index))
    }
}

impl Maps {
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
        let guard = *SHIELD_PREFIXED.get(&lpm_trie::Key::new(STEER_FIXED_BITS + 128, place))?;
        // A prefix may include other machines' addresses, whose packets are only routed through this machine.
        (is_forwarded(self.ctx, self.ifindex, key, version) == 0).then_some(guard)
    }
}

/// Whether the kernel would route a packet on to another machine: 1 or 0.
#[inline(never)]
fn is_forwarded(ctx: *mut c_void, ifindex: u32, key: &Key, version: u32) -> u32 {
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    // `BPF_FIB_LKUP_RET_*`: a route out, or one whose neighbour is not known or that has less room. Local addresses are
    // "not forwarded", and a machine that does not forward says so.
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

impl Kernel for Maps {
    #[inline(always)]
    fn clock(&self) -> u64 {
        coarse_ns()
    }

    #[inline(always)]
    fn settings(&self) -> Option<&Settings> {
        SHIELD_SETTINGS.get(0)
    }

    #[inline(always)]
    fn is_guarded(&self, at: PortBit) -> bool {
        parts::has(SHIELD) && SHIELD_PORTS.get(at.word).is_some_and(|word| *word >> at.bit & 1 != 0)
    }

    #[inline(always)]
    fn is_guarded_anywhere(&self, at: PortBit) -> bool {
        SHIELD_ANYWHERE
            .get(at.word)
            .is_some_and(|word| *word >> at.bit & 1 != 0)
    }

    #[inline(always)]
    fn guard_of(&self, key: &Key, version: u32, round: u32) -> u32 {
        let at = (key.destination[3] ^ key.ports ^ key.protocol) % RECENT;
        // SAFETY: this CPU's element.
        let Some(recent) = SHIELD_RECENT.get_ptr_mut(at).map(|recent| unsafe { &mut *recent }) else {
            return NO_GUARD;
        };
        let target = Target::new(key.destination, key.ports as u16, key.protocol as u8);
        // Words that map an IPv4 address into an IPv6 one are the same in all.
        let is_known = recent.target.port_protocol == target.port_protocol
            && recent.target.address[3] == target.address[3]
            && recent.version == version
            && recent.round == round
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
            recent.round = round;
        }
        recent.guard
    }

    #[inline(always)]
    fn guard(&self, number: u32) -> Option<&Guard> {
        SHIELD_GUARDS.get(number)
    }

    #[inline(always)]
    fn common(&self, first: u32, address: &[u32; 4], is_v4: bool) -> u32 {
        prefixes::verdict(&Side(first), address, is_v4)
    }

    #[inline(always)]
    fn own(&self, guard: u32, address: &[u32; 4], is_v4: bool) -> u32 {
        // SAFETY: the outer map's elements are maps, and so is what it gives.
        let inner = unsafe {
            let outer = (&raw const SHIELD_TABLES).cast_mut().cast();
            bpf_map_lookup_elem(outer, (&raw const guard).cast())
        };
        if inner.is_null() {
            return NONE;
        }
        prefixes::verdict(&Table(inner), address, is_v4)
    }

    #[inline(always)]
    fn bucket(&self, place: u32) -> Option<&mut Bucket> {
        // SAFETY: a non-null element. Other CPUs may write the same cells, each field whole.
        SHIELD_SOURCES.get_ptr_mut(place).map(|bucket| unsafe { &mut *bucket })
    }

    #[inline(always)]
    fn crowd(&self, key: &CrowdKey) -> u32 {
        // SAFETY: a number, read at once.
        unsafe { SHIELD_CROWD.get(key) }.copied().unwrap_or(0)
    }

    #[inline(always)]
    fn join(&self, key: &CrowdKey) {
        match SHIELD_CROWD.get_ptr_mut(key) {
            // SAFETY: a non-null element; an addition that another CPU undoes is made up for by the next count.
            Some(count) => unsafe { *count += 1 },
            None => drop(SHIELD_CROWD.insert(key, &1, BPF_ANY)),
        }
    }

    #[inline(always)]
    fn part(&self, key: &CrowdKey) {
        if let Some(count) = SHIELD_CROWD.get_ptr_mut(key) {
            // SAFETY: as above.
            unsafe {
                if *count > 0 {
                    *count -= 1;
                }
            }
        }
    }

    #[inline(always)]
    fn judged(&self, guard: u32) -> Option<&mut Tally> {
        // SAFETY: this CPU's element.
        SHIELD_TALLY.get_ptr_mut(guard).map(|tally| unsafe { &mut *tally })
    }

    #[inline(always)]
    fn flood(&self, guard: u32) -> Option<&mut Flood> {
        // SAFETY: a non-null element; a SYN that another CPU's count undoes makes no difference.
        SHIELD_FLOODS.get_ptr_mut(guard).map(|flood| unsafe { &mut *flood })
    }

    #[inline(always)]
    fn may_sample(&self, judged: Judged) -> bool {
        let Some(quota) = SHIELD_QUOTA.get_ptr_mut(judged as u32) else {
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
    fn sample(&self, dropped: &Dropped) {
        // No wake-up: the reader polls often enough, and waking it is dear. A full ring loses samples, not counts.
        let _ = SHIELD_SAMPLES.output::<Dropped>(dropped, BPF_RB_NO_WAKEUP);
    }

    #[inline(always)]
    fn cookie(&self, key: &Key, headers: &[u32; 25], length: u32) -> Option<(u32, u16)> {
        let length = length & 0x3c;
        // SAFETY: all-zero parameters are valid; the helpers read as much as they are told; a socket that is found is
        // released.
        unsafe {
            let mut tuple: bpf_sock_tuple = core::mem::zeroed();
            let size = tuple_of(key, is_v4(&key.source), &mut tuple);
            let socket = bpf_skc_lookup_tcp(self.ctx, &raw mut tuple, size, HERE, 0);
            if socket.is_null() {
                return None;
            }
            let mut made = -1;
            if (*socket).state == LISTEN && length >= 20 {
                let ip = headers.as_ptr().cast_mut().cast();
                let tcp = headers.as_ptr().add(10).cast_mut().cast();
                made = bpf_tcp_gen_syncookie(socket.cast(), ip, 40, tcp, length);
            }
            bpf_sk_release(socket.cast());
            if made >= 0 {
                // The handshake of an earlier connection of this tuple: tier `cut` would take it for this one's.
                let tuple = Tuple {
                    source: key.source,
                    destination: key.destination,
                    ports: key.ports,
                };
                let _ = SHAKES.remove(&tuple);
            }
            (made >= 0).then_some((made as u32, (made >> 32) as u16))
        }
    }

    #[inline(always)]
    fn frame(&self) -> u32 {
        self.frame
    }

    #[inline(always)]
    fn forgotten(&self, value: u32) -> u32 {
        forgotten(value, self.frame)
    }

    #[inline(always)]
    fn interface(&self) -> u32 {
        self.ifindex
    }
}

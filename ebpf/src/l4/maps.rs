//! The maps of layer-4 services, and [`Maps`] for them.

use aya_ebpf::{
    bindings::{bpf_sock, bpf_sock_tuple},
    helpers::{bpf_map_lookup_elem, bpf_sk_lookup_udp, bpf_sk_release, bpf_skc_lookup_tcp},
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray},
};
use aya_log_ebpf::warn;
use core::ffi::c_void;
use signalbox_common::l4::{
    Fragment, Host, L4Config, L4Flow, Maps, PacketScratch, Service, ServiceStats,
    abi::{
        ALL_MACS, DEFAULT_FLOWS, DsrQuota, MAX_FRAGMENTS, MAX_HALF_OPEN, MAX_HOST_PORTS, MAX_HOSTS, MAX_MACS,
        MAX_NAT_SOURCES, MAX_SERVICES, MAX_TABLES, MAX_TARGETS, SLOTS,
    },
    maps::{Direction, LocalSocket},
};
use signalbox_common::net::{
    Buffer as _, Key, ParsedHeaders, Target, atomic,
    ip::TCP,
    target::{PORT_BITMAP_WORDS, PortBit},
    tuple::is_v4,
};

use crate::{clock, frame::reply_macs, packet_view::PacketView, shield::maps::is_forwarded};

const BPF_F_NO_PREALLOC: u32 = 1;
const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_ANY: u64 = 0;
const BPF_NOEXIST: u64 = 1;
/// `BPF_F_CURRENT_NETNS`.
pub const BPF_F_CURRENT_NETNS: u64 = u64::MAX;
/// `BPF_TCP_LISTEN`.
pub const BPF_TCP_LISTEN: u32 = 10;

/// Slots of a table, padded to a multiple of 8 bytes.
#[repr(C, align(8))]
pub struct Slots([u16; (SLOTS as usize).next_multiple_of(4)]);

/// Connection table of flows that are confirmed: by both sides, or with direct return by three packets of the client.
///
/// - Entry: addresses, ports and protocol of a packet -> service, host, addresses to write, next hop, state
/// - Writer: l4_xdp, l4_tc, when a flow is confirmed or ends; reconcile/l4/sweep.rs removes; reconcile/l4/replicas.rs
///   and reconcile/l4/client_hops.rs for flows of other nodes; kernel/src/l4/carry_over.rs
/// - Reader: l4_xdp, l4_tc for every packet; the admin API
/// - Size: two per flow of `layer4.flows` (262144), not preallocated: a flow that finds no memory tries again with its
///   next packet; pinned: outlives the process
#[map]
static L4_CT_ESTABLISHED: HashMap<Key, L4Flow> = HashMap::pinned(2 * DEFAULT_FLOWS, BPF_F_NO_PREALLOC);

/// Connection table of flows that have begun and are not confirmed.
///
/// - Entry: as in `L4_CT_ESTABLISHED`
/// - Writer: l4_xdp, l4_tc; reconcile/l4/sweep.rs removes; kernel/src/l4/carry_over.rs
/// - Reader: l4_xdp, l4_tc; reconcile/l4/sweep.rs
/// - Size: 131072, the least recently used are evicted: a flood with forged sources displaces no established flow;
///   pinned: outlives the process
#[map]
static L4_CT_HALF_OPEN: LruHashMap<Key, L4Flow> = LruHashMap::pinned(MAX_HALF_OPEN, 0);

/// Addresses and ports that services listen on.
///
/// - Entry: address, port, protocol -> service, mode, index in `L4_TABLES`, group of virtual addresses
/// - Writer: reconcile/l4/apply.rs
/// - Reader: l4_xdp, l4_tc, for packets of unknown flows
/// - Size: 65536; pinned: services go on without a process
#[map]
static L4_SERVICES: HashMap<Target, Service> = HashMap::pinned(MAX_TARGETS, BPF_F_NO_PREALLOC);

/// Maglev tables: an array of maps, each with one `Slots`, replaced whole by one swap. Userspace makes and pins it
/// before the object is loaded (kernel/src/map_in_map.rs). A definition in the object would need BTF, and the verifier
/// refuses its line numbers wherever the code has an empty piece of assembly.
///
/// - Entry: index -> slots, each with an index in `L4_HOSTS`
/// - Writer: reconcile/l4/apply.rs
/// - Reader: l4_xdp, l4_tc, for packets of unknown flows
/// - Size: 2048; pinned: services go on without a process
#[map]
static L4_TABLES: Array<u32> = Array::pinned(MAX_TABLES, 0);

/// Hosts of services and their next hops.
///
/// - Entry: number of a host -> address, Ethernet header, interface, VLAN, MTU, its part of `L4_NAT_SOURCES`
/// - Writer: reconcile/l4/next_hops.rs; reconcile/l4/apply.rs clears
/// - Reader: l4_xdp, l4_tc
/// - Size: 16384; pinned: services go on without a process
#[map]
static L4_HOSTS: Array<Host> = Array::pinned(MAX_HOSTS, 0);

/// Ports of hosts that differ from the service's.
///
/// - Entry: number of a service, number of a host, 16 bits each -> port
/// - Writer: reconcile/l4/apply.rs
/// - Reader: l4_xdp, l4_tc, for packets of unknown flows
/// - Size: 65536; pinned: services go on without a process
#[map]
static L4_HOST_PORTS: HashMap<u32, u32> = HashMap::pinned(MAX_HOST_PORTS, BPF_F_NO_PREALLOC);

/// Source addresses of mode `nat`.
///
/// - Entry: index, from the host's `first_source` on -> an address of the balancer: those of services whose addresses do
///   not move, then those of each group of virtual addresses
/// - Writer: reconcile/l4/next_hops.rs
/// - Reader: l4_xdp, l4_tc, for packets of unknown flows
/// - Size: 16384; pinned: services go on without a process
#[map]
static L4_NAT_SOURCES: Array<[u32; 4]> = Array::pinned(MAX_NAT_SOURCES, 0);

/// Ports of fragmented datagrams: only the first fragment has them.
///
/// - Entry: addresses, identification and protocol of a datagram -> ports
/// - Writer: l4_xdp, l4_tc, at a first fragment
/// - Reader: l4_xdp, l4_tc, at the others
/// - Size: 16384, the least recently used are evicted; not pinned: a datagram is gone in a moment
#[map]
static L4_FRAGMENTS: LruHashMap<Fragment, u32> = LruHashMap::with_max_entries(MAX_FRAGMENTS, 0);

/// Settings that all services share.
///
/// - Entry: 0 -> source ports of mode `nat` and, at addresses that move, this node's share of them, time of half-open
///   flows, source addresses of tunnels
/// - Writer: reconcile/l4/next_hops.rs
/// - Reader: l4_xdp, l4_tc
/// - Size: 1; pinned: services go on without a process
#[map]
static L4_CONFIG: Array<L4Config> = Array::pinned(1, 0);

/// Working memory of a packet, which would not fit the stack.
///
/// - Entry: 0 -> `PacketScratch`
/// - Writer: l4_xdp, l4_tc
/// - Reader: l4_xdp, l4_tc
/// - Size: 1, per CPU; not pinned: nothing of it outlives a packet
#[map]
static L4_SCRATCH: PerCpuArray<PacketScratch> = PerCpuArray::with_max_entries(1, 0);

/// Flows, packets and bytes of services.
///
/// - Entry: number of a service -> counts
/// - Writer: l4_xdp, l4_tc
/// - Reader: reconcile/l4.rs for the admin API and /metrics
/// - Size: 1024, per CPU; pinned: counts go on through a restart
#[map]
static L4_SERVICE_STATS: PerCpuArray<ServiceStats> = PerCpuArray::pinned(MAX_SERVICES, 0);

/// Flows of direct server return. Replies bypass the balancer, so a forged source can confirm such a flow. These flows
/// get at most half of the established entries.
///
/// - Entry: 0 -> flows now, flows at most
/// - Writer: l4_xdp, l4_tc (one more); reconcile/l4/sweep.rs (recounts); kernel/src/l4.rs at a start
/// - Reader: l4_xdp, l4_tc, when such a flow is to be established
/// - Size: 1; not pinned: the next process counts the flows
#[map]
static L4_DSR_QUOTA: Array<DsrQuota> = Array::with_max_entries(1, 0);

/// Ethernet addresses of this machine, as numbers.
///
/// - Entry: address -> 1; `ALL_MACS`: the list is complete
/// - Writer: reconcile/l4/macs.rs
/// - Reader: l4_xdp, which runs before the kernel has looked at a frame's destination
/// - Size: 4096; not pinned: interfaces are looked up again
#[map]
static L4_LOCAL_MACS: HashMap<u64, u32> = HashMap::with_max_entries(MAX_MACS, BPF_F_NO_PREALLOC);

/// Ports that a service listens on or mode `nat` uses as source ports: most packets of a machine need no other lookup.
///
/// - Entry: word -> a bit for each of 64 ports, of TCP and then of UDP
/// - Writer: reconcile/l4/apply.rs, which adds: ports of services that are gone stay set
/// - Reader: l4_xdp, l4_tc, first of all
/// - Size: 2048 words; pinned: services go on without a process
#[map]
static L4_PORT_BITMAP: Array<u64> = Array::pinned(PORT_BITMAP_WORDS, BPF_F_MMAPABLE);

/// Working memory of this CPU.
#[inline(always)]
pub fn scratch() -> Option<&'static mut PacketScratch> {
    let scratch = L4_SCRATCH.get_ptr_mut(0)?;
    // SAFETY: this CPU's element; packets of one CPU are worked on one after the other.
    Some(unsafe { &mut *scratch })
}

/// The maps, and the context of one packet: implements [`Maps`].
pub struct BpfMaps {
    /// Context pointer, in the form that helpers need.
    pub ctx: *mut c_void,
    pub ifindex: u32,
    pub vlan: u16,
    /// Whether the hook knows that the frame is addressed to this machine.
    pub is_for_us: bool,
    /// View of the packet, as it arrived.
    pub view: PacketView,
    /// Payload of each segment in a super-packet (`gso_size`); 0 elsewhere.
    pub segment_payload: u32,
    /// Length of the frame, in bytes.
    pub frame: u32,
}

#[inline(always)]
fn flow_ref(found: Option<*mut L4Flow>) -> Option<&'static mut L4Flow> {
    // SAFETY: a non-null element. Other CPUs may write the same fields, each whole; a removed one stays readable until
    // the program ends.
    found.map(|flow| unsafe { &mut *flow })
}

#[inline(always)]
fn add_packet(stats: Option<*mut ServiceStats>, bytes: u32, direction: Direction) {
    if let Some(stats) = stats {
        // SAFETY: this CPU's element.
        let stats = unsafe { &mut *stats };
        if direction == Direction::Out {
            stats.packets_out += 1;
            stats.bytes_out += u64::from(bytes);
        } else {
            stats.packets_in += 1;
            stats.bytes_in += u64::from(bytes);
            if direction == Direction::NewFlow {
                stats.flows += 1;
            }
        }
    }
}

/// Whether one more flow of direct server return may be established.
#[inline(always)]
fn dsr_quota_has_room() -> bool {
    // SAFETY: a non-null element; only numbers are read from it.
    L4_DSR_QUOTA.get_ptr(0).is_some_and(|it| unsafe {
        (&raw const (*it).flows).read_volatile() < (&raw const (*it).max_flows).read_volatile()
    })
}

/// Logs that a confirmed flow stays among the half-open ones, where other flows may displace it.
#[inline(never)]
fn log_no_room(errno: i32) {
    if clock::may_log() {
        warn!(
            (),
            "A flow of a service cannot be established, because L4_CT_ESTABLISHED takes no entry: errno={}", errno
        );
    }
}

#[inline(always)]
fn count_dsr_flow() {
    if let Some(it) = L4_DSR_QUOTA.get_ptr_mut(0) {
        // SAFETY: a non-null element; other CPUs add to it in the same way.
        atomic::add(unsafe { &mut (*it).flows }, 1);
    }
}

/// Fills in the tuple that socket lookups take, and returns its length.
#[inline(always)]
pub unsafe fn socket_tuple(key: &Key, is_v4: bool, tuple: &mut bpf_sock_tuple) -> u32 {
    // SAFETY: every bit pattern is valid in each part of the union.
    unsafe {
        if is_v4 {
            let v4 = &mut tuple.__bindgen_anon_1.ipv4;
            v4.saddr = key.source[3].to_be();
            v4.daddr = key.destination[3].to_be();
            v4.sport = ((key.ports >> 16) as u16).to_be();
            v4.dport = (key.ports as u16).to_be();
            12
        } else {
            let v6 = &mut tuple.__bindgen_anon_1.ipv6;
            v6.saddr = key.source.map(u32::to_be);
            v6.daddr = key.destination.map(u32::to_be);
            v6.sport = ((key.ports >> 16) as u16).to_be();
            v6.dport = (key.ports as u16).to_be();
            36
        }
    }
}

impl Maps for BpfMaps {
    #[inline(always)]
    fn now(&self) -> u32 {
        clock::tick()
    }

    #[inline(always)]
    fn config(&self) -> Option<&L4Config> {
        L4_CONFIG.get(0)
    }

    #[inline(always)]
    fn established(&self, key: &Key) -> Option<&mut L4Flow> {
        flow_ref(L4_CT_ESTABLISHED.get_ptr_mut(key))
    }

    #[inline(always)]
    fn half_open(&self, key: &Key) -> Option<&mut L4Flow> {
        flow_ref(L4_CT_HALF_OPEN.get_ptr_mut(key))
    }

    #[inline(always)]
    fn insert_half_open(&self, key: &Key, flow: &L4Flow, fresh: bool) -> bool {
        let flags = if fresh { BPF_NOEXIST } else { BPF_ANY };
        L4_CT_HALF_OPEN.insert(key, flow, flags).is_ok()
    }

    #[inline(always)]
    fn promote(&self, key: &Key, flow: &L4Flow, reverse: Option<(&Key, &L4Flow)>) -> bool {
        if reverse.is_none() && !dsr_quota_has_room() {
            return false;
        }
        if let Some((key, flow)) = reverse
            && let Err(errno) = L4_CT_ESTABLISHED.insert(key, flow, BPF_ANY)
        {
            log_no_room(errno);
            return false;
        }
        if let Err(errno) = L4_CT_ESTABLISHED.insert(key, flow, BPF_ANY) {
            if let Some((key, _)) = reverse {
                let _ = L4_CT_ESTABLISHED.remove(key);
            }
            log_no_room(errno);
            return false;
        }
        if reverse.is_none() {
            count_dsr_flow();
        }
        // The old entries stay readable until the program ends: a CPU that goes on with them loses no more than a
        // count.
        let _ = L4_CT_HALF_OPEN.remove(key);
        if let Some((key, _)) = reverse {
            let _ = L4_CT_HALF_OPEN.remove(key);
        }
        true
    }

    #[inline(always)]
    fn remove_established(&self, key: &Key) {
        let _ = L4_CT_ESTABLISHED.remove(key);
    }

    #[inline(always)]
    fn service(&self, target: &Target) -> Option<&Service> {
        // SAFETY: userspace replaces elements whole; the value is copied at once.
        unsafe { L4_SERVICES.get(target) }
    }

    #[inline(always)]
    fn slot(&self, table: u32, slot: u32) -> Option<u16> {
        // SAFETY: the outer map's elements are maps, and so is what it gives; an inner map's only element is a `Slots`.
        unsafe {
            let outer = (&raw const L4_TABLES).cast_mut().cast();
            let inner = bpf_map_lookup_elem(outer, (&raw const table).cast());
            if inner.is_null() {
                return None;
            }
            let first = 0u32;
            let slots = bpf_map_lookup_elem(inner, (&raw const first).cast()).cast::<Slots>();
            if slots.is_null() {
                return None;
            }
            (*slots).0.get(slot as usize).copied()
        }
    }

    #[inline(always)]
    fn host(&self, index: u32) -> Option<&Host> {
        L4_HOSTS.get(index)
    }

    #[inline(always)]
    fn host_port(&self, service: u16, host: u32) -> Option<u16> {
        // SAFETY: the value is copied at once.
        let port = unsafe { L4_HOST_PORTS.get(&(u32::from(service) << 16 | (host & 0xffff))) };
        port.map(|port| *port as u16)
    }

    #[inline(always)]
    fn nat_source(&self, index: u32) -> Option<[u32; 4]> {
        L4_NAT_SOURCES.get(index).copied()
    }

    #[inline(always)]
    fn local_socket(&self, key: &Key) -> LocalSocket {
        let is_v4 = is_v4(&key.source);
        // SAFETY: all-zero parameters are valid; the helpers read as much as they are told; a socket that is found is
        // released.
        unsafe {
            let mut tuple: bpf_sock_tuple = core::mem::zeroed();
            let size = socket_tuple(key, is_v4, &mut tuple);
            let socket: *mut bpf_sock = if key.protocol == TCP {
                bpf_skc_lookup_tcp(self.ctx, &raw mut tuple, size, BPF_F_CURRENT_NETNS, 0)
            } else {
                bpf_sk_lookup_udp(self.ctx, &raw mut tuple, size, BPF_F_CURRENT_NETNS, 0)
            };
            if socket.is_null() {
                return LocalSocket::None;
            }
            let found = if key.protocol == TCP {
                if (*socket).state == BPF_TCP_LISTEN {
                    LocalSocket::None
                } else {
                    LocalSocket::Connected
                }
            } else if (*socket).dst_port == 0 {
                LocalSocket::Unconnected
            } else {
                LocalSocket::Connected
            };
            bpf_sk_release(socket.cast());
            found
        }
    }

    #[inline(always)]
    fn is_forwarded(&self, seen: &ParsedHeaders) -> bool {
        is_forwarded(self.ctx, self.ifindex, &seen.key, seen.version) != 0
    }

    #[inline(always)]
    fn fragment(&self, fragment: &Fragment) -> Option<u32> {
        // SAFETY: the value is copied at once.
        unsafe { L4_FRAGMENTS.get(fragment) }.copied()
    }

    #[inline(always)]
    fn record_fragment(&self, fragment: &Fragment, ports: u32) {
        let _ = L4_FRAGMENTS.insert(fragment, &ports, BPF_ANY);
    }

    #[inline(always)]
    fn count_packet(&self, service: u16, bytes: u32, direction: Direction) {
        add_packet(L4_SERVICE_STATS.get_ptr_mut(u32::from(service)), bytes, direction);
    }

    #[inline(always)]
    fn is_service_port(&self, at: PortBit) -> bool {
        L4_PORT_BITMAP.get(at.word).is_some_and(|word| *word >> at.bit & 1 != 0)
    }

    #[inline(always)]
    fn reply_macs(&self) -> [u32; 3] {
        reply_macs(&self.view).unwrap_or_default()
    }

    #[inline(always)]
    fn is_for_us(&self) -> bool {
        if self.is_for_us {
            return true;
        }
        let Some([high, low]) = self.view.words(0) else {
            return false;
        };
        let mac = u64::from(high) << 16 | u64::from(low >> 16);
        // SAFETY: values are not read.
        unsafe { L4_LOCAL_MACS.get(&mac).is_some() || L4_LOCAL_MACS.get(&ALL_MACS).is_none() }
    }

    #[inline(always)]
    fn ingress(&self) -> (u32, u16) {
        (self.ifindex, self.vlan)
    }

    #[inline(always)]
    fn largest_packet(&self, seen: &ParsedHeaders) -> u32 {
        if self.segment_payload == 0 {
            seen.length
        } else {
            seen.l4 - seen.l3 + seen.header_length + self.segment_payload
        }
    }
}

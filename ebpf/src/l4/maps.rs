//! The maps of layer-4 services, and [`Kernel`] for them.

use aya_ebpf::{
    bindings::{bpf_sock, bpf_sock_tuple},
    helpers::{bpf_map_lookup_elem, bpf_sk_lookup_udp, bpf_sk_release, bpf_skc_lookup_tcp},
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray},
};
use core::ffi::c_void;
use signalbox_common::cut::{Buffer as _, bits};
use signalbox_common::l4::{
    Config, Flow, Fragment, Host, Kernel, Key, Seen, Service, Tally, Target,
    abi::{
        ALL_MACS, DEFAULT_FLOWS, MAX_FRAGMENTS, MAX_HOSTS, MAX_MACS, MAX_OPENING, MAX_PORTS, MAX_SERVICES, MAX_SOURCES,
        MAX_TABLES, MAX_TARGETS, OneWay, PortBit, SLOTS, WANTED_WORDS,
    },
    decide::{Scratch, is_v4},
    kernel::Direction,
    packet::TCP,
};

use super::frame::way_back;
use crate::{clock, cut::skb::View};

const BPF_F_NO_PREALLOC: u32 = 1;
const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_ANY: u64 = 0;
const BPF_NOEXIST: u64 = 1;
/// `BPF_F_CURRENT_NETNS`.
pub const HERE: u64 = u64::MAX;
/// `BPF_TCP_LISTEN`.
pub const LISTEN: u32 = 10;

/// Slots of a table, padded to a multiple of 8 bytes.
#[repr(C, align(8))]
pub struct Slots([u16; (SLOTS as usize).next_multiple_of(4)]);

/// Flows that both sides have confirmed. Not preallocated: an entry that finds no memory is tried again with the flow's
/// next packet.
#[map]
static L4_ESTABLISHED: HashMap<Key, Flow> = HashMap::with_max_entries(2 * DEFAULT_FLOWS, BPF_F_NO_PREALLOC);

/// Flows that have begun and are not confirmed. The oldest make room.
#[map]
static L4_OPENING: LruHashMap<Key, Flow> = LruHashMap::with_max_entries(MAX_OPENING, 0);

#[map]
static L4_SERVICES: HashMap<Target, Service> = HashMap::with_max_entries(MAX_TARGETS, BPF_F_NO_PREALLOC);

/// Tables of slots: an array of maps, each of one [`Slots`], replaced whole by one swap. Userspace makes and pins it
/// before the object is loaded (`signalbox::kernel::l4`): a definition of its own would need BTF, whose line numbers
/// the verifier refuses wherever the code has an empty piece of assembly.
#[map]
static L4_TABLES: Array<u32> = Array::with_max_entries(MAX_TABLES, 0);

#[map]
static L4_HOSTS: Array<Host> = Array::with_max_entries(MAX_HOSTS, 0);

/// Ports of hosts that differ from the service's, by the service's number and the host's, each 16 bits.
#[map]
static L4_PORTS: HashMap<u32, u32> = HashMap::with_max_entries(MAX_PORTS, BPF_F_NO_PREALLOC);

#[map]
static L4_SOURCES: Array<[u32; 4]> = Array::with_max_entries(MAX_SOURCES, 0);

#[map]
static L4_FRAGMENTS: LruHashMap<Fragment, u32> = LruHashMap::with_max_entries(MAX_FRAGMENTS, 0);

#[map]
static L4_CONFIG: Array<Config> = Array::with_max_entries(1, 0);

#[map]
static L4_SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(1, 0);

#[map]
static L4_SERVICE_TALLY: PerCpuArray<Tally> = PerCpuArray::with_max_entries(MAX_SERVICES, 0);

#[map]
static L4_ONE_WAY: Array<OneWay> = Array::with_max_entries(1, 0);

/// Ethernet addresses of this machine, as numbers.
#[map]
static L4_MACS: HashMap<u64, u32> = HashMap::with_max_entries(MAX_MACS, BPF_F_NO_PREALLOC);

/// Ports that a service listens on, or mode `nat` uses as source ports: a bit for each port and protocol.
#[map]
static L4_WANTED: Array<u64> = Array::with_max_entries(WANTED_WORDS, BPF_F_MMAPABLE);

/// Working memory of this CPU.
#[inline(always)]
pub fn scratch() -> Option<&'static mut Scratch> {
    let scratch = L4_SCRATCH.get_ptr_mut(0)?;
    // SAFETY: this CPU's element; packets of one CPU are worked on one after the other.
    Some(unsafe { &mut *scratch })
}

/// The maps, and the context of one packet: implements [`Kernel`].
pub struct Maps {
    /// Context pointer, as helpers take it.
    pub ctx: *mut c_void,
    pub ifindex: u32,
    pub vlan: u16,
    /// Whether the hook knows that the frame is addressed to this machine.
    pub is_for_us: bool,
    /// View of the packet, as it arrived.
    pub view: View,
    /// Payload of each segment in a super-packet (`gso_size`); 0 elsewhere.
    pub segment: u32,
    /// Length of the frame, in bytes.
    pub frame: u32,
}

#[inline(always)]
fn flow(found: Option<*mut Flow>) -> Option<&'static mut Flow> {
    // SAFETY: a non-null element. Other CPUs may write the same fields, each whole; a removed one stays readable until
    // the program ends.
    found.map(|flow| unsafe { &mut *flow })
}

#[inline(always)]
fn count(tally: Option<*mut Tally>, bytes: u32, direction: Direction) {
    if let Some(tally) = tally {
        // SAFETY: this CPU's element.
        let tally = unsafe { &mut *tally };
        if direction == Direction::Out {
            tally.packets_out += 1;
            tally.bytes_out += u64::from(bytes);
        } else {
            tally.packets_in += 1;
            tally.bytes_in += u64::from(bytes);
            if direction == Direction::First {
                tally.flows += 1;
            }
        }
    }
}

/// Whether one more flow of direct server return may be established.
#[inline(always)]
fn one_way_has_room() -> bool {
    // SAFETY: a non-null element; whatever is read of it is a number.
    L4_ONE_WAY
        .get_ptr(0)
        .is_some_and(|it| unsafe { (&raw const (*it).flows).read_volatile() < (&raw const (*it).most).read_volatile() })
}

#[inline(always)]
fn count_one_way() {
    if let Some(it) = L4_ONE_WAY.get_ptr_mut(0) {
        // SAFETY: a non-null element; other CPUs add to it in the same way.
        bits::add(unsafe { &mut (*it).flows }, 1);
    }
}

/// Fills in the tuple that socket lookups take, and returns its length.
#[inline(always)]
pub unsafe fn tuple_of(key: &Key, is_v4: bool, tuple: &mut bpf_sock_tuple) -> u32 {
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

impl Kernel for Maps {
    #[inline(always)]
    fn now(&self) -> u32 {
        clock::tick()
    }

    #[inline(always)]
    fn config(&self) -> Option<&Config> {
        L4_CONFIG.get(0)
    }

    #[inline(always)]
    fn established(&self, key: &Key) -> Option<&mut Flow> {
        flow(L4_ESTABLISHED.get_ptr_mut(key))
    }

    #[inline(always)]
    fn opening(&self, key: &Key) -> Option<&mut Flow> {
        flow(L4_OPENING.get_ptr_mut(key))
    }

    #[inline(always)]
    fn open(&self, key: &Key, flow: &Flow, fresh: bool) -> bool {
        let flags = if fresh { BPF_NOEXIST } else { BPF_ANY };
        L4_OPENING.insert(key, flow, flags).is_ok()
    }

    #[inline(always)]
    fn promote(&self, key: &Key, flow: &Flow, reverse: Option<(&Key, &Flow)>) -> bool {
        if reverse.is_none() && !one_way_has_room() {
            return false;
        }
        if let Some((key, flow)) = reverse
            && L4_ESTABLISHED.insert(key, flow, BPF_ANY).is_err()
        {
            return false;
        }
        if L4_ESTABLISHED.insert(key, flow, BPF_ANY).is_err() {
            if let Some((key, _)) = reverse {
                let _ = L4_ESTABLISHED.remove(key);
            }
            return false;
        }
        if reverse.is_none() {
            count_one_way();
        }
        // The old entries stay readable until the program ends: a CPU that goes on with them loses no more than a
        // count.
        let _ = L4_OPENING.remove(key);
        if let Some((key, _)) = reverse {
            let _ = L4_OPENING.remove(key);
        }
        true
    }

    #[inline(always)]
    fn end(&self, key: &Key) {
        let _ = L4_ESTABLISHED.remove(key);
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
    fn port(&self, service: u16, host: u32) -> Option<u16> {
        // SAFETY: the value is copied at once.
        let port = unsafe { L4_PORTS.get(&(u32::from(service) << 16 | (host & 0xffff))) };
        port.map(|port| *port as u16)
    }

    #[inline(always)]
    fn source(&self, index: u32) -> Option<[u32; 4]> {
        L4_SOURCES.get(index).copied()
    }

    #[inline(always)]
    fn is_local(&self, key: &Key) -> bool {
        let is_v4 = is_v4(&key.source);
        // SAFETY: all-zero parameters are valid; the helpers read as much as they are told; a socket that is found is
        // released.
        unsafe {
            let mut tuple: bpf_sock_tuple = core::mem::zeroed();
            let size = tuple_of(key, is_v4, &mut tuple);
            let socket: *mut bpf_sock = if key.protocol == TCP {
                bpf_skc_lookup_tcp(self.ctx, &raw mut tuple, size, HERE, 0)
            } else {
                bpf_sk_lookup_udp(self.ctx, &raw mut tuple, size, HERE, 0)
            };
            if socket.is_null() {
                return false;
            }
            let taken = key.protocol != TCP || (*socket).state != LISTEN;
            bpf_sk_release(socket.cast());
            taken
        }
    }

    #[inline(always)]
    fn fragment(&self, fragment: &Fragment) -> Option<u32> {
        // SAFETY: the value is copied at once.
        unsafe { L4_FRAGMENTS.get(fragment) }.copied()
    }

    #[inline(always)]
    fn learn_fragment(&self, fragment: &Fragment, ports: u32) {
        let _ = L4_FRAGMENTS.insert(fragment, &ports, BPF_ANY);
    }

    #[inline(always)]
    fn tally(&self, service: u16, bytes: u32, direction: Direction) {
        count(L4_SERVICE_TALLY.get_ptr_mut(u32::from(service)), bytes, direction);
    }

    #[inline(always)]
    fn is_wanted(&self, at: PortBit) -> bool {
        L4_WANTED.get(at.word).is_some_and(|word| *word >> at.bit & 1 != 0)
    }

    #[inline(always)]
    fn way_back(&self) -> [u32; 3] {
        way_back(&self.view).unwrap_or_default()
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
        // SAFETY: values are not looked at.
        unsafe { L4_MACS.get(&mac).is_some() || L4_MACS.get(&ALL_MACS).is_none() }
    }

    #[inline(always)]
    fn arrival(&self) -> (u32, u16) {
        (self.ifindex, self.vlan)
    }

    #[inline(always)]
    fn largest(&self, seen: &Seen) -> u32 {
        if self.segment == 0 {
            seen.length
        } else {
            seen.l4 - seen.l3 + seen.header + self.segment
        }
    }
}

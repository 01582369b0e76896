//! Keys and values of the maps of layer-4 services.

use crate::cut::bits;

/// Slots of a table; prime.
pub const SLOTS: u32 = 65_537;
/// What a slot holds where no host may get a flow.
pub const NO_HOST: u16 = u16::MAX;
/// Most tables: services that share a cluster share one for each family.
pub const MAX_TABLES: u32 = 2048;
/// Most services.
pub const MAX_SERVICES: u32 = 1024;
/// Most addresses and ports that services listen on, each port of a range counted.
pub const MAX_TARGETS: u32 = 65_536;
/// Most hosts of all services together.
pub const MAX_HOSTS: u32 = 16_384;
/// Most ports of hosts that differ from the service's.
pub const MAX_PORTS: u32 = 65_536;
/// Most addresses that mode `nat` writes as the source.
pub const MAX_SOURCES: u32 = 16_384;
/// Connections that can be known at once, where nothing else is configured: two entries each.
pub const DEFAULT_FLOWS: u32 = 262_144;
/// Entries of flows that have just begun, or that only one side has said anything in: the oldest make room, so that a
/// flood of them costs no established one.
pub const MAX_OPENING: u32 = 131_072;
/// Datagrams whose first fragment has been seen.
pub const MAX_FRAGMENTS: u32 = 16_384;
/// Most Ethernet addresses of this machine.
pub const MAX_MACS: u32 = 4096;
/// A key among them, which says that all of them are there.
pub const ALL_MACS: u64 = 0;

/// Words of `L4_WANTED`: a bit for each port of TCP, then one for each of UDP.
pub const WANTED_WORDS: u32 = 2 * 65_536 / 64;

/// A port's bit in `L4_WANTED`. Most packets of a machine are no service's: this one load tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortBit {
    /// The word.
    pub word: u32,
    /// The bit in it.
    pub bit: u32,
}

impl PortBit {
    /// The bit of a port and protocol number.
    #[inline(always)]
    #[must_use]
    pub const fn new(port: u16, protocol: u8) -> Self {
        let half = if protocol == 6 { 0 } else { WANTED_WORDS / 2 };
        Self {
            word: half + (port >> 6) as u32,
            bit: (port & 63) as u32,
        }
    }

    /// The bit of a packet's destination.
    #[inline(always)]
    #[must_use]
    pub const fn of(key: &Key) -> Self {
        Self::new(key.ports as u16, key.protocol as u8)
    }
}

/// How packets get to a host.
pub mod mode {
    /// Source and destination are translated; the host's answers come back through us.
    pub const NAT: u8 = 0;
    /// The packet goes to the host's Ethernet address, otherwise as it is; the host answers the client itself.
    pub const DSR_L2: u8 = 1;
    /// The packet goes into an IPv4 or IPv6 tunnel to the host, which answers the client itself.
    pub const DSR_IPIP: u8 = 2;
}

/// What a service listens on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// Destination address, IPv4-mapped where it is IPv4, words in host order.
    pub address: [u32; 4],
    /// Destination port in the upper half, protocol number in the lower.
    pub port_protocol: u32,
}

impl Target {
    /// A target from an address, a port and a protocol number.
    #[inline(always)]
    #[must_use]
    pub const fn new(address: [u32; 4], port: u16, protocol: u8) -> Self {
        Self {
            address,
            port_protocol: (port as u32) << 16 | protocol as u32,
        }
    }
}

/// Bits of [`Service::flags`].
pub mod service {
    /// All flows of a source address go to the same host.
    pub const BY_SOURCE: u8 = 1;
    /// Some host has another port than the one listened on: `L4_PORTS` is to be asked.
    pub const HAS_PORTS: u8 = 2;
}

/// What is done with packets to a [`Target`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Its number, for counters and names.
    pub number: u16,
    /// One of [`mode`].
    pub mode: u8,
    /// Bits of [`service`].
    pub flags: u8,
    /// Its table's place in `L4_TABLES`.
    pub table: u32,
    /// Ticks without a packet after which a flow has ended.
    pub idle: u32,
}

/// A host, and how its packets get there. Userspace keeps the way up to date: it follows routes and neighbours.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// A field of the maps of feature `next_abi` alone, so that all others lie elsewhere.
    #[cfg(feature = "next_abi")]
    pub later: [u32; 4],
    /// Its address, IPv4-mapped where it is IPv4, words in host order.
    pub address: [u32; 4],
    /// Destination and source Ethernet addresses, as they stand in a header.
    pub macs: [u32; 3],
    /// The interface that packets leave by. 0: the next hop is not known.
    pub ifindex: u32,
    /// The interface below it, where that is one of a VLAN: what XDP sends by.
    pub port: u32,
    /// The VLAN's number; 0 for none.
    pub vlan: u16,
    /// Largest IP packet that gets there.
    pub mtu: u16,
    /// Its sources for mode `nat` in `L4_SOURCES`: the first, and how many.
    pub first_source: u32,
    /// See above; 0 for none.
    pub sources: u32,
}

/// What all services have in common.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// First port for mode `nat`, and how many there are.
    pub first_port: u32,
    /// See above.
    pub ports: u32,
    /// Ticks after which a flow that has only begun may be forgotten.
    pub opening: u32,
    /// IPv4 outer source of tunnels: the fixed bits, and which bits are not fixed.
    pub outer_v4: u32,
    /// See above.
    pub outer_v4_free: u32,
    /// IPv6 outer source: the first 96 bits. The last 32 vary.
    pub outer_v6: [u32; 3],
}

/// A packet's addresses, ports and protocol, as it arrives. All in host order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Key {
    /// Source address, IPv4-mapped where it is IPv4.
    pub source: [u32; 4],
    /// Destination address, the same.
    pub destination: [u32; 4],
    /// Source port in the upper half, destination port in the lower.
    pub ports: u32,
    /// Protocol number.
    pub protocol: u32,
}

impl Key {
    /// The key of packets that go the other way.
    #[inline(always)]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            ports: self.ports.rotate_left(16),
            protocol: self.protocol,
        }
    }
}

/// Bits of [`Flow::state`], which only packets of the flow's own direction set.
pub mod state {
    /// The direction is the host's.
    pub const REPLY: u16 = 1;
    /// The host has said something: its first packet has been seen.
    pub const ANSWERED: u16 = 2;
    /// The sender has sent its FIN.
    pub const FIN: u16 = 4;
    /// The sender has sent a reset.
    pub const RST: u16 = 8;
    /// Both sides have heard each other.
    pub const ESTABLISHED: u16 = 16;
    /// It is counted as a connection of its source no more.
    pub const PARTED: u16 = 32;
}

/// One direction of a flow: what becomes of its packets. A flow has one, and in mode `nat` a second for the answers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// A field of the maps of feature `next_abi` alone, so that all others lie elsewhere.
    #[cfg(feature = "next_abi")]
    pub later: [u64; 2],
    /// Source address to write (mode `nat`).
    pub source: [u32; 4],
    /// Destination address to write (mode `nat`).
    pub destination: [u32; 4],
    /// Ports to write, as in [`Key`] (mode `nat`).
    pub ports: u32,
    /// The host's place in `L4_HOSTS`.
    pub host: u32,
    /// The service's number.
    pub service: u16,
    /// One of [`mode`].
    pub mode: u8,
    /// Always zero.
    pub _pad: u8,
    /// Bits of [`state`].
    pub state: u16,
    /// VLAN of the client.
    pub vlan: u16,
    /// Tick of the last packet.
    pub seen: u32,
    /// Ticks without a packet after which it has ended.
    pub idle: u32,
    /// TCP: what the sender has acknowledged last.
    pub ack: u32,
    /// TCP, in the host's direction: the number that the client must acknowledge to show that it has heard the host.
    pub first: u32,
    /// The client's Ethernet address and ours, as they stand in a header of ours to it.
    pub macs: [u32; 3],
    /// The interface the client's packets come in by.
    pub ifindex: u32,
    /// Packets of this direction.
    pub packets: u32,
    /// Always zero.
    pub _pad2: u32,
    /// Bytes of their IP packets.
    pub bytes: u64,
}

impl Flow {
    /// Sets bits of [`Flow::state`], and takes none from another CPU that sets others at the same time.
    #[inline(always)]
    pub fn mark(&mut self, bits: u16) {
        // SAFETY: the word in which the state is the lower half (asserted below); the upper half is left as it is.
        let word = unsafe { &mut *(&raw mut *self).cast::<u32>().add(STATE / 4) };
        bits::set(word, u32::from(bits));
    }
}

/// Where the word of [`Flow::state`] begins.
const STATE: usize = core::mem::offset_of!(Flow, state);

/// Established flows whose hosts answer their clients themselves. That nobody can see: forged packets make such flows, too,
/// and so they get no more than a part of the table.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OneWay {
    /// How many there are: programs count those that come, userspace says now and then how many are left.
    pub flows: u64,
    /// How many there may be.
    pub most: u64,
}

/// Which datagram a fragment belongs to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// Source address.
    pub source: [u32; 4],
    /// Destination address.
    pub destination: [u32; 4],
    /// The datagram's number.
    pub id: u32,
    /// Protocol number.
    pub protocol: u32,
}

/// Counters of a service or a host, one for each CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Flows begun.
    pub flows: u64,
    /// Packets of clients.
    pub packets_in: u64,
    /// Bytes of clients.
    pub bytes_in: u64,
    /// Packets of hosts (mode `nat`).
    pub packets_out: u64,
    /// Bytes of hosts (mode `nat`).
    pub bytes_out: u64,
}

impl Tally {
    /// Both together.
    #[must_use]
    pub const fn and(self, other: &Self) -> Self {
        Self {
            flows: self.flows + other.flows,
            packets_in: self.packets_in + other.packets_in,
            bytes_in: self.bytes_in + other.bytes_in,
            packets_out: self.packets_out + other.packets_out,
            bytes_out: self.bytes_out + other.bytes_out,
        }
    }
}

const _: () = assert!(size_of::<Target>() == 20);
const _: () = assert!(size_of::<Service>() == 12);
const _: () = assert!(size_of::<Host>() == if cfg!(feature = "next_abi") { 64 } else { 48 });
const _: () = assert!(size_of::<Config>() == 32);
const _: () = assert!(size_of::<Key>() == 40);
// With the kernel's 48 bytes and the key, 184: its allocator's next size is 192 (`kernel/bpf/hashtab.c`).
const _: () = assert!(size_of::<Flow>() == if cfg!(feature = "next_abi") { 112 } else { 96 });
const _: () = assert!(STATE.is_multiple_of(4) && cfg!(target_endian = "little"));
const _: () = assert!(size_of::<OneWay>() == 16);
const _: () = assert!(size_of::<Fragment>() == 40);
const _: () = assert!(size_of::<Tally>() == 40);

macro_rules! pods {
    ($($name:ident)*) => {$(
        // SAFETY: repr(C), no implicit padding (the sizes are asserted above), every bit pattern is a valid value.
        #[cfg(feature = "user")]
        unsafe impl aya::Pod for $name {}
    )*};
}
pods!(Target Service Host Config Key Flow OneWay Fragment Tally);

crate::layout!(Key {
    source,
    destination,
    ports,
    protocol,
});

/// The layouts of [`Flow`] and [`Host`], with what another version has in front.
macro_rules! layouts {
    ($($front:ident)?) => {
        crate::layout!(Flow {
            $($front,)?
            source,
            destination,
            ports,
            host,
            service,
            mode,
            _pad,
            state,
            vlan,
            seen,
            idle,
            ack,
            first,
            macs,
            ifindex,
            packets,
            _pad2,
            bytes,
        });
        crate::layout!(Host {
            $($front,)?
            address,
            macs,
            ifindex,
            port,
            vlan,
            mtu,
            first_source,
            sources,
        });
    };
}
#[cfg(not(feature = "next_abi"))]
layouts!();
#[cfg(feature = "next_abi")]
layouts!(later);

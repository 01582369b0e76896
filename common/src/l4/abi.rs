//! Keys and values of the maps of layer-4 services.

use crate::net::atomic;

/// Slots of a table; prime.
pub const SLOTS: u32 = 65_537;
/// Value of a slot without a host: its flows are refused.
pub const NO_HOST: u16 = u16::MAX;
/// Most tables of slots: services that share a cluster share one for each family.
pub const MAX_TABLES: u32 = 2048;
/// Most layer-4 services.
pub const MAX_SERVICES: u32 = 1024;
/// Most addresses and ports that services listen on, each port of a range counted.
pub const MAX_TARGETS: u32 = 65_536;
/// Most hosts of all services together.
pub const MAX_HOSTS: u32 = 16_384;
/// Entries of `L4_HOST_PORTS`: ports of hosts that differ from the service's.
pub const MAX_HOST_PORTS: u32 = 65_536;
/// Most addresses that mode `nat` writes as the source.
pub const MAX_NAT_SOURCES: u32 = 16_384;
/// Connections that can be known at once, unless configured otherwise: two entries of `L4_CT_ESTABLISHED` each.
pub const DEFAULT_FLOWS: u32 = 262_144;
/// Entries of `L4_CT_HALF_OPEN`: flows that have just begun, or in which only one side has spoken. The oldest make
/// room, so that a flood of them costs no established flow.
pub const MAX_HALF_OPEN: u32 = 131_072;
/// Entries of `L4_FRAGMENTS`: datagrams whose first fragment has been seen.
pub const MAX_FRAGMENTS: u32 = 16_384;
/// Most Ethernet addresses of this machine.
pub const MAX_MACS: u32 = 4096;
/// Key in `L4_LOCAL_MACS` which says that all of this machine's addresses are in the map.
pub const ALL_MACS: u64 = 0;

/// Forwarding modes: how packets get to a host.
pub mod mode {
    /// Source and destination are translated; the host's answers come back through us.
    pub const NAT: u8 = 0;
    /// The packet goes to the host's Ethernet address, otherwise unchanged; the host answers the client itself.
    pub const DSR_L2: u8 = 1;
    /// The packet goes into an IPv4 or IPv6 tunnel to the host, which answers the client itself.
    pub const DSR_IPIP: u8 = 2;
}

/// Bits of [`Service::flags`].
pub mod service {
    /// All flows of a source address go to the same host.
    pub const BY_SOURCE: u8 = 1;
    /// Some host has another port than the one listened on: `L4_HOST_PORTS` must be looked up.
    pub const HAS_PORTS: u8 = 2;
}

/// Service that listens on a [`Target`](crate::net::Target): value of `L4_SERVICES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Number of the service, for counters and names.
    pub number: u16,
    /// How the service's packets reach their host, a constant of [`mode`].
    pub mode: u8,
    /// Bits of [`service`].
    pub flags: u8,
    /// Index of the service's table in `L4_TABLES`.
    pub table: u32,
    /// Ticks without a packet after which a flow has ended.
    pub idle_ticks: u32,
    /// Number of the group that the target's address moves with, from 1 on; 0 for an address that does not move.
    pub group: u32,
}

/// A host and its next hop, which userspace keeps up to date as routes and neighbours change: value of `L4_HOSTS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Field of the maps of feature `next_abi` alone: moves all others to other offsets.
    #[cfg(feature = "next_abi")]
    pub later: [u32; 4],
    /// Address of the host, IPv4-mapped where it is IPv4, words in host order.
    pub address: [u32; 4],
    /// Ethernet header towards the host: destination, then source.
    pub macs: [u32; 3],
    /// Interface by which packets leave. 0: the next hop is not known.
    pub ifindex: u32,
    /// Interface that XDP sends by: the lower one, where `ifindex` is a VLAN's.
    pub xdp_ifindex: u32,
    /// VLAN of `ifindex`; 0 for none.
    pub vlan: u16,
    /// Largest IP packet that gets to the host.
    pub mtu: u16,
    /// Index in `L4_NAT_SOURCES` of the first source address for mode `nat`.
    pub first_source: u32,
    /// Number of source addresses for mode `nat`, from `first_source` on; 0 for none. As many follow for each group of
    /// addresses that move, in turn: those of [`Service::group`] begin at `first_source + group * source_count`.
    pub source_count: u32,
}

/// Settings common to all services: the one element of `L4_CONFIG`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct L4Config {
    /// First source port for mode `nat`.
    pub first_port: u32,
    /// Number of source ports for mode `nat`, from `first_port` on.
    pub port_count: u32,
    /// First source port for mode `nat` at addresses that move between nodes.
    pub floating_first_port: u32,
    /// Number of such source ports, from `floating_first_port` on, `floating_port_step` apart.
    pub floating_port_count: u32,
    /// Number of nodes, which divide these ports among them.
    pub floating_port_step: u32,
    /// Ticks without a packet after which a flow that has only begun may lose its source port.
    pub half_open_ticks: u32,
    /// Fixed bits of the outer IPv4 source address of tunnels.
    pub outer_v4: u32,
    /// Mask of the bits of the outer IPv4 source address that vary with the flow.
    pub outer_v4_flow_mask: u32,
    /// First 96 bits of the outer IPv6 source address of tunnels. The last 32 vary with the flow.
    pub outer_v6: [u32; 3],
}

/// Bits of [`L4Flow::state`], set by packets of the flow's own direction alone.
pub mod state {
    /// The entry is the host's direction.
    pub const REPLY: u16 = 1;
    /// The host's direction has seen its first packet.
    pub const ANSWERED: u16 = 2;
    /// The sender has sent its FIN.
    pub const FIN: u16 = 4;
    /// The sender has sent a reset.
    pub const RST: u16 = 8;
    /// Routers may fragment the direction's packets of IPv4: its way has a smaller MTU.
    pub const MAY_BE_FRAGMENTED: u16 = 16;
    /// The shield no longer counts the flow as a connection of its source.
    pub const CONN_CLOSED: u16 = 32;
}

/// One direction of a flow and what becomes of its packets: value of the flow tables. In mode `nat` a second entry
/// stands for the replies.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct L4Flow {
    /// Field of the maps of feature `next_abi` alone: moves all others to other offsets.
    #[cfg(feature = "next_abi")]
    pub later: [u64; 2],
    /// Source address to write (mode `nat`).
    pub source: [u32; 4],
    /// Destination address to write (mode `nat`).
    pub destination: [u32; 4],
    /// Ports to write, as in [`crate::net::Key`] (mode `nat`).
    pub ports: u32,
    /// Index of the host in `L4_HOSTS`.
    pub host: u32,
    /// Number of the service.
    pub service: u16,
    /// How the service's packets reach their host, a constant of [`mode`].
    pub mode: u8,
    /// Always zero.
    pub _pad: u8,
    /// Bits of [`state`].
    pub state: u16,
    /// VLAN of the client.
    pub vlan: u16,
    /// Tick of the last packet.
    pub last_seen: u32,
    /// Ticks without a packet after which the direction has ended.
    pub idle_ticks: u32,
    /// TCP: last acknowledgement number of the sender.
    pub ack: u32,
    /// TCP, in the host's direction: the number that the client must acknowledge to show that it has heard the host.
    pub first_reply_ack: u32,
    /// Ethernet header towards the client: destination, then source.
    pub macs: [u32; 3],
    /// Interface by which the client's packets come in.
    pub ifindex: u32,
    /// Packets of this direction.
    pub packets: u32,
    /// Always zero.
    pub _pad2: u32,
    /// Bytes of this direction's IP packets.
    pub bytes: u64,
}

impl L4Flow {
    /// Sets bits of [`L4Flow::state`], and takes none from another CPU that sets others at the same time.
    #[inline(always)]
    pub fn set_state(&mut self, bits: u16) {
        // SAFETY: the word in which the state is the lower half (asserted below); the upper half is left as it is.
        let word = unsafe { &mut *(&raw mut *self).cast::<u32>().add(STATE / 4) };
        atomic::set(word, u32::from(bits));
    }
}

/// Offset of [`L4Flow::state`], where its 32-bit word begins.
const STATE: usize = core::mem::offset_of!(L4Flow, state);

/// Established flows of direct server return (DSR): the one element of `L4_DSR_QUOTA`. Replies bypass the balancer, so
/// forged packets can create such flows: they get no more than a part of the table.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DsrQuota {
    /// Number of such flows: programs count new ones, userspace corrects it now and then.
    pub flows: u64,
    /// Most such flows.
    pub max_flows: u64,
}

/// Datagram that a fragment belongs to: key of `L4_FRAGMENTS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// Source address.
    pub source: [u32; 4],
    /// Destination address.
    pub destination: [u32; 4],
    /// Identification of the datagram.
    pub id: u32,
    /// Protocol number.
    pub protocol: u32,
}

/// Counters of a service, one for each CPU: value of `L4_SERVICE_STATS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceStats {
    /// New flows.
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

impl ServiceStats {
    /// Sum of two counters' values.
    #[must_use]
    pub const fn plus(self, other: &Self) -> Self {
        Self {
            flows: self.flows + other.flows,
            packets_in: self.packets_in + other.packets_in,
            bytes_in: self.bytes_in + other.bytes_in,
            packets_out: self.packets_out + other.packets_out,
            bytes_out: self.bytes_out + other.bytes_out,
        }
    }
}

const _: () = assert!(size_of::<Service>() == 16);
const _: () = assert!(size_of::<Host>() == if cfg!(feature = "next_abi") { 64 } else { 48 });
const _: () = assert!(size_of::<L4Config>() == 44);
// With the kernel's 48 bytes and the key, 184: its allocator's next size is 192 (`kernel/bpf/hashtab.c`).
const _: () = assert!(size_of::<L4Flow>() == if cfg!(feature = "next_abi") { 112 } else { 96 });
const _: () = assert!(STATE.is_multiple_of(4) && cfg!(target_endian = "little"));
const _: () = assert!(size_of::<DsrQuota>() == 16);
const _: () = assert!(size_of::<Fragment>() == 40);
const _: () = assert!(size_of::<ServiceStats>() == 40);

macro_rules! pods {
    ($($name:ident)*) => {$(
        // SAFETY: repr(C), no implicit padding (the sizes are asserted above), every bit pattern is a valid value.
        #[cfg(feature = "user")]
        unsafe impl aya::Pod for $name {}
    )*};
}
pods!(Service Host L4Config L4Flow DsrQuota Fragment ServiceStats);

/// Gives [`L4Flow`] and [`Host`] their layouts; `front` is the field that feature `next_abi` puts first.
macro_rules! layouts {
    ($($front:ident)?) => {
        crate::layout!(L4Flow {
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
            last_seen,
            idle_ticks,
            ack,
            first_reply_ack,
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
            xdp_ifindex,
            vlan,
            mtu,
            first_source,
            source_count,
        });
    };
}
#[cfg(not(feature = "next_abi"))]
layouts!();
#[cfg(feature = "next_abi")]
layouts!(later);

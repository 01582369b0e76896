//! A packet of tier `cut` at a TC hook: the packets of this machine's sockets, addresses of both families, its time.

use aya_ebpf::{
    helpers::{bpf_ktime_get_ns, bpf_skb_store_bytes},
    programs::TcContext,
};
use signalbox_common::net::{Buffer, Tuple};

/// Clock of `CutFlow::started` and the other ticks of a flow.
pub use crate::clock::tick;
pub use crate::packet_view::{IPV4, IPV6, PacketView, context_field};
use crate::packet_view::{hide_from_compiler, hide_from_verifier};

/// `__sk_buff::protocol` of ARP, as [`IPV4`] is.
pub const ARP: u32 = 0x0806_u16.to_be() as u32;
pub const ETH_HEADER: u32 = 14;
pub const TCP: u8 = 6;

/// Nanoseconds of `CLOCK_MONOTONIC`.
#[inline(always)]
pub fn monotonic_ns() -> u64 {
    // SAFETY: reads a clock.
    unsafe { bpf_ktime_get_ns() }
}

/// Milliseconds of `CLOCK_MONOTONIC`, for TCP timestamps. They are exact: the receiver refuses a clock that runs back
/// by more than one of them (PAWS).
#[inline(always)]
pub fn monotonic_ms() -> u32 {
    (monotonic_ns() / 1_000_000) as u32
}

/// Access to a packet that this machine sends. Its buffer is nearly always shared with the socket that may send it
/// again. A program that writes in place would make the kernel copy each buffer, so this type writes by a helper, for
/// the few packets that are edited.
pub struct SocketPacket<'a>(pub &'a TcContext);

impl SocketPacket<'_> {
    #[inline(always)]
    fn store<T>(&self, at: u32, value: T) -> Option<()> {
        let len = size_of::<T>() as u32;
        // SAFETY: the helper reads the value and checks the offset.
        let ret = unsafe { bpf_skb_store_bytes(self.0.skb.skb, at, (&raw const value).cast(), len, 0) };
        (ret == 0).then_some(())
    }
}

impl Buffer for SocketPacket<'_> {
    type Loop = crate::PacketLoop;

    #[inline(always)]
    fn hide_from_verifier(&self, value: u32) -> u32 {
        hide_from_verifier(value, context_field(self.0, |skb| unsafe { &raw const (*skb).len }))
    }

    #[inline(always)]
    fn hide_from_compiler(&self, value: u32) -> u32 {
        hide_from_compiler(value)
    }

    #[inline(always)]
    fn u8(&self, at: u32) -> Option<u8> {
        PacketView::current(self.0).u8(at)
    }

    #[inline(always)]
    fn u16(&self, at: u32) -> Option<u16> {
        PacketView::current(self.0).u16(at)
    }

    #[inline(always)]
    fn u32(&self, at: u32) -> Option<u32> {
        PacketView::current(self.0).u32(at)
    }

    #[inline(always)]
    fn set_u8(&mut self, at: u32, value: u8) -> Option<()> {
        self.store(at, value)
    }

    #[inline(always)]
    fn set_u16(&mut self, at: u32, value: u16) -> Option<()> {
        self.store(at, value.to_be())
    }

    #[inline(always)]
    fn set_u32(&mut self, at: u32, value: u32) -> Option<()> {
        self.store(at, value.to_be())
    }
}

/// Differences between IPv4 and IPv6. Offsets are from the beginning of the frame.
pub trait Family {
    /// Offset of the TCP header, in a packet without options or extension headers.
    const TCP: u32;
    const VERSION: u8;
    /// Offset of the hop limit (TTL).
    const HOPS: u32;
    const ADDRESS_FAMILY: u8;
    /// Offset of the protocol (next header).
    const PROTOCOL: u32;
    const ICMP: u8;
    /// Number of an address's four words that the packet has; below, the offset of the source address.
    const ADDRESS_WORDS: usize;
    const SOURCE: u32;

    /// Length of the IP packet's payload, as its header says; `None` where the packet of `len` bytes is shorter.
    fn payload_length<B: Buffer>(packet: &B, len: u32) -> Option<u32>;
}

pub struct V4;
pub struct V6;

impl Family for V4 {
    const TCP: u32 = ETH_HEADER + 20;
    const VERSION: u8 = 4;
    const HOPS: u32 = ETH_HEADER + 8;
    const ADDRESS_FAMILY: u8 = 2;
    const PROTOCOL: u32 = ETH_HEADER + 9;
    const ICMP: u8 = 1;
    const ADDRESS_WORDS: usize = 1;
    const SOURCE: u32 = ETH_HEADER + 12;

    #[inline(always)]
    fn payload_length<B: Buffer>(packet: &B, len: u32) -> Option<u32> {
        // 0 in a super-packet of more than 64 KiB (BIG TCP, kernel 6.3+). Elsewhere the packet may be padded.
        let total = u32::from(packet.u16(ETH_HEADER + 2)?);
        let there = len.wrapping_sub(Self::TCP);
        let said = if total == 0 { there } else { total.wrapping_sub(20) };
        (said <= there).then_some(said)
    }
}

impl Family for V6 {
    const TCP: u32 = ETH_HEADER + 40;
    const VERSION: u8 = 6;
    const HOPS: u32 = ETH_HEADER + 7;
    const ADDRESS_FAMILY: u8 = 10;
    const PROTOCOL: u32 = ETH_HEADER + 6;
    const ICMP: u8 = 58;
    const ADDRESS_WORDS: usize = 4;
    const SOURCE: u32 = ETH_HEADER + 8;

    #[inline(always)]
    fn payload_length<B: Buffer>(packet: &B, len: u32) -> Option<u32> {
        let payload = u32::from(packet.u16(ETH_HEADER + 4)?);
        let there = len.wrapping_sub(Self::TCP);
        let said = if payload == 0 { there } else { payload };
        (said <= there).then_some(said)
    }
}

/// Reads the address at offset `at`.
#[inline(always)]
pub fn read_address<F: Family, B: Buffer>(packet: &B, at: u32) -> Option<[u32; 4]> {
    if F::ADDRESS_WORDS == 1 {
        Some(Tuple::mapped(packet.u32(at)?))
    } else {
        Some([
            packet.u32(at)?,
            packet.u32(at + 4)?,
            packet.u32(at + 8)?,
            packet.u32(at + 12)?,
        ])
    }
}

/// Reads the tuple of a packet whose ports are at offset `ports`.
#[inline(always)]
pub fn read_tuple<F: Family, B: Buffer>(packet: &B, ports: u32) -> Option<Tuple> {
    let length = 4 * F::ADDRESS_WORDS as u32;
    Some(Tuple {
        source: read_address::<F, B>(packet, F::SOURCE)?,
        destination: read_address::<F, B>(packet, F::SOURCE + length)?,
        ports: packet.u32(ports)?,
    })
}

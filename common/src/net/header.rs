//! The fixed part of a TCP header (RFC 9293, section 3.1).

use super::Buffer;

/// Control bit: the sender has no more data.
pub const FIN: u8 = 0x01;
/// Control bit: opens a connection.
pub const SYN: u8 = 0x02;
/// Control bit: resets the connection.
pub const RST: u8 = 0x04;
/// Control bit: the receiver need not wait for more.
pub const PSH: u8 = 0x08;
/// Control bit: the acknowledgement number is valid.
pub const ACK: u8 = 0x10;
/// Control bit: the urgent pointer is valid.
pub const URG: u8 = 0x20;
/// Control bit: ECN echo.
pub const ECE: u8 = 0x40;
/// Control bit: congestion window reduced.
pub const CWR: u8 = 0x80;

/// Offset of the sequence number.
pub const AT_SEQ: u32 = 4;
/// Offset of the acknowledgement number.
pub const AT_ACK: u32 = 8;
/// Offset of the byte whose upper four bits are the header length.
pub const AT_LENGTH: u32 = 12;
/// Offset of the control bits.
pub const AT_FLAGS: u32 = 13;
/// Offset of the window.
pub const AT_WINDOW: u32 = 14;
/// Offset of the checksum.
pub const AT_CHECKSUM: u32 = 16;
/// Length of the header without options.
pub const TCP_HEADER: u32 = 20;

/// Fields of a TCP header, in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tcp {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
    /// Sequence number of the first byte.
    pub seq: u32,
    /// Next byte expected, where the ACK bit is set.
    pub ack: u32,
    /// Length of the header, 20 to 60.
    pub length: u32,
    /// Control bits.
    pub flags: u8,
    /// Window, unscaled.
    pub window: u16,
}

impl Tcp {
    /// Reads the header at `at`.
    #[inline(always)]
    pub fn read<B: Buffer + ?Sized>(packet: &B, at: u32) -> Option<Self> {
        // The last field first: one check against the packet's end does for all.
        let window = packet.u16(at + AT_WINDOW)?;
        let length = u32::from(packet.u8(at + AT_LENGTH)? >> 4) * 4;
        if length < TCP_HEADER {
            return None;
        }
        Some(Self {
            source: packet.u16(at)?,
            destination: packet.u16(at + 2)?,
            seq: packet.u32(at + AT_SEQ)?,
            ack: packet.u32(at + AT_ACK)?,
            length,
            flags: packet.u8(at + AT_FLAGS)?,
            window,
        })
    }

    /// Whether all control bits in `bits` are set.
    #[inline(always)]
    #[must_use]
    pub const fn has(&self, bits: u8) -> bool {
        self.flags & bits == bits
    }

    /// Sequence number after the packet's last byte, SYN and FIN included.
    #[inline(always)]
    #[must_use]
    pub const fn end(&self, payload: u32) -> u32 {
        let fin = (self.flags & FIN) as u32;
        let syn = ((self.flags & SYN) >> 1) as u32;
        self.seq.wrapping_add(payload).wrapping_add(fin).wrapping_add(syn)
    }
}

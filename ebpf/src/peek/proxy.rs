//! The PROXY header of a connection, version 2 (haproxy.org, doc/proxy-protocol.txt, section 2.2): written in front of the
//! client's first data, from what the flow's entries have. So it can be written again when it was lost.

use signalbox_common::{
    cut::CutFlow,
    net::bounded_loop::{BoundedLoop as _, Round},
    peek::{
        abi::{HEAD_ROOM, PeekAbout, PeekName, PeekPayload},
        name::MAX_NAME_BYTES,
        proxy::{
            CRC_BYTES, CRC32C_START, ConnectionId, FIXED_BYTES, ID_BYTES, TLV_BYTES, crc32c_step, header_length,
            hex_digits, part,
        },
    },
};

use super::{
    frame::bounded,
    kernel_loop::KernelLoop,
    maps::{PEEK_READING, about},
    settings::config,
};
use crate::{cut::skb::Family, packet_view::hide_from_compiler};

const PP2_TYPE_AUTHORITY: u32 = 2;
const PP2_TYPE_CRC32C: u32 = 3;
const PP2_TYPE_UNIQUE_ID: u32 = 5;

/// Words of a name, and the offset of its text.
const NAME_WORDS: usize = size_of::<PeekName>() / 4;
const TEXT_OFFSET: u32 = core::mem::offset_of!(PeekName, text) as u32;

/// Bytes of the addresses and ports.
#[inline(always)]
pub const fn address_bytes<F: Family>() -> u32 {
    if F::VERSION == 4 { 12 } else { 36 }
}

/// Writes a flow's header in front of the bytes of a payload, if its host gets one. `index`: of the flow. 0 where that is not
/// possible. Its parts are functions of their own: the stack has no room for all of them at once.
#[inline(always)]
pub fn prepend<F: Family>(payload: &mut PeekPayload, flow: &CutFlow, index: u32) -> u32 {
    let length = flow.handoff_end.wrapping_sub(flow.isn_b);
    if length == 0 {
        return 1;
    }
    let Some(about) = about_of(flow, index) else {
        return 0;
    };
    let is_written = length == write_addresses::<F>(payload, flow, about)
        && write_tlvs(payload, flow, index, about) != 0
        && (about.parts & part::CRC32C == 0 || write_checksum(payload, about, length) != 0);
    is_written.into()
}

/// Facts beside a flow's entry.
#[inline(always)]
fn about_of(flow: &CutFlow, index: u32) -> Option<&'static PeekAbout> {
    let about = about(config()?, index)?;
    // SAFETY: the element of a flow, of which numbers and bytes are read. Another program's flow has begun at another tick.
    let about = unsafe { &*about };
    (about.started == flow.started).then_some(about)
}

/// Writes the fixed part and the addresses. Returns the length of the whole header, or 0.
#[inline(never)]
fn write_addresses<F: Family>(payload: &mut PeekPayload, flow: &CutFlow, about: &PeekAbout) -> u32 {
    try_write_addresses::<F>(payload, flow, about).unwrap_or(0)
}

#[inline(always)]
fn try_write_addresses<F: Family>(payload: &mut PeekPayload, flow: &CutFlow, about: &PeekAbout) -> Option<u32> {
    let reading = PEEK_READING.get_ptr_mut(0)?;
    // SAFETY: this CPU's element.
    let reading = unsafe { &mut *reading };
    let length = header_length(about.parts, address_bytes::<F>(), about.name.length.into());
    let length = bounded(length, 255, HEAD_ROOM as u32 - 1)?;
    let words = &mut reading.proxy;
    words[0] = 0x0d0a_0d0a_u32.to_be();
    words[1] = 0x000d_0a51_u32.to_be();
    words[2] = 0x5549_540a_u32.to_be();
    // Version 2, PROXY; TCP over IPv4 or IPv6.
    words[3] = (if F::VERSION == 4 { 0x2111_0000 } else { 0x2121_0000 } | length - FIXED_BYTES).to_be();
    let start = after_head() - length;
    if F::VERSION == 4 {
        words[4] = flow.client[3].to_be();
        words[5] = flow.vip[3].to_be();
        words[6] = flow.ports_a.to_be();
        put(payload, start, reading.proxy.first_chunk::<7>()?);
    } else {
        let mut i = 0;
        while i < 4 {
            words[4 + i] = flow.client[i].to_be();
            words[8 + i] = flow.vip[i].to_be();
            i += 1;
        }
        words[12] = flow.ports_a.to_be();
        put(payload, start, &reading.proxy);
    }
    Some(length)
}

/// Writes the TLVs, from the first one to the last. Bytes that a copy by words writes after the end of its TLV are written
/// again by the next one, and those of the payload are saved. Returns 0 if the header is not written.
#[inline(never)]
fn write_tlvs(payload: &mut PeekPayload, flow: &CutFlow, index: u32, about: &PeekAbout) -> u32 {
    try_write_tlvs(payload, flow, index, about).is_some().into()
}

#[inline(always)]
fn try_write_tlvs(payload: &mut PeekPayload, flow: &CutFlow, index: u32, about: &PeekAbout) -> Option<()> {
    let id = ConnectionId::of_flow(config()?.id_seed, flow.started, index);
    let length = bounded(
        header_length(about.parts, 0, about.name.length.into()),
        255,
        HEAD_ROOM as u32 - 1,
    )?;
    let reading = PEEK_READING.get_ptr_mut(0)?;
    // SAFETY: this CPU's element.
    let reading = unsafe { &mut *reading };
    let data = payload.from_head(HEAD_ROOM as u32).cast::<u32>();
    copy(reading.saved.as_mut_ptr(), data);
    let mut at = after_head() - (length - FIXED_BYTES);
    if about.parts & part::UNIQUE_ID != 0 {
        put(payload, at, &[tlv(PP2_TYPE_UNIQUE_ID, ID_BYTES, 0)]);
        at += TLV_BYTES;
        let halves = [
            (id.seed >> 32) as u32,
            id.seed as u32,
            (id.number >> 32) as u32,
            id.number as u32,
        ];
        let mut i = 0;
        while i < halves.len() {
            let digits = hex_digits(halves[i]);
            put(payload, at, &[((digits >> 32) as u32).to_be(), (digits as u32).to_be()]);
            at += 8;
            i += 1;
        }
    }
    if about.parts & part::CRC32C != 0 {
        // Zero, as the checksum is of a header with zeros in its place.
        put(payload, at, &[tlv(PP2_TYPE_CRC32C, CRC_BYTES, 0), 0]);
        at += TLV_BYTES + CRC_BYTES;
    }
    if about.parts & part::AUTHORITY != 0 {
        let name = 1 + bounded(
            u32::from(about.name.length).wrapping_sub(1),
            63,
            MAX_NAME_BYTES as u32 - 1,
        )?;
        // SAFETY: a name is a whole number of aligned words (asserted in `common`).
        let source = unsafe { &*core::ptr::from_ref(&about.name).cast::<[u32; NAME_WORDS]>() };
        // The whole name, with two bytes before its text and a filler after it.
        put(payload, at + TLV_BYTES - TEXT_OFFSET, source);
        put(payload, at, &[tlv(PP2_TYPE_AUTHORITY, name, about.name.text[0])]);
    }
    copy(data, reading.saved.as_ptr());
    Some(())
}

/// Type and length of a TLV, and the first byte of its value.
#[inline(always)]
const fn tlv(kind: u32, length: u32, first: u8) -> u32 {
    (kind << 24 | length << 8 | first as u32).to_be()
}

/// Offset of the payload's first byte. Hidden, or the compiler would subtract from nothing: older verifiers do not follow
/// that.
#[inline(always)]
fn after_head() -> u32 {
    hide_from_compiler(HEAD_ROOM as u32)
}

/// Writes the checksum of a header.
#[inline(never)]
fn write_checksum(payload: &mut PeekPayload, about: &PeekAbout, length: u32) -> u32 {
    let length = length & (HEAD_ROOM as u32 - 1);
    let mut sum = HeaderSum {
        payload: core::ptr::from_mut(payload),
        at: after_head() - length,
        crc: CRC32C_START,
    };
    KernelLoop::repeat(length, &mut sum);
    let authority = header_length(
        about.parts & (part::HEADER | part::AUTHORITY),
        0,
        about.name.length.into(),
    );
    let at = after_head() - (authority - FIXED_BYTES) - CRC_BYTES;
    put(payload, at, &[(!sum.crc).to_be()]);
    1
}

/// Checksum of a header, byte by byte.
struct HeaderSum {
    payload: *mut PeekPayload,
    at: u32,
    crc: u32,
}

impl Round for HeaderSum {
    #[inline(always)]
    fn round(&mut self) -> bool {
        let at = hide_from_compiler(self.at) & (HEAD_ROOM as u32 - 1);
        // SAFETY: the payload of the function that counts, and a byte of its head.
        let byte = unsafe { (*self.payload).from_head(at).read() };
        self.crc = hide_from_compiler(crc32c_step(self.crc, byte));
        self.at = hide_from_compiler(self.at + 1);
        true
    }
}

/// Copies as many words as a name has. Volatile, or the compiler would keep all of them on the stack.
#[inline(always)]
fn copy(to: *mut u32, from: *const u32) {
    let mut i = 0;
    while i < NAME_WORDS {
        // SAFETY: both have as many aligned words.
        unsafe { to.add(i).write_volatile(from.add(i).read_volatile()) };
        i += 1;
    }
}

/// Writes words at any offset of the head, in network order already.
#[inline(always)]
fn put<const N: usize>(payload: &mut PeekPayload, at: u32, words: &[u32; N]) {
    // The mask gives the verifier the bound.
    let to = payload
        .from_head(hide_from_compiler(at) & (HEAD_ROOM as u32 - 1))
        .cast::<u32>();
    let mut i = 0;
    while i < N {
        // SAFETY: words that begin in the head end in it, or in the bytes after it, which are restored.
        unsafe { to.add(i).write_unaligned(words[i]) };
        i += 1;
    }
}

//! The PROXY header of a connection, version 2 (haproxy.org, doc/proxy-protocol.txt, section 2.2): written in front of the
//! client's first data, from what the flow's entries have. So it can be written again when it was lost.

use signalbox_common::{
    cut::CutFlow,
    peek::{
        abi::{HEAD_ROOM, PeekAbout, PeekName, PeekPayload},
        name::MAX_NAME_BYTES,
    },
};

use super::{frame::bounded, maps::PEEK_READING};
use crate::{cut::skb::Family, packet_view::hide_from_compiler};

/// Bytes before the addresses: signature, version and command, family, length.
const FIXED_BYTES: u32 = 16;
/// Bytes before the value of `PP2_TYPE_AUTHORITY`: type and length.
const TLV_BYTES: u32 = 3;

/// Words of a name, and the offset of its text.
const NAME_WORDS: usize = size_of::<PeekName>() / 4;
const TEXT_OFFSET: u32 = core::mem::offset_of!(PeekName, text) as u32;

/// Bytes of the addresses and ports.
const fn address_bytes<F: Family>() -> u32 {
    if F::VERSION == 4 { 12 } else { 36 }
}

/// Length of the header of a connection for a name of a length.
#[inline(always)]
pub const fn header_length<F: Family>(name_length: u8) -> u32 {
    FIXED_BYTES + address_bytes::<F>() + TLV_BYTES + name_length as u32
}

/// Writes the header of a flow in front of the bytes of a payload. Returns its length, or 0 if it is not written.
#[inline(always)]
pub fn write_header<F: Family>(payload: &mut PeekPayload, flow: &CutFlow, about: &PeekAbout) -> u32 {
    try_write_header::<F>(payload, flow, about).unwrap_or(0)
}

#[inline(always)]
fn try_write_header<F: Family>(payload: &mut PeekPayload, flow: &CutFlow, about: &PeekAbout) -> Option<u32> {
    let reading = PEEK_READING.get_ptr_mut(0)?;
    // SAFETY: this CPU's element.
    let reading = unsafe { &mut *reading };
    let name = 1 + bounded(
        u32::from(about.name.length).wrapping_sub(1),
        63,
        MAX_NAME_BYTES as u32 - 1,
    )?;
    let before_name = FIXED_BYTES + address_bytes::<F>() + TLV_BYTES;
    let length = address_bytes::<F>() + TLV_BYTES + name;
    // The last byte of these words is the first one of the name.
    let authority = 0x0200_0000 | name << 8 | u32::from(about.name.text[0]);
    let words = &mut reading.proxy;
    words[0] = 0x0d0a_0d0a_u32.to_be();
    words[1] = 0x000d_0a51_u32.to_be();
    words[2] = 0x5549_540a_u32.to_be();
    // Version 2, PROXY; TCP over IPv4 or IPv6.
    words[3] = (if F::VERSION == 4 { 0x2111_0000 } else { 0x2121_0000 } | length).to_be();
    if F::VERSION == 4 {
        words[4] = flow.client[3].to_be();
        words[5] = flow.vip[3].to_be();
        words[6] = flow.ports_a.to_be();
        words[7] = authority.to_be();
    } else {
        let mut i = 0;
        while i < 4 {
            words[4 + i] = flow.client[i].to_be();
            words[8 + i] = flow.vip[i].to_be();
            i += 1;
        }
        words[12] = flow.ports_a.to_be();
        words[13] = authority.to_be();
    }
    let data = payload.from_head(HEAD_ROOM as u32).cast::<u32>();
    copy(reading.saved.as_mut_ptr(), data);
    // SAFETY: a name is a whole number of aligned words (asserted in `common`).
    let source = unsafe { &*core::ptr::from_ref(&about.name).cast::<[u32; NAME_WORDS]>() };
    // Hidden, or the compiler would subtract it from nothing: older verifiers do not follow that.
    let end = hide_from_compiler(HEAD_ROOM as u32);
    // The whole name, with two bytes before its text and a filler after it: what lies around it is written after it.
    put(payload, end - name - TEXT_OFFSET, source);
    let start = end - name - before_name;
    if F::VERSION == 4 {
        put(payload, start, reading.proxy.first_chunk::<8>()?);
    } else {
        put(payload, start, &reading.proxy);
    }
    copy(data, reading.saved.as_ptr());
    Some(before_name + name)
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

/// Writes words at any offset of the head.
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

//! XDP program `l4_xdp`: changes a packet in place, and sends it from there.

use aya_ebpf::{
    EbpfContext as _,
    bindings::{
        xdp_action::{XDP_DROP, XDP_PASS, XDP_TX},
        xdp_md,
    },
    helpers::{bpf_csum_diff, bpf_redirect, bpf_xdp_adjust_head, bpf_xdp_adjust_tail},
    programs::XdpContext,
};
use signalbox_common::{
    Reason,
    l4::{
        FastPath, PacketScratch, forward,
        parse::{class, fast_path, parse_and_admit},
        verdict::{Action, Verdict},
    },
    net::{Buffer, Diff, ParsedHeaders, SendInfo, ip::UDP, packet::NOT_FRAGMENTED, too_big},
    parts::SERVICES,
};

use super::maps::{BpfMaps, scratch};
use crate::{
    count::count,
    frame::{ETH_HEADER, IPV4, IPV6, SERVICE_VLAN, VLAN, VLAN_TAG, ethertype, outer_v4, outer_v6, reply_macs},
    packet_view::{PacketView, hide_from_compiler},
    parts,
    shield::maps::odd_priority_tag,
};

/// The XDP program. Declared by hand and not by `#[xdp]`, which would call it from another function: a return costs as
/// much as reading the headers, where the kernel guards returns against speculation.
#[unsafe(no_mangle)]
#[unsafe(link_section = "xdp")]
pub extern "C" fn l4_xdp(ctx: *mut xdp_md) -> u32 {
    let ctx = XdpContext::new(ctx);
    let (verdict, l2, s) = decide(&ctx);
    count(verdict.reason());
    if verdict.action() == Action::Pass as u32 {
        return XDP_PASS;
    }
    if verdict.action() == Action::Drop as u32 {
        return XDP_DROP;
    }
    let Some(s) = s else { return XDP_DROP };
    if verdict.action() == Action::Send as u32 {
        send(&ctx, s, l2)
    } else if verdict.action() == Action::TooBig as u32 {
        send_too_big(&ctx, s, l2).unwrap_or(XDP_DROP)
    } else {
        XDP_DROP
    }
}

#[inline(always)]
fn current_view(ctx: &XdpContext) -> PacketView {
    let (data, end) = (ctx.data(), ctx.data_end());
    PacketView::from_bounds(data, end, (end - data) as u32)
}

#[inline(always)]
fn decide(ctx: &XdpContext) -> (Verdict, u32, Option<&'static mut PacketScratch>) {
    let miss = (Verdict::new(Reason::L4Miss, Action::Pass), 0, None);
    let mut view = current_view(ctx);
    let Some(kind) = view.u16(12) else {
        return miss;
    };
    let mut maps = BpfMaps {
        ctx: ctx.as_ptr(),
        // SAFETY: a field of the context that the kernel gave for the time of the call.
        ifindex: unsafe { (&raw const (*ctx.ctx).ingress_ifindex).read_volatile() },
        vlan: 0,
        is_for_us: false,
        view,
        segment_payload: 0,
        frame: (ctx.data_end() - ctx.data()) as u32,
    };
    let (version, l2, fast_path) = if kind == IPV4 {
        (4, ETH_HEADER, fast_path(&view, &maps, ETH_HEADER))
    } else if kind == IPV6 {
        (6, ETH_HEADER, FastPath::SLOW_PATH)
    } else if kind == VLAN {
        core::hint::cold_path();
        let (Some(tag), Some(inner)) = (view.u16(14), view.u16(16)) else {
            return miss;
        };
        maps.vlan = tag & 0xfff;
        match inner {
            IPV4 => (4, ETH_HEADER + VLAN_TAG, fast_path(&view, &maps, ETH_HEADER + VLAN_TAG)),
            IPV6 => (6, ETH_HEADER + VLAN_TAG, FastPath::SLOW_PATH),
            _ if maps.vlan == 0 => return (odd_priority_tag(), 0, None),
            _ => return miss,
        }
    } else if kind == SERVICE_VLAN && view.u16(14).is_some_and(|tag| tag & 0xfff == 0) {
        return (odd_priority_tag(), 0, None);
    } else {
        return miss;
    };
    if fast_path.class == class::DECIDED {
        return (fast_path.verdict, l2, None);
    }
    let Some(s) = scratch() else { return miss };
    // From here on the verifier must know nothing of the packet except the content of `s`: so it checks the rest of the
    // program once, and not again for every kind of headers. Also below.
    let l2 = view.hide_from_verifier(l2) & 0x1f;
    if let Some(verdict) = parse_and_admit(&mut view, &maps, l2, version, fast_path, s) {
        return (verdict, l2, Some(s));
    }
    if !parts::has(SERVICES) {
        return miss;
    }
    let l2 = view.hide_from_verifier(l2) & 0x1f;
    maps.view = self::current_view(ctx);
    let mut view = maps.view;
    (forward(&mut view, &maps, s), l2, Some(s))
}

/// Sends the packet, whose Ethernet header has `l2` bytes.
#[inline(always)]
fn send(ctx: &XdpContext, s: &mut PacketScratch, l2: u32) -> u32 {
    let (seen, out) = (&s.seen, &s.out);
    if out.checksum_offset != 0 {
        let mut packet = current_view(ctx);
        if update_checksum(&mut packet, ctx, seen, out).is_none() {
            return XDP_DROP;
        }
    }
    let tunnel = match out.tunnel {
        4 => 20,
        6 => 40,
        _ => 0,
    };
    let wanted = if out.vlan == 0 {
        ETH_HEADER
    } else {
        ETH_HEADER + VLAN_TAG
    };
    let more = (wanted + tunnel) as i32 - l2 as i32;
    // SAFETY: the helper checks that there is room. No pointer into the packet is used again.
    if more != 0 && unsafe { bpf_xdp_adjust_head(ctx.ctx, -more) } != 0 {
        count(Reason::L4Failed as u32);
        return XDP_DROP;
    }
    let mut packet = current_view(ctx);
    if write_headers(&mut packet, seen, out, wanted).is_none() {
        return XDP_DROP;
    }
    // SAFETY: a field of the context; a helper without memory arguments.
    unsafe {
        if out.xdp_ifindex == (&raw const (*ctx.ctx).ingress_ifindex).read_volatile() {
            XDP_TX
        } else {
            bpf_redirect(out.xdp_ifindex, 0) as u32
        }
    }
}

/// Reports to the packet's sender that the packet is too big: the packet becomes the ICMP message.
#[inline(always)]
fn send_too_big(ctx: &XdpContext, s: &mut PacketScratch, l2: u32) -> Option<u32> {
    let (seen, out) = (&s.seen, &mut s.out);
    let packet = current_view(ctx);
    let back = reply_macs(&packet)?;
    let tag = if l2 == ETH_HEADER { 0 } else { packet.u16(14)? };
    if !seen.accepts_too_big(&packet) {
        return None;
    }
    let length = (ctx.data_end() - ctx.data()) as i32;
    let less = (l2 + too_big::quoted_length(seen.version)) as i32 - length;
    let more = too_big::headers_length(seen.version) as i32;
    // SAFETY: the helpers check that there is room. No pointer into the packet is used again.
    if unsafe { bpf_xdp_adjust_tail(ctx.ctx, less) != 0 || bpf_xdp_adjust_head(ctx.ctx, -more) != 0 } {
        return None;
    }
    out.macs = back;
    out.vlan = u32::from(tag);
    out.tunnel = 0;
    let mut packet = current_view(ctx);
    write_headers(&mut packet, seen, out, l2)?;
    too_big::write(&mut packet, l2, &seen.too_big(out.mtu))?;
    Some(XDP_TX)
}

#[inline(always)]
fn write_headers(packet: &mut PacketView, seen: &ParsedHeaders, out: &SendInfo, l2: u32) -> Option<()> {
    packet.set_words(0, [out.macs[0], out.macs[1], out.macs[2]])?;
    let version = if out.tunnel == 0 { seen.version } else { out.tunnel };
    if l2 != ETH_HEADER {
        packet.set_u16(12, VLAN)?;
        packet.set_u16(14, out.vlan as u16)?;
    }
    packet.set_u16(l2 - 2, ethertype(version))?;
    if out.tunnel == 4 {
        packet.set_words(l2, outer_v4(seen, out))?;
    } else if out.tunnel == 6 {
        packet.set_words(l2, outer_v6(seen, out))?;
        packet.set_words(l2 + 8, out.outer_source)?;
        packet.set_words(l2 + 24, out.outer_destination)?;
    }
    Some(())
}

/// Updates the TCP or UDP checksum.
#[inline(always)]
fn update_checksum(packet: &mut PacketView, ctx: &XdpContext, seen: &ParsedHeaders, out: &SendInfo) -> Option<()> {
    let old = packet.u16(out.checksum_offset)?;
    let is_udp = seen.key.protocol == UDP;
    if is_udp && old == 0 && seen.version == 4 {
        // The datagram has no checksum (RFC 768).
        return Some(());
    }
    let mut pseudo = pseudo_header_sum(seen);
    // A sender on this machine (the other end of a veth) leaves the checksum to a network card that does not exist. The
    // field then holds the sum of the pseudo-header. A checksum computed from all bytes is right in either case.
    let mut new = if seen.fragment == NOT_FRAGMENTED && pseudo.equals(old) {
        core::hint::cold_path();
        packet.set_u16(out.checksum_offset, 0)?;
        let sum = sum_bytes(ctx, seen.l4, seen.length.wrapping_sub(seen.l4 - seen.l3))?;
        pseudo.merge(out.checksum_diffs.addresses);
        pseudo.u32(0, sum);
        pseudo.apply_to(0xffff)
    } else {
        let mut changes = out.checksum_diffs.addresses;
        changes.merge(out.checksum_diffs.rest);
        changes.apply_to(old)
    };
    if is_udp && new == 0 {
        new = 0xffff;
    }
    packet.set_u16(out.checksum_offset, new)
}

/// Sum of the pseudo-header that the packet came with (RFC 9293, section 3.1; RFC 8200, section 8.1), as a difference
/// to zero. The words that map an IPv4 address into an IPv6 one add nothing to it.
#[inline(always)]
fn pseudo_header_sum(seen: &ParsedHeaders) -> Diff {
    let (source, destination) = (&seen.key.source, &seen.key.destination);
    let mut sum = Diff::default();
    sum.u32(u32::MAX, source[3]);
    sum.u32(u32::MAX, destination[3]);
    if seen.version == 6 {
        let mut i = 0;
        while i < 3 {
            sum.u32(u32::MAX, source[i]);
            sum.u32(u32::MAX, destination[i]);
            i += 1;
        }
    }
    sum.u32(
        u32::MAX,
        seen.key.protocol + seen.length.wrapping_sub(seen.l4 - seen.l3),
    );
    sum
}

const CHUNK_BYTES: u32 = 64;
/// Most chunks of a frame that is in one piece.
const MAX_CHUNKS: u32 = 64;

/// Sum of `length` bytes from offset `at`, in memory order made host order.
#[inline(always)]
fn sum_bytes(ctx: &XdpContext, at: u32, length: u32) -> Option<u32> {
    let (start, end) = (ctx.data() + (at & 0xff) as usize, ctx.data_end());
    let packet = current_view(ctx);
    let (mut sum, mut done, mut chunks) = (0i64, 0u32, 0);
    while chunks < MAX_CHUNKS {
        if length - done < CHUNK_BYTES {
            break;
        }
        sum = sum_chunk(start, end, done, CHUNK_BYTES, sum)?;
        // All rounds are alike to the verifier except for their number.
        done = packet.hide_from_verifier(done + CHUNK_BYTES);
        chunks = hide_from_compiler(chunks + 1);
    }
    let mut words = 0;
    while words < CHUNK_BYTES / 4 {
        if length - done < 4 {
            break;
        }
        sum = sum_chunk(start, end, done, 4, sum)?;
        done = packet.hide_from_verifier(done + 4);
        words = hide_from_compiler(words + 1);
    }
    let mut total = u64::from(sum as u32);
    let mut rest = [0u8; 4];
    let mut i = 0;
    while i < 3 {
        if done + i < length {
            let mut stop = start + (hide_from_compiler(done + i) & 0x1fff) as usize;
            let byte = stop;
            stop += 1;
            // SAFETY: does nothing; see `PacketView::at`.
            unsafe { core::arch::asm!("/* {0} */", inout(reg) stop, options(nomem, nostack, preserves_flags)) };
            if stop > end {
                return None;
            }
            // SAFETY: within the packet, as just checked.
            rest[i as usize] = unsafe { *(byte as *const u8) };
        }
        i = hide_from_compiler(i + 1);
    }
    total += u64::from(u32::from_ne_bytes(rest));
    total = (total & 0xffff) + (total >> 16 & 0xffff) + (total >> 32);
    total = (total & 0xffff) + (total >> 16);
    total = (total & 0xffff) + (total >> 16);
    Some(u32::from((total as u16).to_be()))
}

#[inline(always)]
fn sum_chunk(start: usize, end: usize, done: u32, size: u32, sum: i64) -> Option<i64> {
    let from = start + (hide_from_compiler(done) & 0x1fff) as usize;
    let mut stop = from + size as usize;
    // SAFETY: does nothing; see `PacketView::at`.
    unsafe { core::arch::asm!("/* {0} */", inout(reg) stop, options(nomem, nostack, preserves_flags)) };
    if stop > end {
        return None;
    }
    // SAFETY: within the packet, as just checked.
    let sum = unsafe { bpf_csum_diff(core::ptr::null_mut(), 0, from as *mut u32, size, sum as u32) };
    (sum >= 0).then_some(sum)
}

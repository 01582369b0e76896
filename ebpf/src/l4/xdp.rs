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
    cut::{Buffer, Diff, too_big},
    l4::{
        Glance, Seen,
        arrive::{arrive, glance, seen},
        decide::Scratch,
        forward,
        packet::{UDP, WHOLE},
        verdict::{Action, Out, Verdict},
    },
    parts::SERVICES,
};

use super::{
    frame::{ETH, IPV4, IPV6, TAG, VLAN, ethertype, outer_v4, outer_v6, way_back},
    maps::{Maps, scratch},
};
use crate::{
    count::{COUNTERS, bump},
    cut::skb::{View, opaque},
    parts,
};

/// The XDP program. Declared by hand and not by `#[xdp]`, which would call it from another function: a return costs as
/// much as reading the headers, where the kernel guards returns against speculation.
#[unsafe(no_mangle)]
#[unsafe(link_section = "xdp")]
pub extern "C" fn l4_xdp(ctx: *mut xdp_md) -> u32 {
    let ctx = XdpContext::new(ctx);
    let (verdict, l2, s) = decide(&ctx);
    bump(&COUNTERS, verdict.reason());
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
        tell(&ctx, s, l2).unwrap_or(XDP_DROP)
    } else {
        XDP_DROP
    }
}

#[inline(always)]
fn view(ctx: &XdpContext) -> View {
    let (data, end) = (ctx.data(), ctx.data_end());
    View::of(data, end, (end - data) as u32)
}

#[inline(always)]
fn decide(ctx: &XdpContext) -> (Verdict, u32, Option<&'static mut Scratch>) {
    let miss = (Verdict::new(Reason::L4Miss, Action::Pass), 0, None);
    let mut view = view(ctx);
    let Some(kind) = view.u16(12) else {
        return miss;
    };
    let mut maps = Maps {
        ctx: ctx.as_ptr(),
        // SAFETY: a field of the context that the kernel gave for the time of the call.
        ifindex: unsafe { (&raw const (*ctx.ctx).ingress_ifindex).read_volatile() },
        vlan: 0,
        is_for_us: false,
        view,
        segment: 0,
        frame: (ctx.data_end() - ctx.data()) as u32,
    };
    let (version, l2, glance) = if kind == IPV4 {
        (4, ETH, glance(&view, &maps, ETH))
    } else if kind == IPV6 {
        (6, ETH, Glance::OTHER)
    } else if kind == VLAN {
        core::hint::cold_path();
        let (Some(tag), Some(inner)) = (view.u16(14), view.u16(16)) else {
            return miss;
        };
        maps.vlan = tag & 0xfff;
        match inner {
            IPV4 => (4, ETH + TAG, glance(&view, &maps, ETH + TAG)),
            IPV6 => (6, ETH + TAG, Glance::OTHER),
            _ => return miss,
        }
    } else {
        return miss;
    };
    if glance.kind == seen::ENDED {
        return (glance.verdict, l2, None);
    }
    let Some(s) = scratch() else { return miss };
    // From here on the verifier must know nothing of the packet but what `s` holds: so it checks the rest of the
    // program once, and not again for every kind of headers. Also below.
    let l2 = view.forgotten(l2) & 0x1f;
    if let Some(verdict) = arrive(&mut view, &maps, l2, version, glance, s) {
        return (verdict, l2, Some(s));
    }
    if !parts::has(SERVICES) {
        return miss;
    }
    let l2 = view.forgotten(l2) & 0x1f;
    maps.view = self::view(ctx);
    let mut view = maps.view;
    (forward(&mut view, &maps, s), l2, Some(s))
}

/// Sends the packet, whose Ethernet header has `l2` bytes.
#[inline(always)]
fn send(ctx: &XdpContext, s: &mut Scratch, l2: u32) -> u32 {
    let (seen, out) = (&s.seen, &s.out);
    if out.checksum != 0 {
        let mut packet = view(ctx);
        if checksum(&mut packet, ctx, seen, out).is_none() {
            return XDP_DROP;
        }
    }
    let tunnel = match out.tunnel {
        4 => 20,
        6 => 40,
        _ => 0,
    };
    let wanted = if out.vlan == 0 { ETH } else { ETH + TAG };
    let more = (wanted + tunnel) as i32 - l2 as i32;
    // SAFETY: the helper checks that there is room. Nothing that points into the packet is used again.
    if more != 0 && unsafe { bpf_xdp_adjust_head(ctx.ctx, -more) } != 0 {
        bump(&COUNTERS, Reason::L4Failed as u32);
        return XDP_DROP;
    }
    let mut packet = view(ctx);
    if headers(&mut packet, seen, out, wanted).is_none() {
        return XDP_DROP;
    }
    // SAFETY: a field of the context; a helper without memory arguments.
    unsafe {
        if out.port == (&raw const (*ctx.ctx).ingress_ifindex).read_volatile() {
            XDP_TX
        } else {
            bpf_redirect(out.port, 0) as u32
        }
    }
}

/// Tells the packet's sender that it is too big: the packet becomes the ICMP message.
#[inline(always)]
fn tell(ctx: &XdpContext, s: &mut Scratch, l2: u32) -> Option<u32> {
    let (seen, out) = (&s.seen, &mut s.out);
    let packet = view(ctx);
    let back = way_back(&packet)?;
    let tag = if l2 == ETH { 0 } else { packet.u16(14)? };
    if !seen.may_be_told(&packet) {
        return None;
    }
    let length = (ctx.data_end() - ctx.data()) as i32;
    let less = (l2 + too_big::quoted(seen.version)) as i32 - length;
    let more = too_big::room(seen.version) as i32;
    // SAFETY: the helpers check that there is room. Nothing that points into the packet is used again.
    if unsafe { bpf_xdp_adjust_tail(ctx.ctx, less) != 0 || bpf_xdp_adjust_head(ctx.ctx, -more) != 0 } {
        return None;
    }
    out.macs = back;
    out.vlan = u32::from(tag);
    out.tunnel = 0;
    let mut packet = view(ctx);
    headers(&mut packet, seen, out, l2)?;
    too_big::write(&mut packet, l2, &seen.too_big(out.mtu))?;
    Some(XDP_TX)
}

#[inline(always)]
fn headers(packet: &mut View, seen: &Seen, out: &Out, l2: u32) -> Option<()> {
    packet.set_words(0, [out.macs[0], out.macs[1], out.macs[2]])?;
    let version = if out.tunnel == 0 { seen.version } else { out.tunnel };
    if l2 != ETH {
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
fn checksum(packet: &mut View, ctx: &XdpContext, seen: &Seen, out: &Out) -> Option<()> {
    let old = packet.u16(out.checksum)?;
    let is_udp = seen.key.protocol == UDP;
    if is_udp && old == 0 && seen.version == 4 {
        // The datagram has no checksum (RFC 768).
        return Some(());
    }
    let mut pseudo = pseudo(seen);
    // A sender on this machine (the other end of a veth) leaves the checksum to a network card that there is not: in its
    // place stands the sum of the pseudo-header. Computed anew it is right in either case.
    let mut new = if seen.fragment == WHOLE && pseudo.is(old) {
        core::hint::cold_path();
        packet.set_u16(out.checksum, 0)?;
        let sum = whole(ctx, seen.l4, seen.length.wrapping_sub(seen.l4 - seen.l3))?;
        pseudo.and(out.changes.addresses);
        pseudo.u32(0, sum);
        pseudo.applied(0xffff)
    } else {
        let mut changes = out.changes.addresses;
        changes.and(out.changes.rest);
        changes.applied(old)
    };
    if is_udp && new == 0 {
        new = 0xffff;
    }
    packet.set_u16(out.checksum, new)
}

/// Sum of the pseudo-header that the packet came with (RFC 9293, section 3.1; RFC 8200, section 8.1), as a difference
/// to nothing. The words that map an IPv4 address into an IPv6 one add nothing to it.
#[inline(always)]
fn pseudo(seen: &Seen) -> Diff {
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

const CHUNK: u32 = 64;
/// Most chunks of a frame that is in one piece.
const MOST_CHUNKS: u32 = 64;

/// Sum of `length` bytes from offset `at`, in memory order made host order.
#[inline(always)]
fn whole(ctx: &XdpContext, at: u32, length: u32) -> Option<u32> {
    let (start, end) = (ctx.data() + (at & 0xff) as usize, ctx.data_end());
    let packet = view(ctx);
    let (mut sum, mut done, mut chunks) = (0i64, 0u32, 0);
    while chunks < MOST_CHUNKS {
        if length - done < CHUNK {
            break;
        }
        sum = add(start, end, done, CHUNK, sum)?;
        // All rounds are alike to the verifier but for their number.
        done = packet.forgotten(done + CHUNK);
        chunks = opaque(chunks + 1);
    }
    let mut words = 0;
    while words < CHUNK / 4 {
        if length - done < 4 {
            break;
        }
        sum = add(start, end, done, 4, sum)?;
        done = packet.forgotten(done + 4);
        words = opaque(words + 1);
    }
    let mut total = u64::from(sum as u32);
    let mut rest = [0u8; 4];
    let mut i = 0;
    while i < 3 {
        if done + i < length {
            let mut stop = start + (opaque(done + i) & 0x1fff) as usize;
            let byte = stop;
            stop += 1;
            // SAFETY: does nothing; see `View::at`.
            unsafe { core::arch::asm!("/* {0} */", inout(reg) stop, options(nomem, nostack, preserves_flags)) };
            if stop > end {
                return None;
            }
            // SAFETY: within the packet, as just checked.
            rest[i as usize] = unsafe { *(byte as *const u8) };
        }
        i = opaque(i + 1);
    }
    total += u64::from(u32::from_ne_bytes(rest));
    total = (total & 0xffff) + (total >> 16 & 0xffff) + (total >> 32);
    total = (total & 0xffff) + (total >> 16);
    total = (total & 0xffff) + (total >> 16);
    Some(u32::from((total as u16).to_be()))
}

#[inline(always)]
fn add(start: usize, end: usize, done: u32, size: u32, sum: i64) -> Option<i64> {
    let from = start + (opaque(done) & 0x1fff) as usize;
    let mut stop = from + size as usize;
    // SAFETY: does nothing; see `View::at`.
    unsafe { core::arch::asm!("/* {0} */", inout(reg) stop, options(nomem, nostack, preserves_flags)) };
    if stop > end {
        return None;
    }
    // SAFETY: within the packet, as just checked.
    let sum = unsafe { bpf_csum_diff(core::ptr::null_mut(), 0, from as *mut u32, size, sum as u32) };
    (sum >= 0).then_some(sum)
}

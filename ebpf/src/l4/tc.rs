//! TC program `l4_tc`: runs the services' code on packets that the kernel has merged (GRO), or must still segment and
//! checksum.

use aya_ebpf::{
    EbpfContext as _,
    bindings::{__sk_buff, bpf_adj_room_mode::BPF_ADJ_ROOM_MAC},
    helpers::{
        bpf_csum_update, bpf_l4_csum_replace, bpf_redirect, bpf_skb_adjust_room, bpf_skb_change_tail,
        bpf_skb_store_bytes, bpf_skb_vlan_push,
    },
    programs::TcContext,
};
use signalbox_common::{
    Reason,
    l4::{
        FastPath, PacketScratch, forward,
        parse::{class, fast_path, parse_and_admit},
        verdict::{Action, Verdict},
    },
    net::{Buffer, ip::UDP, too_big},
    parts::SERVICES,
};

use super::maps::{BpfMaps, scratch};
use crate::{
    count::count,
    frame::{ETH_HEADER, VLAN, ethertype, outer_v4, outer_v6, reply_macs},
    packet_view::{IPV4, IPV6, PacketView, context_field, has_priority_tag, is_of_vlan},
    parts,
    shield::maps::odd_priority_tag,
};

const PASS: i32 = -1;
const DROP: i32 = 2;
const BPF_F_PSEUDO_HDR: u64 = 1 << 4;
const BPF_F_MARK_MANGLED_0: u64 = 1 << 5;
const PACKET_HOST: u32 = 0;
/// Flag of `bpf_skb_adjust_room`: keeps `gso_size`. Merged UDP has no segment size that may shrink; the MTU has been
/// checked.
const BPF_F_ADJ_ROOM_FIXED_GSO: u64 = 1;
const BPF_F_ADJ_ROOM_ENCAP_L3_IPV4: u64 = 1 << 1;
const BPF_F_ADJ_ROOM_ENCAP_L3_IPV6: u64 = 1 << 2;

/// Bytes that are made linear: the headers that are walked, and a TCP header after them.
const MAX_HEADERS_BYTES: u32 = 234;

/// The TC program. Declared by hand, and not by `#[classifier]`, for the same reason as `l4_xdp`.
#[unsafe(no_mangle)]
#[unsafe(link_section = "classifier")]
pub extern "C" fn l4_tc(ctx: *mut __sk_buff) -> i32 {
    let ctx = TcContext::new(ctx);
    let (verdict, s) = decide(&ctx);
    count(verdict.reason());
    if verdict.action() == Action::Pass as u32 {
        return PASS;
    }
    if verdict.action() == Action::Drop as u32 {
        return DROP;
    }
    let Some(s) = s else { return DROP };
    if verdict.action() == Action::Send as u32 {
        send(&ctx, s).unwrap_or(DROP)
    } else if verdict.action() == Action::TooBig as u32 {
        send_too_big(&ctx, s).unwrap_or(DROP)
    } else {
        DROP
    }
}

/// The shield of an interface without Ethernet, such as WireGuard's, whose packets begin with their IP header. Services
/// and SYN cookies write Ethernet headers, so they are not available there.
#[unsafe(no_mangle)]
#[unsafe(link_section = "classifier")]
pub extern "C" fn l4_tc_ip(ctx: *mut __sk_buff) -> i32 {
    let ctx = TcContext::new(ctx);
    let verdict = judge(&ctx).unwrap_or(Verdict::new(Reason::L4Miss, Action::Pass));
    count(verdict.reason());
    if verdict.action() == Action::Drop as u32 {
        DROP
    } else {
        PASS
    }
}

#[inline(always)]
fn judge(ctx: &TcContext) -> Option<Verdict> {
    let protocol = context_field(ctx, |skb| unsafe { &raw const (*skb).protocol });
    let version = match protocol {
        IPV4 => 4,
        IPV6 => 6,
        _ => return None,
    };
    let mut view = PacketView::new(ctx, MAX_HEADERS_BYTES);
    // Some tunnels leave another header in front of the packet's.
    if u32::from(view.u8(0)? >> 4) != version {
        return None;
    }
    let maps = BpfMaps {
        ctx: ctx.as_ptr(),
        ifindex: context_field(ctx, |skb| unsafe { &raw const (*skb).ifindex }),
        vlan: 0,
        is_for_us: false,
        view,
        segment_payload: 0,
        frame: context_field(ctx, |skb| unsafe { &raw const (*skb).len }),
    };
    let fast_path = if version == 4 {
        fast_path(&view, &maps, 0)
    } else {
        FastPath::SLOW_PATH
    };
    if fast_path.class == class::DECIDED {
        return Some(fast_path.verdict);
    }
    parse_and_admit(&mut view, &maps, 0, version, fast_path, scratch()?)
}

#[inline(always)]
fn decide(ctx: &TcContext) -> (Verdict, Option<&'static mut PacketScratch>) {
    let miss = (Verdict::new(Reason::L4Miss, Action::Pass), None);
    let has_priority_tag = has_priority_tag(ctx);
    let is_of_vlan = is_of_vlan(ctx);
    if is_of_vlan && has_priority_tag {
        return (odd_priority_tag(), None);
    }
    let protocol = context_field(ctx, |skb| unsafe { &raw const (*skb).protocol });
    // Frames for other machines, seen by a bridge or a promiscuous interface, must not be sent on.
    let meant_for_us = context_field(ctx, |skb| unsafe { &raw const (*skb).pkt_type });
    let version = match protocol {
        _ if is_of_vlan || meant_for_us != PACKET_HOST => return miss,
        IPV4 => 4,
        IPV6 => 6,
        _ => return miss,
    };
    let mut view = PacketView::new(ctx, MAX_HEADERS_BYTES);
    let mut maps = BpfMaps {
        ctx: ctx.as_ptr(),
        ifindex: context_field(ctx, |skb| unsafe { &raw const (*skb).ifindex }),
        vlan: 0,
        is_for_us: true,
        view,
        segment_payload: context_field(ctx, |skb| unsafe { &raw const (*skb).gso_size }),
        frame: context_field(ctx, |skb| unsafe { &raw const (*skb).len }),
    };
    let fast_path = if version == 4 {
        fast_path(&view, &maps, ETH_HEADER)
    } else {
        FastPath::SLOW_PATH
    };
    if fast_path.class == class::DECIDED {
        return (fast_path.verdict, None);
    }
    let Some(s) = scratch() else { return miss };
    if let Some(verdict) = parse_and_admit(&mut view, &maps, ETH_HEADER, version, fast_path, s) {
        return (verdict, Some(s));
    }
    if !parts::has(SERVICES) {
        return miss;
    }
    // A fresh view: the verifier forgets the packet's bounds, and checks the rest once (see `l4_xdp`).
    maps.view = PacketView::current(ctx);
    let mut view = maps.view;
    (forward(&mut view, &maps, s), Some(s))
}

#[inline(always)]
fn send(ctx: &TcContext, s: &PacketScratch) -> Option<i32> {
    let (seen, out) = (&s.seen, &s.out);
    let skb = ctx.skb.skb;
    if out.translated != 0 {
        // SAFETY: helpers on the context's own packet, which check offsets.
        unsafe { update_checksum(skb, s) };
    }
    if out.tunnel != 0 {
        let (length, flags) = if out.tunnel == 4 {
            (20, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4)
        } else {
            (40, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6)
        };
        // SAFETY: as above.
        let flags = flags | BPF_F_ADJ_ROOM_FIXED_GSO;
        if unsafe { bpf_skb_adjust_room(skb, length, BPF_ADJ_ROOM_MAC as u32, flags) } != 0 {
            count(Reason::L4Failed as u32);
            return None;
        }
        if out.tunnel == 4 {
            store(skb, ETH_HEADER, outer_v4(seen, out).map(u32::to_be))?;
        } else {
            store(skb, ETH_HEADER, outer_v6(seen, out).map(u32::to_be))?;
            store(skb, ETH_HEADER + 8, out.outer_source.map(u32::to_be))?;
            store(skb, ETH_HEADER + 24, out.outer_destination.map(u32::to_be))?;
        }
        store(skb, 12, ethertype(out.tunnel).to_be())?;
    }
    store(skb, 0, out.macs.map(u32::to_be))?;
    // SAFETY: as above.
    unsafe {
        if out.vlan != 0 && out.xdp_ifindex == out.ifindex {
            bpf_skb_vlan_push(skb, VLAN.to_be(), out.vlan as u16);
        }
        Some(bpf_redirect(out.ifindex, 0) as i32)
    }
}

/// Reports to the packet's sender that the packet is too big: the packet becomes the ICMP message.
#[inline(always)]
fn send_too_big(ctx: &TcContext, s: &PacketScratch) -> Option<i32> {
    let (seen, out) = (&s.seen, &s.out);
    let skb = ctx.skb.skb;
    let view = PacketView::new(ctx, MAX_HEADERS_BYTES);
    let back = reply_macs(&view)?;
    if !seen.accepts_too_big(&view) {
        return None;
    }
    let room = too_big::headers_length(seen.version);
    // SAFETY: helpers on the context's own packet.
    unsafe {
        if bpf_skb_change_tail(skb, ETH_HEADER + too_big::quoted_length(seen.version), 0) != 0
            || bpf_skb_adjust_room(skb, room as i32, BPF_ADJ_ROOM_MAC as u32, 0) != 0
        {
            return None;
        }
    }
    let mut view = PacketView::new(ctx, MAX_HEADERS_BYTES);
    view.set_words(0, back)?;
    too_big::write(&mut view, ETH_HEADER, &seen.too_big(out.mtu))?;
    // SAFETY: a helper without memory arguments.
    Some(unsafe { bpf_redirect(context_field(ctx, |skb| &raw const (*skb).ifindex), 0) as i32 })
}

#[inline(always)]
fn store<T>(skb: *mut __sk_buff, at: u32, value: T) -> Option<()> {
    let size = size_of::<T>() as u32;
    // SAFETY: the helper reads the value and checks the offset.
    let stored = unsafe { bpf_skb_store_bytes(skb, at, (&raw const value).cast(), size, 0) };
    (stored == 0).then_some(())
}

/// Updates the TCP or UDP checksum, as far as it has been computed yet.
#[inline(always)]
unsafe fn update_checksum(skb: *mut __sk_buff, s: &PacketScratch) {
    let (seen, out) = (&s.seen, &s.out);
    if seen.version == 6 {
        // See `cut::forward::redirect`: an IPv6 header makes up for none of its changes by itself.
        let mut header = out.checksum_diffs.addresses;
        header.u16(out.old_hop_limit as u16, out.new_hop_limit as u16);
        // SAFETY: a packet without a sum of the network card's is left alone.
        unsafe { bpf_csum_update(skb, header.for_kernel() as u32) };
    }
    if out.checksum_offset == 0 {
        return;
    }
    let udp = if seen.key.protocol == UDP {
        BPF_F_MARK_MANGLED_0
    } else {
        0
    };
    let changes = &out.checksum_diffs;
    // SAFETY: the helpers check the offset.
    unsafe {
        bpf_l4_csum_replace(skb, out.checksum_offset, 0, changes.rest.for_kernel(), udp);
        bpf_l4_csum_replace(
            skb,
            out.checksum_offset,
            0,
            changes.addresses.for_kernel(),
            udp | BPF_F_PSEUDO_HDR,
        );
    }
}

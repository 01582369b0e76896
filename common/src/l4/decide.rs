//! Second half of the programs: finds service, flow and host, and decides about the packet.

use super::abi::{Host, L4Flow, NO_HOST, SLOTS, Service, mode, service, state};
use super::maps::{Direction, LocalSocket, Maps};
use super::nat_ports::allocate_port;
use super::parse::{FastPath, fast_path, fragment_key, parse_and_admit};
use super::scratch::PacketScratch;
use super::verdict::{Action, Verdict};
use super::{icmp, rewrite, track};
use crate::Reason;
use crate::net::addresses::decrement_hop_limit;
use crate::net::checksum::ChecksumDiffs;
use crate::net::ip::{TCP, UDP, V4_HEADER, V6_HEADER};
use crate::net::packet::{FIRST_FRAGMENT, LATER_FRAGMENT};
use crate::net::tuple::{flow_hash, is_v4, source_hash};
use crate::net::{Buffer, Key, ParsedHeaders, SendInfo, Target};
use crate::shield::{self, abi::NO_GUARD};

/// Decides about the packet whose IP header begins at `l3`: what the shield says, then which service, which host.
///
/// Runs both halves, for callers without a verifier; the programs call
/// [`parse_and_admit`](super::parse::parse_and_admit) and [`forward`] one by one.
pub fn balance<B: Buffer + ?Sized, K: Maps>(
    packet: &mut B,
    kernel: &K,
    l3: u32,
    version: u32,
    s: &mut PacketScratch,
) -> Verdict {
    let fast_path = if version == 4 {
        fast_path(packet, kernel, l3)
    } else {
        FastPath::SLOW_PATH
    };
    parse_and_admit(packet, kernel, l3, version, fast_path, s).unwrap_or_else(|| forward(packet, kernel, s))
}

/// Decides about a packet that [`parse_and_admit`](super::parse::parse_and_admit) has read and let through: finds its
/// flow, or a host for a new one.
#[inline(always)]
pub fn forward<B: Buffer + ?Sized, K: Maps>(packet: &mut B, kernel: &K, s: &mut PacketScratch) -> Verdict {
    if !matches!(s.seen.key.protocol, TCP | UDP) {
        return forward_icmp_error(packet, kernel, s);
    }
    let now = kernel.now();
    let mut known = None;
    if let Some(flow) = kernel.established(&s.seen.key) {
        if has_ended(kernel, s, flow, now) {
            remove_flow(kernel, &s.seen.key, flow);
        } else {
            track::record(flow, &s.seen, now);
            // Only a client's packet has a guard.
            if s.shield.guard != NO_GUARD && flow.state & (state::FIN | state::CONN_CLOSED) == state::FIN {
                close_conn(kernel, s, flow);
            }
            known = Some(flow);
        }
    } else if let Some(flow) = kernel.half_open(&s.seen.key)
        && !track::is_new_connection(&s.seen, flow, now)
    {
        if flow.state & state::REPLY != 0 {
            track::record(flow, &s.seen, now);
            known = Some(flow);
        } else {
            known = confirm(kernel, s, flow, now);
        }
    }
    match known {
        Some(flow) => forward_known(packet, kernel, s, flow),
        None => begin_flow(packet, kernel, s, now),
    }
}

/// Key of a flow's other direction in mode `nat`.
#[inline(always)]
#[must_use]
pub const fn reverse_key(flow: &L4Flow, protocol: u32) -> Key {
    Key {
        source: flow.destination,
        destination: flow.source,
        ports: flow.ports.rotate_left(16),
        protocol,
    }
}

/// Ends the shield's count of a connection whose client has sent its FIN, if the host has sent one, too.
#[inline(always)]
fn close_conn<K: Maps>(kernel: &K, s: &mut PacketScratch, flow: &mut L4Flow) {
    s.reverse_key = reverse_key(flow, s.seen.key.protocol);
    if let Some(reply) = kernel.established(&s.reverse_key)
        && reply.state & state::FIN != 0
    {
        flow.set_state(state::CONN_CLOSED);
        shield::admit::count_conn_closed(kernel, &s.seen, s.shield.guard);
    }
}

#[inline(always)]
fn remove_flow<K: Maps>(kernel: &K, key: &Key, flow: &L4Flow) {
    if flow.mode == mode::NAT {
        let other = reverse_key(flow, key.protocol);
        kernel.remove_established(&other);
    }
    kernel.remove_established(key);
}

/// Whether an established flow has ended, and the packet is the first of another.
#[inline(always)]
fn has_ended<K: Maps>(kernel: &K, s: &mut PacketScratch, flow: &L4Flow, now: u32) -> bool {
    let anew = track::is_new_connection(&s.seen, flow, now);
    if flow.mode != mode::NAT || flow.state & state::REPLY != 0 || !(anew || s.seen.is_syn()) {
        return anew;
    }
    s.reverse_key = reverse_key(flow, s.seen.key.protocol);
    let Some(reply) = kernel.established(&s.reverse_key) else {
        return true;
    };
    if s.seen.key.protocol == TCP {
        anew || reply.state & (state::FIN | state::RST) != 0
    } else {
        // A host that speaks keeps a session alive, too.
        track::is_expired(now.wrapping_sub(reply.last_seen), flow.idle_ticks)
    }
}

/// Finds the entry for a client's packet of a flow that has begun, and promotes the flow once both sides have confirmed
/// it. Without room it stays where it is. `None` where the flow must begin again: its replies' key belongs to another
/// flow by now, or a host that has not answered may be wrong now.
#[inline(always)]
fn confirm<'a, K: Maps>(
    kernel: &'a K,
    s: &mut PacketScratch,
    flow: &'a mut L4Flow,
    now: u32,
) -> Option<&'a mut L4Flow> {
    let mut promoted = false;
    if flow.mode == mode::NAT {
        s.reverse_key = reverse_key(flow, s.seen.key.protocol);
        let reply = kernel.half_open(&s.reverse_key)?;
        if !track::is_reply_of(reply, &s.seen.key) || (s.seen.is_syn() && reply.state & state::ANSWERED == 0) {
            return None;
        }
        track::record(flow, &s.seen, now);
        if track::confirms(&s.seen, reply) {
            promoted = kernel.promote(&s.seen.key, flow, Some((&s.reverse_key, reply)));
        }
    } else {
        track::record(flow, &s.seen, now);
        // Only the client hears the host. Three packets show a real client.
        if flow.packets >= 3 {
            promoted = kernel.promote(&s.seen.key, flow, None);
        }
    }
    // A promoted flow's old entry is removed: another flow may get its place at any time.
    if promoted {
        if s.shield.guard != NO_GUARD {
            shield::admit::count_conn_opened(kernel, &s.seen, s.shield.guard);
        }
        kernel.established(&s.seen.key)
    } else {
        Some(flow)
    }
}

/// Sends a packet of a known flow to its host or client.
#[inline(always)]
fn forward_known<B: Buffer + ?Sized, K: Maps>(
    packet: &mut B,
    kernel: &K,
    s: &mut PacketScratch,
    flow: &mut L4Flow,
) -> Verdict {
    if s.seen.fragment == FIRST_FRAGMENT {
        kernel.record_fragment(&fragment_key(&s.seen), s.seen.key.ports);
    }
    if flow.state & state::REPLY != 0 {
        kernel.count_packet(flow.service, s.seen.length, Direction::Out);
        s.out.set_next_hop_to_client(flow);
        return translate_and_send(packet, &s.seen, &mut s.out, flow, Reason::L4Replied);
    }
    kernel.count_packet(flow.service, s.seen.length, Direction::In);
    let way_back = kernel.reply_macs();
    let (ifindex, vlan) = kernel.ingress();
    if way_back != flow.macs || ifindex != flow.ifindex || vlan != flow.vlan {
        // An overheard packet, of a flow that another balancer has taken over from this one.
        if !kernel.is_for_us() {
            return Verdict::new(Reason::L4Miss, Action::Pass);
        }
        client_moved(kernel, s, flow, &way_back);
    }
    send_to_host(packet, kernel, &s.seen, &mut s.out, flow, Reason::L4Forwarded)
}

/// Records another Ethernet address, interface or VLAN of the client's packets, for instance after a failover of
/// routers, in both directions: replies go there, too.
#[inline(always)]
fn client_moved<K: Maps>(kernel: &K, s: &mut PacketScratch, flow: &mut L4Flow, way_back: &[u32; 3]) {
    let (ifindex, vlan) = kernel.ingress();
    flow.macs = *way_back;
    flow.ifindex = ifindex;
    flow.vlan = vlan;
    if flow.mode == mode::NAT {
        s.reverse_key = reverse_key(flow, s.seen.key.protocol);
        if let Some(reply) = find_flow(kernel, &s.reverse_key) {
            reply.macs = *way_back;
            reply.ifindex = ifindex;
            reply.vlan = vlan;
        }
    }
}

/// Finds a flow among the established and those that have begun.
#[inline(always)]
fn find_flow<'a, K: Maps>(kernel: &'a K, key: &Key) -> Option<&'a mut L4Flow> {
    match kernel.established(key) {
        Some(flow) => Some(flow),
        None => kernel.half_open(key),
    }
}

/// Finds a host whose next hop is known.
#[inline(always)]
fn reachable_host<K: Maps>(kernel: &K, host: u32) -> Result<&Host, Reason> {
    match kernel.host(host) {
        None => Err(Reason::L4NoHost),
        Some(host) if host.ifindex == 0 => Err(Reason::L4NoNeighbour),
        Some(host) => Ok(host),
    }
}

/// Sends a client's packet to the flow's host, or reports to its sender that it is too big.
#[inline(always)]
fn send_to_host<B: Buffer + ?Sized, K: Maps>(
    packet: &mut B,
    kernel: &K,
    seen: &ParsedHeaders,
    out: &mut SendInfo,
    flow: &L4Flow,
    reason: Reason,
) -> Verdict {
    let host = match reachable_host(kernel, flow.host) {
        Ok(host) => host,
        Err(reason) => return Verdict::new(reason, Action::Drop),
    };
    out.set_next_hop_to_host(host);
    let mut room = u32::from(host.mtu);
    if flow.mode == mode::DSR_IPIP {
        room = room.wrapping_sub(set_tunnel(kernel, seen, out, host));
    }
    if kernel.largest_packet(seen) > room {
        out.mtu = room;
        return Verdict::new(Reason::L4TooBig, Action::TooBig);
    }
    if flow.mode == mode::NAT {
        return translate_and_send(packet, seen, out, flow, reason);
    }
    Verdict::new(reason, Action::Send)
}

/// Sets the addresses of the tunnel, and returns the length of its header. The outer source varies with the flow, so
/// that the host's network card spreads its flows over queues.
#[inline(always)]
fn set_tunnel<K: Maps>(kernel: &K, seen: &ParsedHeaders, out: &mut SendInfo, host: &Host) -> u32 {
    let entropy = flow_hash(&seen.key) as u32;
    out.outer_destination = host.address;
    let config = kernel.config();
    if is_v4(&host.address) {
        let (fixed, free) = config.map_or((0, 0), |config| (config.outer_v4, config.outer_v4_flow_mask));
        out.tunnel = 4;
        out.outer_source = [0, 0, 0xffff, fixed | (entropy & free)];
        V4_HEADER
    } else {
        let [a, b, c] = config.map_or([0; 3], |config| config.outer_v6);
        out.tunnel = 6;
        out.outer_source = [a, b, c, entropy];
        V6_HEADER
    }
}

#[inline(always)]
fn translate_and_send<B: Buffer + ?Sized>(
    packet: &mut B,
    seen: &ParsedHeaders,
    out: &mut SendInfo,
    flow: &L4Flow,
    reason: Reason,
) -> Verdict {
    match rewrite::translate(packet, seen, flow) {
        Ok(changes) => {
            out.checksum_diffs = changes;
            out.translated = 1;
            out.old_hop_limit = 1;
            out.new_hop_limit = 0;
        }
        Err(is_last) => {
            let reason = if is_last { Reason::L4Hops } else { Reason::L4Malformed };
            return Verdict::new(reason, Action::Drop);
        }
    }
    out.checksum_offset = match (seen.fragment, seen.key.protocol) {
        (LATER_FRAGMENT, _) => 0,
        (_, TCP) => seen.l4 + 16,
        _ => seen.l4 + 6,
    };
    Verdict::new(reason, Action::Send)
}

/// Slot of a hash.
#[inline(always)]
#[must_use]
pub const fn slot_of(hash: u64) -> u32 {
    (((hash >> 32) * SLOTS as u64) >> 32) as u32
}

/// Chooses the service, and the host of its slot, for a flow that is not known.
#[inline(always)]
fn choose<K: Maps>(kernel: &K, key: &Key) -> Option<(Service, u32)> {
    let target = Target::new(key.destination, key.ports as u16, key.protocol as u8);
    let found = *kernel.service(&target)?;
    let hash = if found.flags & service::BY_SOURCE != 0 {
        source_hash(key)
    } else {
        flow_hash(key)
    };
    let host = kernel.slot(found.table, slot_of(hash)).unwrap_or(NO_HOST);
    Some((found, u32::from(host)))
}

/// Whether a packet may be an answer to a connection that this machine has opened from a service's port.
#[inline(always)]
fn may_be_of_own_connection(seen: &ParsedHeaders) -> bool {
    const LOWEST_OF_KERNEL: u32 = 1024;
    if seen.key.protocol == TCP {
        !seen.is_syn()
    } else {
        seen.key.ports & 0xffff >= LOWEST_OF_KERNEL && seen.fragment != LATER_FRAGMENT
    }
}

/// Verdict for a flow that cannot begin: the kernel, which has no socket there, answers with a reset or an ICMP error.
///
/// Dropped instead are packets for an address that this machine only routes to, and those of connections that another
/// node may have a host for.
#[inline(always)]
fn refuse<K: Maps>(kernel: &K, seen: &ParsedHeaders, reason: Reason) -> Verdict {
    let begins = seen.key.protocol == UDP || seen.is_syn();
    let action = if begins && !kernel.is_forwarded(seen) {
        Action::Pass
    } else {
        Action::Drop
    };
    Verdict::new(reason, action)
}

/// Begins a flow with a packet that belongs to none, if a service listens on its destination.
#[inline(always)]
fn begin_flow<B: Buffer + ?Sized, K: Maps>(packet: &mut B, kernel: &K, s: &mut PacketScratch, now: u32) -> Verdict {
    let Some((service, host)) = choose(kernel, &s.seen.key) else {
        return Verdict::new(Reason::L4Miss, Action::Pass);
    };
    // Looked up only where there is no flow, or where the frame's addresses differ from the flow's.
    if !kernel.is_for_us() {
        return Verdict::new(Reason::L4Miss, Action::Pass);
    }
    if may_be_of_own_connection(&s.seen) && kernel.local_socket(&s.seen.key) == LocalSocket::Connected {
        return Verdict::new(Reason::L4Miss, Action::Pass);
    }
    if s.shield.guard != NO_GUARD
        && let Some(judged) = shield::admit::admit_connection(kernel, &s.seen, &mut s.shield)
    {
        return Verdict::new(judged.reason(), Action::Drop);
    }
    if host == u32::from(NO_HOST) {
        return refuse(kernel, &s.seen, Reason::L4NoHost);
    }
    let (ifindex, vlan) = kernel.ingress();
    s.forward_flow = L4Flow {
        host,
        service: service.number,
        mode: service.mode,
        idle_ticks: service.idle_ticks,
        macs: kernel.reply_macs(),
        ifindex,
        vlan,
        ..L4Flow::default()
    };
    track::record(&mut s.forward_flow, &s.seen, now);
    if service.mode == mode::NAT {
        let reason = allocate_port(kernel, s, &service, now);
        if reason != Reason::L4Opened {
            return refuse(kernel, &s.seen, reason);
        }
    }
    // A table without room for it costs the flow its memory, not the client its answer: the next packet has the same
    // hash.
    let _ = kernel.insert_half_open(&s.seen.key, &s.forward_flow, false);
    kernel.count_packet(service.number, s.seen.length, Direction::NewFlow);
    if s.seen.fragment == FIRST_FRAGMENT {
        kernel.record_fragment(&fragment_key(&s.seen), s.seen.key.ports);
    }
    send_to_host(packet, kernel, &s.seen, &mut s.out, &s.forward_flow, Reason::L4Opened)
}

/// Whether a host gets the message that its packet was too big for the path to the client. It would lower the path MTU
/// of the balancer's address, and so of all clients, for ten minutes; and any machine can send such a message.
///
/// IPv4: never. Routers may fragment the flow's packets from now on. IPv6, where no router fragments (RFC 8200, section
/// 5): of established flows alone, of TCP where the quoted number may be under way; no host goes below 1280 bytes.
#[inline(always)]
fn concerns_host<B: Buffer + ?Sized, K: Maps>(
    packet: &B,
    kernel: &K,
    s: &PacketScratch,
    flow: &L4Flow,
    quoted: &icmp::QuotedPacket,
) -> bool {
    if s.seen.version == 4 {
        if let Some(reply) = find_flow(kernel, &s.reverse_key) {
            reply.set_state(state::MAY_BE_FRAGMENTED);
        }
        return false;
    }
    kernel.established(&s.reverse_key).is_some()
        && (s.reverse_key.protocol != TCP
            || packet
                .u32(quoted.l4 + 4)
                .is_some_and(|seq| may_be_under_way(seq, flow.ack)))
}

/// Whether a segment may be under way to a receiver whose last acknowledgement is `ack`. It may be earlier by bytes
/// acknowledged since it was sent, or later by a large window.
#[inline(always)]
const fn may_be_under_way(seq: u32, ack: u32) -> bool {
    const MOST: u32 = 4 << 20;
    seq.wrapping_sub(ack).wrapping_add(MOST) < 2 * MOST
}

/// Forwards an ICMP error about a packet of a flow to the end that sent the packet.
#[inline(always)]
fn forward_icmp_error<B: Buffer + ?Sized, K: Maps>(packet: &mut B, kernel: &K, s: &mut PacketScratch) -> Verdict {
    let miss = Verdict::new(Reason::L4Miss, Action::Pass);
    if !kernel.is_for_us() {
        return miss;
    }
    let Some(quoted) = icmp::read_quoted(packet, &s.seen) else {
        return miss;
    };
    s.reverse_key = quoted.arriving_key;
    let flow = match find_flow(kernel, &s.reverse_key) {
        Some(flow) => *flow,
        None => match choose(kernel, &s.reverse_key) {
            // The host answered by itself, so the host gets the message.
            Some((service, host)) if service.mode != mode::NAT && host != u32::from(NO_HOST) => L4Flow {
                host,
                mode: service.mode,
                ..L4Flow::default()
            },
            _ => return miss,
        },
    };
    if flow.mode != mode::NAT {
        return send_to_host(packet, kernel, &s.seen, &mut s.out, &flow, Reason::L4Icmp);
    }
    if flow.state & state::REPLY == 0 && icmp::is_too_big(packet, &s.seen) {
        s.reverse_key = reverse_key(&flow, s.reverse_key.protocol);
        if !concerns_host(packet, kernel, s, &flow, &quoted) {
            return Verdict::new(Reason::L4Icmp, Action::Drop);
        }
    }
    if decrement_hop_limit(packet, &s.seen).is_none() {
        return Verdict::new(Reason::L4Hops, Action::Drop);
    }
    if icmp::translate(packet, &s.seen, &quoted, &flow).is_none() {
        return Verdict::new(Reason::L4Malformed, Action::Drop);
    }
    s.out.translated = 1;
    s.out.old_hop_limit = 1;
    s.out.new_hop_limit = 0;
    s.out.checksum_diffs = ChecksumDiffs::default();
    if flow.state & state::REPLY != 0 {
        s.out.set_next_hop_to_client(&flow);
        return Verdict::new(Reason::L4Icmp, Action::Send);
    }
    match reachable_host(kernel, flow.host) {
        Ok(host) => s.out.set_next_hop_to_host(host),
        Err(reason) => return Verdict::new(reason, Action::Drop),
    }
    Verdict::new(Reason::L4Icmp, Action::Send)
}

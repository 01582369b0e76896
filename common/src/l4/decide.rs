//! Second half of the programs: finds service, flow and host, and decides about the packet.

use super::abi::{Flow, Host, Key, NO_HOST, SLOTS, Service, Target, mode, service, state};
use super::arrive::{Glance, arrive, fragment, glance};
use super::kernel::{Direction, Kernel};
use super::packet::{self, FIRST, LATER, Seen, TCP, UDP};
use super::ports::map_ports;
use super::rewrite::Changes;
use super::verdict::{Action, Out, Verdict};
use super::{error, rewrite, track};
use crate::cut::Buffer;
use crate::shield::{self, abi::NO_GUARD};
use crate::{Reason, hash};

/// Seed of the flow hash, equal on every balancer, so that they agree without talking.
const SEED: u64 = 0x6c34_7369_676e_616c;

/// Working memory of a packet: more than a program's stack holds.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Scratch {
    /// Headers of the packet.
    pub seen: Seen,
    /// How the packet is sent.
    pub out: Out,
    /// Client's direction of a new flow.
    pub forward: Flow,
    /// Host's direction of a new flow.
    pub reply: Flow,
    /// Key of the host's direction.
    pub reverse: Key,
    /// Working memory of the shield.
    pub shield: shield::Scratch,
}

impl Scratch {
    /// Resets the fields that only some packets set.
    #[inline(always)]
    pub(super) fn prepare(&mut self) {
        self.out.tunnel = 0;
        self.out.translated = 0;
        self.out.checksum = 0;
        self.shield.guard = NO_GUARD;
    }
}

/// Decides about the packet whose IP header begins at `l3`: what the shield says, then which service, which host.
///
/// Runs both halves, for callers without a verifier; the programs call [`arrive`] and [`forward`] one by one.
pub fn balance<B: Buffer + ?Sized, K: Kernel>(
    packet: &mut B,
    kernel: &K,
    l3: u32,
    version: u32,
    s: &mut Scratch,
) -> Verdict {
    let glance = if version == 4 {
        glance(packet, kernel, l3)
    } else {
        Glance::OTHER
    };
    arrive(packet, kernel, l3, version, glance, s).unwrap_or_else(|| forward(packet, kernel, s))
}

/// Decides about a packet that [`arrive`] has read and let through: finds its flow, or a host for a new one.
#[inline(always)]
pub fn forward<B: Buffer + ?Sized, K: Kernel>(packet: &mut B, kernel: &K, s: &mut Scratch) -> Verdict {
    if !matches!(s.seen.key.protocol, TCP | UDP) {
        return icmp(packet, kernel, s);
    }
    let now = kernel.now();
    let mut known = None;
    if let Some(flow) = kernel.established(&s.seen.key) {
        if has_ended(kernel, s, flow, now) {
            forget(kernel, &s.seen.key, flow);
        } else {
            track::note(flow, &s.seen, now);
            // Only a client's packet has a guard.
            if s.shield.guard != NO_GUARD && flow.state & (state::FIN | state::PARTED) == state::FIN {
                part(kernel, s, flow);
            }
            known = Some(flow);
        }
    } else if let Some(flow) = kernel.opening(&s.seen.key)
        && !track::begins_anew(&s.seen, flow, now)
    {
        if flow.state & state::REPLY != 0 {
            track::note(flow, &s.seen, now);
            known = Some(flow);
        } else {
            known = confirm(kernel, s, flow, now);
        }
    }
    match known {
        Some(flow) => carry(packet, kernel, s, flow),
        None => begin(packet, kernel, s, now),
    }
}

/// Key of a flow's other direction in mode `nat`.
#[inline(always)]
#[must_use]
pub const fn other_way(flow: &Flow, protocol: u32) -> Key {
    Key {
        source: flow.destination,
        destination: flow.source,
        ports: flow.ports.rotate_left(16),
        protocol,
    }
}

/// Ends the shield's count of a connection whose client has sent its FIN, if the host has sent one, too.
#[inline(always)]
fn part<K: Kernel>(kernel: &K, s: &mut Scratch, flow: &mut Flow) {
    s.reverse = other_way(flow, s.seen.key.protocol);
    if let Some(reply) = kernel.established(&s.reverse)
        && reply.state & state::FIN != 0
    {
        flow.mark(state::PARTED);
        shield::admit::ended(kernel, &s.seen, s.shield.guard);
    }
}

#[inline(always)]
fn forget<K: Kernel>(kernel: &K, key: &Key, flow: &Flow) {
    if flow.mode == mode::NAT {
        let other = other_way(flow, key.protocol);
        kernel.end(&other);
    }
    kernel.end(key);
}

/// Whether an established flow has ended, and the packet is the first of another.
#[inline(always)]
fn has_ended<K: Kernel>(kernel: &K, s: &mut Scratch, flow: &Flow, now: u32) -> bool {
    let anew = track::begins_anew(&s.seen, flow, now);
    if flow.mode != mode::NAT || flow.state & state::REPLY != 0 || !(anew || track::is_syn(&s.seen)) {
        return anew;
    }
    s.reverse = other_way(flow, s.seen.key.protocol);
    let Some(reply) = kernel.established(&s.reverse) else {
        return true;
    };
    if s.seen.key.protocol == TCP {
        anew || reply.state & (state::FIN | state::RST) != 0
    } else {
        // A host that speaks keeps a session alive, too.
        track::is_over(now.wrapping_sub(reply.seen), flow.idle)
    }
}

/// Finds the entry for a client's packet of a flow that has begun, and promotes the flow once both sides have confirmed
/// it; without room it stays where it is. `None` where the flow has to begin anew: its replies' key is another flow's
/// by now, or a host that has not answered may not be the right one any more.
#[inline(always)]
fn confirm<'a, K: Kernel>(kernel: &'a K, s: &mut Scratch, flow: &'a mut Flow, now: u32) -> Option<&'a mut Flow> {
    let mut promoted = false;
    if flow.mode == mode::NAT {
        s.reverse = other_way(flow, s.seen.key.protocol);
        let reply = kernel.opening(&s.reverse)?;
        if !answers(reply, &s.seen.key) || (track::is_syn(&s.seen) && reply.state & state::ANSWERED == 0) {
            return None;
        }
        track::note(flow, &s.seen, now);
        if track::confirms(&s.seen, reply) {
            promoted = kernel.promote(&s.seen.key, flow, Some((&s.reverse, reply)));
        }
    } else {
        track::note(flow, &s.seen, now);
        // Nobody hears the host but the client. Three packets show a client that means it.
        if flow.packets >= 3 {
            promoted = kernel.promote(&s.seen.key, flow, None);
        }
    }
    // A promoted flow's old entry is removed: another flow may get its place at any time.
    if promoted {
        if s.shield.guard != NO_GUARD {
            shield::admit::confirmed(kernel, &s.seen, s.shield.guard);
        }
        kernel.established(&s.seen.key)
    } else {
        Some(flow)
    }
}

/// Sends a packet of a known flow to its host or client.
#[inline(always)]
fn carry<B: Buffer + ?Sized, K: Kernel>(packet: &mut B, kernel: &K, s: &mut Scratch, flow: &mut Flow) -> Verdict {
    if s.seen.fragment == FIRST {
        kernel.learn_fragment(&fragment(&s.seen), s.seen.key.ports);
    }
    if flow.state & state::REPLY != 0 {
        kernel.tally(flow.service, s.seen.length, Direction::Out);
        s.out.aim_at_client(flow);
        return translated(packet, &s.seen, &mut s.out, flow, Reason::L4Replied);
    }
    kernel.tally(flow.service, s.seen.length, Direction::In);
    let way_back = kernel.way_back();
    let (ifindex, vlan) = kernel.arrival();
    if way_back != flow.macs || ifindex != flow.ifindex || vlan != flow.vlan {
        // An overheard packet, of a flow that another balancer has taken over from us.
        if !kernel.is_for_us() {
            return Verdict::new(Reason::L4Miss, Action::Pass);
        }
        moved(kernel, s, flow, &way_back);
    }
    onward(packet, kernel, &s.seen, &mut s.out, flow, Reason::L4Forwarded)
}

/// Records another Ethernet address, interface or VLAN of the client's packets, for instance after a failover of
/// routers, in both directions: replies go there, too.
#[inline(always)]
fn moved<K: Kernel>(kernel: &K, s: &mut Scratch, flow: &mut Flow, way_back: &[u32; 3]) {
    let (ifindex, vlan) = kernel.arrival();
    flow.macs = *way_back;
    flow.ifindex = ifindex;
    flow.vlan = vlan;
    if flow.mode == mode::NAT {
        s.reverse = other_way(flow, s.seen.key.protocol);
        if let Some(reply) = find(kernel, &s.reverse) {
            reply.macs = *way_back;
            reply.ifindex = ifindex;
            reply.vlan = vlan;
        }
    }
}

/// Finds a flow among the established and those that have begun.
#[inline(always)]
fn find<'a, K: Kernel>(kernel: &'a K, key: &Key) -> Option<&'a mut Flow> {
    match kernel.established(key) {
        Some(flow) => Some(flow),
        None => kernel.opening(key),
    }
}

/// Whether `reply` is the host's direction of the flow with the client's key `key`.
#[inline(always)]
pub(super) fn answers(reply: &Flow, key: &Key) -> bool {
    reply.destination == key.source && reply.ports == key.ports.rotate_left(16) && reply.source == key.destination
}

/// Finds a host whose next hop is known.
#[inline(always)]
fn reach<K: Kernel>(kernel: &K, host: u32) -> Result<&Host, Reason> {
    match kernel.host(host) {
        None => Err(Reason::L4NoHost),
        Some(host) if host.ifindex == 0 => Err(Reason::L4NoNeighbour),
        Some(host) => Ok(host),
    }
}

/// Sends a client's packet to the flow's host, or tells its sender that it is too big.
#[inline(always)]
fn onward<B: Buffer + ?Sized, K: Kernel>(
    packet: &mut B,
    kernel: &K,
    seen: &Seen,
    out: &mut Out,
    flow: &Flow,
    reason: Reason,
) -> Verdict {
    let host = match reach(kernel, flow.host) {
        Ok(host) => host,
        Err(reason) => return Verdict::new(reason, Action::Drop),
    };
    out.aim_at_host(host);
    let mut room = u32::from(host.mtu);
    if flow.mode == mode::DSR_IPIP {
        room = room.wrapping_sub(tunnel(kernel, seen, out, host));
    }
    if kernel.largest(seen) > room {
        out.mtu = room;
        return Verdict::new(Reason::L4TooBig, Action::TooBig);
    }
    if flow.mode == mode::NAT {
        return translated(packet, seen, out, flow, reason);
    }
    Verdict::new(reason, Action::Send)
}

/// Sets the addresses of the tunnel, and returns the length of its header. The outer source varies with the flow, so
/// that the host's network card spreads its flows over queues.
#[inline(always)]
fn tunnel<K: Kernel>(kernel: &K, seen: &Seen, out: &mut Out, host: &Host) -> u32 {
    let entropy = flow_hash(&seen.key) as u32;
    out.outer_destination = host.address;
    let config = kernel.config();
    if is_v4(&host.address) {
        let (fixed, free) = config.map_or((0, 0), |config| (config.outer_v4, config.outer_v4_free));
        out.tunnel = 4;
        out.outer_source = [0, 0, 0xffff, fixed | (entropy & free)];
        packet::V4_HEADER
    } else {
        let [a, b, c] = config.map_or([0; 3], |config| config.outer_v6);
        out.tunnel = 6;
        out.outer_source = [a, b, c, entropy];
        packet::V6_HEADER
    }
}

/// Whether an address is an IPv4-mapped one.
#[inline(always)]
#[must_use]
pub const fn is_v4(address: &[u32; 4]) -> bool {
    address[0] | address[1] == 0 && address[2] == 0xffff
}

#[inline(always)]
fn translated<B: Buffer + ?Sized>(packet: &mut B, seen: &Seen, out: &mut Out, flow: &Flow, reason: Reason) -> Verdict {
    match rewrite::translate(packet, seen, flow) {
        Ok(changes) => {
            out.changes = changes;
            out.translated = 1;
            out.hops_before = 1;
            out.hops = 0;
        }
        Err(is_last) => {
            let reason = if is_last { Reason::L4Hops } else { Reason::L4Malformed };
            return Verdict::new(reason, Action::Drop);
        }
    }
    out.checksum = match (seen.fragment, seen.key.protocol) {
        (LATER, _) => 0,
        (_, TCP) => seen.l4 + 16,
        _ => seen.l4 + 6,
    };
    Verdict::new(reason, Action::Send)
}

/// Hash of a flow's addresses, ports and protocol, as the client sends them.
#[inline(always)]
#[must_use]
pub const fn flow_hash(key: &Key) -> u64 {
    hash::mix(source_hash(key) ^ ((key.ports as u64) << 32 | key.protocol as u64))
}

/// Hash of a client's address.
#[inline(always)]
#[must_use]
pub const fn source_hash(key: &Key) -> u64 {
    let [a, b, c, d] = key.source;
    hash::mix(hash::mix(SEED ^ ((a as u64) << 32 | b as u64)) ^ ((c as u64) << 32 | d as u64))
}

/// Slot of a hash.
#[inline(always)]
#[must_use]
pub const fn slot(hash: u64) -> u32 {
    (((hash >> 32) * SLOTS as u64) >> 32) as u32
}

/// Chooses the service, and the host of its slot, for a flow that is not known.
#[inline(always)]
fn choose<K: Kernel>(kernel: &K, key: &Key) -> Option<(Service, u32)> {
    let target = Target::new(key.destination, key.ports as u16, key.protocol as u8);
    let found = *kernel.service(&target)?;
    let hash = if found.flags & service::BY_SOURCE != 0 {
        source_hash(key)
    } else {
        flow_hash(key)
    };
    let host = kernel.slot(found.table, slot(hash)).unwrap_or(NO_HOST);
    Some((found, u32::from(host)))
}

/// Begins a flow with a packet that belongs to none, if a service listens on its destination.
#[inline(always)]
fn begin<B: Buffer + ?Sized, K: Kernel>(packet: &mut B, kernel: &K, s: &mut Scratch, now: u32) -> Verdict {
    let Some((service, host)) = choose(kernel, &s.seen.key) else {
        return Verdict::new(Reason::L4Miss, Action::Pass);
    };
    // Looked up only where there is no flow, or where the frame's addresses differ from the flow's.
    if !kernel.is_for_us() {
        return Verdict::new(Reason::L4Miss, Action::Pass);
    }
    if s.shield.guard != NO_GUARD
        && let Some(judged) = shield::admit::begins(kernel, &s.seen, &mut s.shield)
    {
        return Verdict::new(judged.reason(), Action::Drop);
    }
    if host == u32::from(NO_HOST) {
        return Verdict::new(Reason::L4NoHost, Action::Drop);
    }
    let (ifindex, vlan) = kernel.arrival();
    s.forward = Flow {
        host,
        service: service.number,
        mode: service.mode,
        idle: service.idle,
        macs: kernel.way_back(),
        ifindex,
        vlan,
        ..Flow::default()
    };
    track::note(&mut s.forward, &s.seen, now);
    if service.mode == mode::NAT {
        let reason = map_ports(kernel, s, &service, now);
        if reason != Reason::L4Opened {
            return Verdict::new(reason, Action::Drop);
        }
    }
    // A table without room for it costs the flow its memory, not the client its answer: the next packet has the same hash.
    let _ = kernel.open(&s.seen.key, &s.forward, false);
    kernel.tally(service.number, s.seen.length, Direction::First);
    if s.seen.fragment == FIRST {
        kernel.learn_fragment(&fragment(&s.seen), s.seen.key.ports);
    }
    onward(packet, kernel, &s.seen, &mut s.out, &s.forward, Reason::L4Opened)
}

/// Forwards an ICMP error about a packet of a flow to the end that sent the packet.
#[inline(always)]
fn icmp<B: Buffer + ?Sized, K: Kernel>(packet: &mut B, kernel: &K, s: &mut Scratch) -> Verdict {
    let miss = Verdict::new(Reason::L4Miss, Action::Pass);
    if !kernel.is_for_us() {
        return miss;
    }
    let Some(quoted) = error::quoted(packet, &s.seen) else {
        return miss;
    };
    s.reverse = quoted.arriving;
    let flow = match find(kernel, &s.reverse) {
        Some(flow) => *flow,
        None => match choose(kernel, &s.reverse) {
            // The host answered by itself: it is the one to hear of it.
            Some((service, host)) if service.mode != mode::NAT && host != u32::from(NO_HOST) => Flow {
                host,
                mode: service.mode,
                ..Flow::default()
            },
            _ => return miss,
        },
    };
    if flow.mode != mode::NAT {
        return onward(packet, kernel, &s.seen, &mut s.out, &flow, Reason::L4Icmp);
    }
    if rewrite::hop(packet, &s.seen).is_none() {
        return Verdict::new(Reason::L4Hops, Action::Drop);
    }
    if error::translate(packet, &s.seen, &quoted, &flow).is_none() {
        return Verdict::new(Reason::L4Malformed, Action::Drop);
    }
    s.out.translated = 1;
    s.out.hops_before = 1;
    s.out.hops = 0;
    s.out.changes = Changes::default();
    if flow.state & state::REPLY != 0 {
        s.out.aim_at_client(&flow);
        return Verdict::new(Reason::L4Icmp, Action::Send);
    }
    match reach(kernel, flow.host) {
        Ok(host) => s.out.aim_at_host(host),
        Err(reason) => return Verdict::new(reason, Action::Drop),
    }
    Verdict::new(Reason::L4Icmp, Action::Send)
}

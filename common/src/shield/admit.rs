//! Admission of a packet to a guarded port: the checks, in their order.

use super::abi::{
    Bucket, ConnCountKey, Decision, DroppedPacket, Guard, GuardStats, LimitKind, NO_GUARD, NO_TABLE, RateCell,
    Settings, SynRate, flag,
};
use super::malformed::is_malformed;
use super::prefixes::DENY;
use super::{rate, source};
use crate::net::target::PortBit;
use crate::net::{Buffer, Key, ParsedHeaders};

/// Access to the shield's maps and to the packet's context. References into maps are not exclusive: other CPUs write
/// the same cells, each field whole.
#[allow(clippy::mut_from_ref, reason = "elements of maps; see above")]
pub trait ShieldMaps {
    /// The monotonic clock in ns, as fine as is cheap.
    fn clock_ns(&self) -> u64;
    /// Settings common to all guards.
    fn settings(&self) -> Option<&Settings>;
    /// Whether any address with this port is guarded.
    fn is_port_guarded(&self, at: PortBit) -> bool;
    /// Whether any listener on a prefix guards this port.
    fn is_wildcard_guarded(&self, at: PortBit) -> bool;
    /// The guard of a packet's destination; [`NO_GUARD`] for none.
    fn guard_of(&self, key: &Key, version: u32, round: u32) -> u32;
    /// The rules of the guard `number`.
    fn guard(&self, number: u32) -> Option<&Guard>;
    /// Verdict of the common prefixes on an address; their table begins at `first`.
    fn shared_verdict(&self, first: u32, address: &[u32; 4], is_v4: bool) -> u32;
    /// Verdict of a guard's own prefixes on an address.
    fn guard_verdict(&self, guard: u32, address: &[u32; 4], is_v4: bool) -> u32;
    /// The cells at a place of the rate table.
    fn bucket(&self, place: u32) -> Option<&mut Bucket>;
    /// Number of connections that the source has at the guard.
    fn conn_count(&self, key: &ConnCountKey) -> u32;
    /// Counts one more connection of the source at the guard.
    fn conn_opened(&self, key: &ConnCountKey);
    /// Counts one connection fewer of the source at the guard.
    fn conn_closed(&self, key: &ConnCountKey);
    /// The counters of a guard.
    fn guard_stats(&self, guard: u32) -> Option<&mut GuardStats>;
    /// The rate of SYNs to a guard.
    fn syn_rate(&self, guard: u32) -> Option<&mut SynRate>;
    /// Whether another sample of this decision may be taken, by this CPU's quota; takes it from the quota.
    fn take_sample_quota(&self, judged: Decision) -> bool;
    /// Sends a sample of a dropped packet to userspace.
    fn send_sample(&self, dropped: &DroppedPacket);
    /// The cookie for a SYN with a TCP header of `length` bytes, and the MSS that it encodes, where the listening
    /// socket's backlog is full.
    fn make_cookie(&self, key: &Key, headers: &[u32; 25], length: u32) -> Option<(u32, u16)>;
    /// Length of the frame, in bytes.
    fn frame_length(&self) -> u32;
    /// Returns `value` so that the verifier no longer knows where it comes from: see [`Buffer::hide_from_verifier`].
    fn hide_from_verifier(&self, value: u32) -> u32 {
        value
    }
    /// Interface by which the packet came in.
    fn ingress_ifindex(&self) -> u32;
}

/// Working memory of the shield: more than a program's stack holds.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ShieldScratch {
    /// Sample of a dropped packet, as it is sent to userspace.
    pub dropped: DroppedPacket,
    /// A copy of a SYN's headers, IP and TCP, words as in the packet.
    pub headers: [u32; 25],
    /// The guard of the packet at hand; [`NO_GUARD`] for none.
    pub guard: u32,
}

/// Decision of the shield about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Continue: the packet may be a service's.
    Continue,
    /// Pass the packet to the kernel, for a listener.
    PassToListener,
    /// Drop the packet.
    Drop(Decision),
    /// Check the listener's backlog: the SYN is one of a flood, and gets a cookie if the backlog is full.
    CheckBacklog,
}

/// Guard and common prefixes' verdict, by a packet's addresses and ports alone.
#[derive(Clone, Copy, Debug)]
pub struct PolicyMatch {
    /// Guard of the destination; [`NO_GUARD`] for none.
    pub guard: u32,
    /// Whether the common prefixes deny the source.
    pub is_denied: bool,
}

impl PolicyMatch {
    /// Match of a packet without a guard.
    pub const NONE: Self = Self {
        guard: NO_GUARD,
        is_denied: false,
    };
}

/// Looks up the guard of a packet's destination and the common prefixes' verdict on its source.
#[inline(always)]
pub fn match_policy<K: ShieldMaps>(kernel: &K, key: &Key, version: u32) -> PolicyMatch {
    let mut policy = PolicyMatch::NONE;
    let Some(settings) = kernel.settings() else {
        return policy;
    };
    policy.guard = kernel.guard_of(key, version, settings.generation);
    if policy.guard != NO_GUARD && settings.shared_prefixes != NO_TABLE {
        let verdict = kernel.shared_verdict(settings.shared_prefixes, &key.source, version == 4);
        policy.is_denied = kernel.hide_from_verifier(verdict) == DENY;
    }
    policy
}

/// Applies a guard's rules to a packet whose headers have been read.
#[inline(always)]
pub fn admit<B: Buffer + ?Sized, K: ShieldMaps>(
    packet: &B,
    kernel: &K,
    seen: &ParsedHeaders,
    policy: PolicyMatch,
    s: &mut ShieldScratch,
) -> Admission {
    let number = policy.guard;
    let (Some(settings), Some(guard)) = (kernel.settings(), kernel.guard(number)) else {
        return Admission::Continue;
    };
    s.guard = number;
    if policy.is_denied {
        return refuse(kernel, seen, s, Decision::Denied);
    }
    if guard.flags & flag::MALFORMED != 0 && is_malformed(packet, seen, kernel.frame_length()) {
        return refuse(kernel, seen, s, Decision::Malformed);
    }
    if guard.flags & flag::PREFIXES != 0
        && kernel.hide_from_verifier(kernel.guard_verdict(number, &seen.key.source, seen.version == 4)) == DENY
    {
        return refuse(kernel, seen, s, Decision::Denied);
    }
    if guard.flags & flag::RATES != 0
        && let Some(judged) = charge_rates(kernel, seen, settings, guard, number)
    {
        return refuse(kernel, seen, s, judged);
    }
    if guard.flags & flag::SERVICE != 0 {
        return Admission::Continue;
    }
    if !seen.is_syn() {
        return Admission::PassToListener;
    }
    match admit_connection(kernel, seen, s) {
        Some(judged) => Admission::Drop(judged),
        None if guard.flags & flag::COOKIES != 0 && is_flood(kernel, guard, number) => Admission::CheckBacklog,
        None => Admission::PassToListener,
    }
}

/// Finds the cell of a source, or claims one for it.
#[inline(always)]
fn source_cell<'a, K: ShieldMaps>(kernel: &K, bucket: &'a mut Bucket, tag: u64) -> &'a mut RateCell {
    let (at, is_new) = rate::find_cell(bucket, tag);
    let at = kernel.hide_from_verifier(at);
    rate::cell_at(bucket, at, (is_new != 0).then_some(tag))
}

/// Takes a packet and its bytes from the tokens that its source has left.
#[inline(always)]
fn charge_rates<K: ShieldMaps>(
    kernel: &K,
    seen: &ParsedHeaders,
    settings: &Settings,
    guard: &Guard,
    number: u32,
) -> Option<Decision> {
    let tag = source::tag(settings.seed, &source::mask_source(&seen.key.source, guard), number);
    let bucket = kernel.bucket(source::bucket_index(tag, settings.buckets))?;
    let (cell, now) = (source_cell(kernel, bucket, tag), kernel.clock_ns());
    if !rate::take_tokens(cell, guard, LimitKind::Packets, 1, now) {
        return Some(Decision::Packets);
    }
    if !rate::take_tokens(cell, guard, LimitKind::Bytes, seen.length, now) {
        return Some(Decision::Bytes);
    }
    None
}

/// Checks limits of connections for a packet that begins one, or a flow of UDP, and has passed all other checks: `Some`
/// if the source may not have another one.
#[inline(always)]
pub fn admit_connection<K: ShieldMaps>(kernel: &K, seen: &ParsedHeaders, s: &mut ShieldScratch) -> Option<Decision> {
    let number = s.guard;
    let guard = kernel.guard(number)?;
    let source = source::mask_source(&seen.key.source, guard);
    if guard.concurrent != 0 && kernel.conn_count(&ConnCountKey { source, guard: number }) >= guard.concurrent {
        let _ = refuse(kernel, seen, s, Decision::Concurrent);
        return Some(Decision::Concurrent);
    }
    if guard.limits[LimitKind::Connections as usize].burst == 0 {
        return None;
    }
    let settings = kernel.settings()?;
    let tag = source::tag(settings.seed, &source, number);
    let bucket = kernel.bucket(source::bucket_index(tag, settings.buckets))?;
    if rate::take_tokens(
        source_cell(kernel, bucket, tag),
        guard,
        LimitKind::Connections,
        1,
        kernel.clock_ns(),
    ) {
        return None;
    }
    let _ = refuse(kernel, seen, s, Decision::Connections);
    Some(Decision::Connections)
}

/// Counts a connection of the source: a flow of a service has been confirmed by both sides.
#[inline(always)]
pub fn count_conn_opened<K: ShieldMaps>(kernel: &K, seen: &ParsedHeaders, number: u32) {
    if let Some(guard) = kernel.guard(number)
        && guard.concurrent != 0
    {
        let source = source::mask_source(&seen.key.source, guard);
        kernel.conn_opened(&ConnCountKey { source, guard: number });
    }
}

/// Counts one connection fewer of the source: both sides have ended a flow of a service.
#[inline(always)]
pub fn count_conn_closed<K: ShieldMaps>(kernel: &K, seen: &ParsedHeaders, number: u32) {
    if let Some(guard) = kernel.guard(number)
        && guard.concurrent != 0
    {
        let source = source::mask_source(&seen.key.source, guard);
        kernel.conn_closed(&ConnCountKey { source, guard: number });
    }
}

/// Whether enough SYNs have come in this second to check the socket. Below that its backlog does not fill, or the
/// kernel answers the few that are too many with cookies of its own.
#[inline(always)]
fn is_flood<K: ShieldMaps>(kernel: &K, guard: &Guard, number: u32) -> bool {
    let Some(flood) = kernel.syn_rate(number) else {
        return false;
    };
    let second = (kernel.clock_ns() >> 30) as u32;
    // A CPU whose clock is a tick behind is in the same second as the others.
    if second.wrapping_sub(flood.second) as i32 > 0 {
        // A flood does not restart with each second. After a flood that has lasted for all of the previous second, the
        // first SYN of this one continues it.
        let goes_on = flood.syns / 2 >= guard.syn_threshold && flood.second.wrapping_add(1) == second;
        flood.syns = if goes_on { guard.syn_threshold } else { 0 };
        flood.second = second;
    }
    flood.syns = flood.syns.wrapping_add(1);
    flood.syns > guard.syn_threshold
}

/// Counts a decision against a packet, and samples the packet if the quota allows.
#[inline(always)]
pub fn refuse<K: ShieldMaps>(kernel: &K, seen: &ParsedHeaders, s: &mut ShieldScratch, judged: Decision) -> Admission {
    count_decision(kernel, s.guard, judged);
    if kernel.take_sample_quota(judged) {
        report_drop(kernel, seen, s, judged);
    }
    Admission::Drop(judged)
}

/// Sends a sample of a dropped packet to userspace.
#[inline(always)]
pub fn report_drop<K: ShieldMaps>(kernel: &K, seen: &ParsedHeaders, s: &mut ShieldScratch, judged: Decision) {
    let dropped = &mut s.dropped;
    let mut i = 0;
    while i < 4 {
        dropped.source[i] = seen.key.source[i];
        dropped.destination[i] = seen.key.destination[i];
        i += 1;
    }
    dropped.time = kernel.clock_ns();
    dropped.ports = seen.key.ports;
    dropped.protocol = seen.key.protocol;
    dropped.guard = s.guard;
    dropped.decision = judged as u32;
    dropped.length = seen.length;
    dropped.flags = seen.flags;
    dropped.ifindex = kernel.ingress_ifindex();
    kernel.send_sample(dropped);
}

/// Counts a decision against a packet, without a sample.
#[inline(always)]
pub fn count_decision<K: ShieldMaps>(kernel: &K, guard: u32, judged: Decision) {
    if guard != NO_GUARD
        && let Some(stats) = kernel.guard_stats(guard)
    {
        stats.decisions[judged as usize & 7] += 1;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::l4::model::ModelMaps;
    use std::vec::Vec;

    #[test]
    fn a_flood_goes_on_from_one_second_to_the_next_and_ends() {
        const SECOND: u32 = 1 << 10;
        let maps = ModelMaps::default();
        let guard = Guard {
            syn_threshold: 100,
            ..Guard::default()
        };
        let begin = maps.now.get();
        // Number of `syns` SYNs in a second that count as a flood's.
        let of = |second: u32, syns: u32| {
            maps.now.set(begin + (second + 1) * SECOND);
            (0..syns).filter(|_| is_flood(&maps, &guard, 1)).count()
        };
        let found: Vec<_> = [(0, 80), (1, 300), (2, 300), (3, 50), (4, 80), (5, 150), (9, 150)]
            .map(|(second, syns)| of(second, syns))
            .into();
        assert_eq!(found, [0, 200, 300, 50, 0, 50, 50]);
        // On a CPU whose clock is behind, the second goes on.
        of(10, 90);
        maps.now.set(maps.now.get() - 1);
        assert_eq!((0..20).filter(|_| is_flood(&maps, &guard, 1)).count(), 10);
        assert_eq!(of(10, 10), 10);
    }
}

//! First half of the programs: parses a packet, and asks the shield about it.

use super::abi::Fragment;
use super::icmp;
use super::maps::Maps;
use super::scratch::PacketScratch;
use super::verdict::{Action, Verdict};
use crate::Reason;
use crate::net::ip::{TCP, UDP};
use crate::net::packet::{FIRST_FRAGMENT, LATER_FRAGMENT, NOT_FRAGMENTED};
use crate::net::target::PortBit;
use crate::net::{Buffer, ParsedHeaders, packet};
use crate::shield::abi::{Decision, NO_GUARD};
use crate::shield::{
    self,
    admit::{Admission, PolicyMatch},
};

/// Result of the first look at a packet. No enum: programs must not copy what a variant leaves undefined.
#[derive(Clone, Copy, Debug)]
pub struct FastPath {
    /// Class of the packet, a constant of [`class`].
    pub class: u32,
    /// Guard of the packet's destination; [`NO_GUARD`] for none.
    pub guard: u32,
    /// Verdict, valid with [`class::DECIDED`] and [`class::TELL`].
    pub verdict: Verdict,
}

/// Values of [`FastPath::class`].
pub mod class {
    /// Decided: [`super::FastPath::verdict`] holds, and nothing is left to do.
    pub const DECIDED: u32 = 0;
    /// IPv4 packet with plain headers to a port that is guarded at some address.
    pub const GUARDED: u32 = 1;
    /// IPv4 packet with plain headers that is denied and counted; a sample must still be sent to userspace.
    pub const TELL: u32 = 2;
    /// IPv4 packet with plain headers to a port that is not guarded, and that some service may want.
    pub const SERVICE: u32 = 3;
    /// Any other packet: its headers have not been read.
    pub const SLOW_PATH: u32 = 4;
}

impl FastPath {
    /// Glance at a packet whose headers have not been read.
    pub const SLOW_PATH: Self = Self::new(class::SLOW_PATH, NO_GUARD, Verdict::new(Reason::L4Miss, Action::Pass));

    #[inline(always)]
    const fn new(kind: u32, guard: u32, verdict: Verdict) -> Self {
        Self {
            class: kind,
            guard,
            verdict,
        }
    }
}

/// A first look at an IPv4 packet, before any of it is stored. Most packets of a machine belong to no listener or
/// service, and there may be very many denied ones.
#[inline(always)]
pub fn fast_path<B: Buffer + ?Sized, K: Maps>(packet: &B, kernel: &K, l3: u32) -> FastPath {
    let (miss, denied) = (
        Verdict::new(Reason::L4Miss, Action::Pass),
        Verdict::new(Reason::ShieldDenied, Action::Drop),
    );
    let Some(key) = packet::parse_plain_key(packet, l3) else {
        return FastPath::SLOW_PATH;
    };
    let port = PortBit::of(&key);
    if !kernel.is_port_guarded(port) {
        let kind = if kernel.is_service_port(port) {
            class::SERVICE
        } else {
            class::DECIDED
        };
        return FastPath::new(kind, NO_GUARD, miss);
    }
    let policy = shield::admit::match_policy(kernel, &key, 4);
    if !policy.is_denied {
        return FastPath::new(class::GUARDED, policy.guard, miss);
    }
    shield::admit::count_decision(kernel, policy.guard, Decision::Denied);
    let is_sampled = kernel.take_sample_quota(Decision::Denied);
    FastPath::new(
        if is_sampled { class::TELL } else { class::DECIDED },
        policy.guard,
        denied,
    )
}

/// Reads the headers into `s`, and asks the shield. `None` if the packet may be a service's: [`super::forward`] goes
/// on.
#[inline(always)]
pub fn parse_and_admit<B: Buffer + ?Sized, K: Maps>(
    packet: &mut B,
    kernel: &K,
    l3: u32,
    version: u32,
    fast_path: FastPath,
    s: &mut PacketScratch,
) -> Option<Verdict> {
    if fast_path.class == class::DECIDED {
        return Some(fast_path.verdict);
    }
    s.reset();
    let policy = if fast_path.class == class::SLOW_PATH {
        match parse_headers(packet, kernel, l3, version, &mut s.seen) {
            HeaderKind::Parsed => {}
            HeaderKind::Truncated => return Some(refuse_truncated(kernel, version, s)),
            HeaderKind::Icmp => return None,
            HeaderKind::NotService(verdict) => return Some(verdict),
        }
        if kernel.is_port_guarded(PortBit::of(&s.seen.key)) {
            // The rest of the datagram belongs to the same guard.
            if s.seen.fragment == FIRST_FRAGMENT {
                kernel.record_fragment(&fragment_key(&s.seen), s.seen.key.ports);
            }
            shield::admit::match_policy(kernel, &s.seen.key, version)
        } else {
            PolicyMatch::NONE
        }
    } else {
        // [`fast_path`] has read these headers already, but the verifier does not remember.
        if packet::parse_plain(packet, l3, &mut s.seen).is_none() {
            return Some(Verdict::new(Reason::L4Malformed, Action::Pass));
        }
        if fast_path.class == class::SERVICE {
            return None;
        }
        if fast_path.class == class::TELL {
            s.shield.guard = fast_path.guard;
            shield::admit::report_drop(kernel, &s.seen, &mut s.shield, Decision::Denied);
            return Some(fast_path.verdict);
        }
        PolicyMatch {
            guard: fast_path.guard,
            is_denied: false,
        }
    };
    if policy.guard != NO_GUARD {
        match shield::admit::admit(packet, kernel, &s.seen, policy, &mut s.shield) {
            Admission::Drop(judged) => return Some(Verdict::new(judged.reason(), Action::Drop)),
            Admission::CheckBacklog => {
                let passed = Verdict::new(Reason::ShieldPassed, Action::Pass);
                return Some(answer_with_cookie(packet, kernel, s).unwrap_or(passed));
            }
            // No service has a listener's port, and no answer of a host arrives at it.
            Admission::PassToListener => return Some(Verdict::new(Reason::ShieldPassed, Action::Pass)),
            Admission::Continue => {}
        }
    }
    if kernel.is_service_port(PortBit::of(&s.seen.key)) {
        return None;
    }
    Some(Verdict::new(Reason::L4Miss, Action::Pass))
}

/// Kind of a packet's headers.
enum HeaderKind {
    /// TCP or UDP, or a later fragment whose first one is known.
    Parsed,
    /// First fragment of a TCP segment with less than a TCP header, but with its ports.
    Truncated,
    /// ICMP of the packet's address family.
    Icmp,
    /// Headers that no service's packet can have.
    NotService(Verdict),
}

/// Reads the headers of any packet into `seen`.
#[inline(always)]
fn parse_headers<B: Buffer + ?Sized, K: Maps>(
    packet: &B,
    kernel: &K,
    l3: u32,
    version: u32,
    seen: &mut ParsedHeaders,
) -> HeaderKind {
    let miss = Verdict::new(Reason::L4Miss, Action::Pass);
    seen.fragment = NOT_FRAGMENTED;
    if let Err(reason) = packet::parse_ip(packet, l3, version, kernel.frame_length(), seen) {
        return HeaderKind::NotService(unparsable(kernel, reason));
    }
    if !matches!(seen.key.protocol, TCP | UDP) {
        return if icmp::is_icmp(seen) {
            HeaderKind::Icmp
        } else {
            HeaderKind::NotService(miss)
        };
    }
    if seen.fragment == LATER_FRAGMENT {
        if overlaps_header(packet, seen) {
            return HeaderKind::NotService(unparsable(kernel, Reason::L4Malformed));
        }
        let Some(ports) = kernel.fragment(&fragment_key(seen)) else {
            return HeaderKind::NotService(miss);
        };
        seen.key.ports = ports;
        seen.flags = 0;
        seen.header_length = 0;
    } else if let Err(reason) = packet::parse_ports(packet, seen) {
        return if seen.fragment == FIRST_FRAGMENT && parse_truncated(packet, seen).is_some() {
            HeaderKind::Truncated
        } else {
            HeaderKind::NotService(unparsable(kernel, reason))
        };
    }
    HeaderKind::Parsed
}

/// Reads the ports of a TCP header that is not whole.
#[inline(always)]
fn parse_truncated<B: Buffer + ?Sized>(packet: &B, seen: &mut ParsedHeaders) -> Option<()> {
    if seen.key.protocol != TCP {
        return None;
    }
    seen.key.ports = packet.u32(seen.l4)?;
    (seen.flags, seen.header_length) = (0, 0);
    Some(())
}

/// Whether a fragment of IPv4 begins within the TCP header of its segment (RFC 3128): it could only replace flags that the
/// first fragment has shown. IPv6 has no such fragments (RFC 5722): the kernel drops all of a datagram whose parts overlap.
#[inline(always)]
fn overlaps_header<B: Buffer + ?Sized>(packet: &B, seen: &ParsedHeaders) -> bool {
    seen.version == 4 && seen.key.protocol == TCP && packet.u16(seen.l3 + 6).is_some_and(|field| field & 0x1fff == 1)
}

/// Verdict on the first fragment of a TCP segment whose header is not whole (RFC 1858): dropped at a guarded port
/// whatever `malformed` says. If the kernel reassembled it, no program would check the segment.
#[inline(always)]
fn refuse_truncated<K: Maps>(kernel: &K, version: u32, s: &mut PacketScratch) -> Verdict {
    if kernel.is_port_guarded(PortBit::of(&s.seen.key)) {
        let policy = shield::admit::match_policy(kernel, &s.seen.key, version);
        if policy.guard != NO_GUARD {
            s.shield.guard = policy.guard;
            let judged = if policy.is_denied {
                Decision::Denied
            } else {
                Decision::Malformed
            };
            shield::admit::refuse(kernel, &s.seen, &mut s.shield, judged);
            return Verdict::new(judged.reason(), Action::Drop);
        }
    }
    Verdict::new(Reason::L4Malformed, Action::Pass)
}

/// Verdict on a packet whose headers cannot be read, or are too many: passed to the kernel, unless the shield drops it
/// here to prevent evasion.
#[inline(always)]
fn unparsable<K: Maps>(kernel: &K, reason: Reason) -> Verdict {
    if kernel.settings().is_some_and(|settings| settings.drop_unparsable != 0) {
        return Verdict::new(Reason::ShieldMalformed, Action::Drop);
    }
    Verdict::new(reason, Action::Pass)
}

/// Answers a SYN with a cookie, if its listener's backlog is full.
#[inline(always)]
fn answer_with_cookie<B: Buffer + ?Sized, K: Maps>(
    packet: &mut B,
    kernel: &K,
    s: &mut PacketScratch,
) -> Option<Verdict> {
    let (cookie, mss) = shield::cookie::make_cookie(packet, kernel, &s.seen, &mut s.shield.headers)?;
    if !kernel.is_for_us() {
        return None;
    }
    shield::admit::count_decision(kernel, s.shield.guard, Decision::Cookie);
    s.out.set_macs(&kernel.reply_macs());
    let (ifindex, vlan) = kernel.ingress();
    s.out.ifindex = ifindex;
    s.out.xdp_ifindex = ifindex;
    s.out.vlan = u32::from(vlan);
    let action = match shield::cookie::write_syn_ack(packet, &s.seen, &mut s.out, cookie, mss) {
        Some(()) => Action::Send,
        None => Action::Drop,
    };
    Some(Verdict::new(Reason::ShieldCookie, action))
}

/// Key of the datagram that a packet is a part of.
#[inline(always)]
pub(super) const fn fragment_key(seen: &ParsedHeaders) -> Fragment {
    Fragment {
        source: seen.key.source,
        destination: seen.key.destination,
        id: seen.fragment_id,
        protocol: seen.key.protocol,
    }
}

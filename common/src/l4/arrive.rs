//! First half of the programs: parses a packet, and asks the shield about it.

use super::abi::{Fragment, PortBit};
use super::decide::Scratch;
use super::error;
use super::kernel::Kernel;
use super::packet::{self, FIRST, LATER, Seen, TCP, UDP, WHOLE};
use super::verdict::{Action, Verdict};
use crate::Reason;
use crate::cut::Buffer;
use crate::shield::abi::{Judged, NO_GUARD};
use crate::shield::{
    self,
    admit::{Admission, Gate},
};

/// Result of the first look at a packet. No enum: programs must not copy what a variant leaves undefined.
#[derive(Clone, Copy, Debug)]
pub struct Glance {
    /// One of [`seen`].
    pub kind: u32,
    /// Guard of the packet's destination; [`NO_GUARD`] for none.
    pub guard: u32,
    /// Verdict, valid with [`seen::ENDED`] and [`seen::TOLD`].
    pub verdict: Verdict,
}

/// Values of [`Glance::kind`].
pub mod seen {
    /// Decided: [`super::Glance::verdict`] stands, and nothing is left to do.
    pub const ENDED: u32 = 0;
    /// IPv4 packet with plain headers to a port that is guarded at some address.
    pub const PLAIN: u32 = 1;
    /// IPv4 packet with plain headers that is denied and counted; a sample has still to be sent to userspace.
    pub const TOLD: u32 = 2;
    /// IPv4 packet with plain headers to a port that is not guarded, and that some service may want.
    pub const WANTED: u32 = 3;
    /// Any other packet: its headers have not been read.
    pub const OTHER: u32 = 4;
}

impl Glance {
    /// Glance at a packet whose headers have not been read.
    pub const OTHER: Self = Self::new(seen::OTHER, NO_GUARD, Verdict::new(Reason::L4Miss, Action::Pass));

    #[inline(always)]
    const fn new(kind: u32, guard: u32, verdict: Verdict) -> Self {
        Self { kind, guard, verdict }
    }
}

/// A first look at an IPv4 packet, before anything of it is written down: most packets of a machine are nobody's, and of
/// those that are denied there may be very many.
#[inline(always)]
pub fn glance<B: Buffer + ?Sized, K: Kernel>(packet: &B, kernel: &K, l3: u32) -> Glance {
    let (miss, denied) = (
        Verdict::new(Reason::L4Miss, Action::Pass),
        Verdict::new(Reason::ShieldDenied, Action::Drop),
    );
    let Some(key) = packet::straight(packet, l3) else {
        return Glance::OTHER;
    };
    let port = PortBit::of(&key);
    if !kernel.is_guarded(port) {
        let kind = if kernel.is_wanted(port) {
            seen::WANTED
        } else {
            seen::ENDED
        };
        return Glance::new(kind, NO_GUARD, miss);
    }
    let gate = shield::admit::gate(kernel, &key, 4);
    if !gate.is_denied {
        return Glance::new(seen::PLAIN, gate.guard, miss);
    }
    shield::admit::count(kernel, gate.guard, Judged::Denied);
    let is_told = kernel.may_sample(Judged::Denied);
    Glance::new(if is_told { seen::TOLD } else { seen::ENDED }, gate.guard, denied)
}

/// Reads the headers into `s`, and asks the shield. `None` if the packet may be a service's: [`super::forward`] goes
/// on.
#[inline(always)]
pub fn arrive<B: Buffer + ?Sized, K: Kernel>(
    packet: &mut B,
    kernel: &K,
    l3: u32,
    version: u32,
    glance: Glance,
    s: &mut Scratch,
) -> Option<Verdict> {
    if glance.kind == seen::ENDED {
        return Some(glance.verdict);
    }
    s.prepare();
    let gate = if glance.kind == seen::OTHER {
        match read(packet, kernel, l3, version, &mut s.seen) {
            Headers::Whole => {}
            Headers::Icmp => return None,
            Headers::Other(verdict) => return Some(verdict),
        }
        if kernel.is_guarded(PortBit::of(&s.seen.key)) {
            // The rest of the datagram is the same guard's.
            if s.seen.fragment == FIRST {
                kernel.learn_fragment(&fragment(&s.seen), s.seen.key.ports);
            }
            shield::admit::gate(kernel, &s.seen.key, version)
        } else {
            Gate::NONE
        }
    } else {
        // [`glance`] has read these headers already, but the verifier does not remember.
        if packet::read_straight(packet, l3, &mut s.seen).is_none() {
            return Some(Verdict::new(Reason::L4Malformed, Action::Pass));
        }
        if glance.kind == seen::WANTED {
            return None;
        }
        if glance.kind == seen::TOLD {
            s.shield.guard = glance.guard;
            shield::admit::tell(kernel, &s.seen, &mut s.shield, Judged::Denied);
            return Some(glance.verdict);
        }
        Gate {
            guard: glance.guard,
            is_denied: false,
        }
    };
    if gate.guard != NO_GUARD {
        match shield::admit::admit(packet, kernel, &s.seen, gate, &mut s.shield) {
            Admission::Drop(judged) => return Some(Verdict::new(judged.reason(), Action::Drop)),
            Admission::Syn => {
                let passed = Verdict::new(Reason::ShieldPassed, Action::Pass);
                return Some(cookie(packet, kernel, s).unwrap_or(passed));
            }
            // No service has a listener's port, and no answer of a host comes to it.
            Admission::Listener => return Some(Verdict::new(Reason::ShieldPassed, Action::Pass)),
            Admission::Pass => {}
        }
    }
    if kernel.is_wanted(PortBit::of(&s.seen.key)) {
        return None;
    }
    Some(Verdict::new(Reason::L4Miss, Action::Pass))
}

/// Kind of a packet's headers.
enum Headers {
    /// TCP or UDP, or a later fragment whose first one is known.
    Whole,
    /// ICMP of the packet's IP version.
    Icmp,
    /// Headers that no service's packet can have.
    Other(Verdict),
}

/// Reads the headers of any packet into `seen`.
#[inline(always)]
fn read<B: Buffer + ?Sized, K: Kernel>(packet: &B, kernel: &K, l3: u32, version: u32, seen: &mut Seen) -> Headers {
    let miss = Verdict::new(Reason::L4Miss, Action::Pass);
    seen.fragment = WHOLE;
    if let Err(reason) = packet::ip(packet, l3, version, kernel.frame(), seen) {
        return Headers::Other(unreadable(kernel, seen, reason));
    }
    if !matches!(seen.key.protocol, TCP | UDP) {
        return if error::is_icmp(seen) {
            Headers::Icmp
        } else {
            Headers::Other(miss)
        };
    }
    if seen.fragment == LATER {
        let Some(ports) = kernel.fragment(&fragment(seen)) else {
            return Headers::Other(miss);
        };
        seen.key.ports = ports;
        seen.flags = 0;
        seen.header = 0;
    } else if let Err(reason) = packet::ports(packet, seen) {
        return Headers::Other(unreadable(kernel, seen, reason));
    }
    Headers::Whole
}

/// Verdict on a packet whose headers cannot be read, or are too many: passed to the kernel, unless the shield drops it
/// here, lest it be a way around. A fragment is passed: the first part of a header may be all that it has.
#[inline(always)]
fn unreadable<K: Kernel>(kernel: &K, seen: &Seen, reason: Reason) -> Verdict {
    if seen.fragment == WHOLE && kernel.settings().is_some_and(|settings| settings.malformed != 0) {
        return Verdict::new(Reason::ShieldMalformed, Action::Drop);
    }
    Verdict::new(reason, Action::Pass)
}

/// Answers a SYN with a cookie, if its listener's backlog is full.
#[inline(always)]
fn cookie<B: Buffer + ?Sized, K: Kernel>(packet: &mut B, kernel: &K, s: &mut Scratch) -> Option<Verdict> {
    let (cookie, mss) = shield::cookie::wanted(packet, kernel, &s.seen, &mut s.shield.headers)?;
    if !kernel.is_for_us() {
        return None;
    }
    shield::admit::count(kernel, s.shield.guard, Judged::Cookie);
    s.out.set_macs(&kernel.way_back());
    let (ifindex, vlan) = kernel.arrival();
    s.out.ifindex = ifindex;
    s.out.port = ifindex;
    s.out.vlan = u32::from(vlan);
    let action = match shield::cookie::answer(packet, &s.seen, &mut s.out, cookie, mss) {
        Some(()) => Action::Send,
        None => Action::Drop,
    };
    Some(Verdict::new(Reason::ShieldCookie, action))
}

/// Key of the datagram that a packet is a part of.
#[inline(always)]
pub(super) const fn fragment(seen: &Seen) -> Fragment {
    Fragment {
        source: seen.key.source,
        destination: seen.key.destination,
        id: seen.id,
        protocol: seen.key.protocol,
    }
}

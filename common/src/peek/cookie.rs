//! SYN cookies of the kernel peek (RFC 4987, section 3.6): everything that must be known of a handshake, in the
//! sequence number of the SYN-ACK and in the clock of its timestamps.
//!
//! The number is a keyed hash of the addresses, ports and the time (SipHash-1-3), plus the client's own number, plus
//! the agreed options in the uppermost bits. With timestamps there are eight bits of options, and the other half of the
//! hash shifts the clock that the client echoes. A blind sender must guess 24 bits and 14 more. Without timestamps
//! there are three bits of options, for the few forms of SYN that Windows sends, and 29 bits to guess.
//!
//! Nodes that share addresses have one key ([`super::cookie_key`]), and the number says which node made it. Of `n` nodes'
//! cookies a blind sender must guess one: log2(n) bits less.

use crate::cut::flow::{OFFERED_SACK, OFFERED_SCALE, OFFERED_TIMESTAMPS};
use crate::cut::handshake::SynOptions;
use crate::net::Tuple;

/// Nanoseconds of the key's clock in an epoch, as a power of two: 69 s. A cookie is good in its epoch and the next.
pub const EPOCH_SHIFT_NS: u32 = 36;

/// Age of an echoed clock up to which a cookie is accepted.
pub const MAX_ECHO_AGE_MS: u32 = 140_000;

/// Time by which the clock of the node that made a cookie may be ahead of this node's.
const MAX_SKEW_MS: u32 = 2000;

/// Number of a cookie's node, as a power of two by which its number is shifted. Half of that is more than
/// [`MAX_LATER_BYTES`] on one side, and than a probe on the other.
const SLOT_SHIFT: u32 = 14;

/// Bytes by which a segment may be after the first one and still count as one of the same client.
const MAX_LATER_BYTES: u32 = 1 << (SLOT_SHIFT - 1);

/// Value of [`CookieCheck::slot`] of a cookie that an earlier self of this node has made.
pub const OF_ANOTHER: u32 = u32::MAX;

/// MSS of a client, by the three bits that a cookie has for it. Hosts are offered the next lower one.
const MSS_STEPS: [u16; 8] = [536, 1200, 1300, 1360, 1400, 1440, 1452, 1460];

/// Value of the four bits for the window scale where the client has none.
const NO_SCALE: u32 = 15;

/// Uppermost bit of the options: selective acknowledgements.
const SACK_BIT: u32 = 128;

/// Window scale of Windows, which the form without timestamps knows beside none.
const WINDOWS_SCALE: u32 = 8;

/// Bits of a cookie below its options, with timestamps and without.
const LOW_WITH_TIMESTAMPS: u32 = 0x00ff_ffff;
const LOW_WITHOUT: u32 = 0x1fff_ffff;

/// Hash of a handshake: one half for the number, one for the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CookieHash(u64);

impl CookieHash {
    const fn number(self) -> u32 {
        self.0 as u32
    }

    /// Offset of the client's clock, as sent to it, from the milliseconds of `CLOCK_MONOTONIC`.
    #[inline(always)]
    #[must_use]
    pub const fn clock(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Sender of a segment, by its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Standing {
    /// A sender that has got no cookie recently.
    Unknown = 0,
    /// A client whose next byte is its first one.
    First = 1,
    /// A client, some bytes after its first one.
    Later = 2,
    /// A client that checks whether we are there (keep-alive): one byte before its first one.
    Probe = 3,
}

/// Facts about the earlier handshake that a segment shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CookieCheck {
    /// Place of the segment in the connection.
    pub standing: Standing,
    /// Offset of the clock that was sent to the client.
    pub clock: u32,
    /// Node that made the cookie: its place in the list of nodes, or [`OF_ANOTHER`].
    pub slot: u32,
    /// Options that the client has offered: an MSS that is not larger, the rest exactly.
    pub options: SynOptions,
}

/// Epoch of the cookies that are made at a time of the key's clock.
#[inline(always)]
#[must_use]
pub const fn epoch(clock_ns: u64) -> u32 {
    (clock_ns >> EPOCH_SHIFT_NS) as u32
}

/// Later one of the two epochs whose cookies are accepted. Another node's clock may be ahead.
#[inline(always)]
#[must_use]
pub const fn last_epoch(clock_ns: u64) -> u32 {
    epoch(clock_ns.wrapping_add(MAX_SKEW_MS as u64 * 1_000_000))
}

/// Hash of a handshake in an epoch.
#[inline(always)]
#[must_use]
pub fn hash(key: &[u64; 2], tuple: &Tuple, epoch: u32, has_timestamps: bool) -> CookieHash {
    let words = |a: u32, b: u32| (a as u64) << 32 | b as u64;
    let mut state = SipState::new(key);
    state.absorb(words(tuple.source[0], tuple.source[1]));
    state.absorb(words(tuple.source[2], tuple.source[3]));
    state.absorb(words(tuple.destination[0], tuple.destination[1]));
    state.absorb(words(tuple.destination[2], tuple.destination[3]));
    state.absorb(words(tuple.ports, epoch << 1 | has_timestamps as u32));
    CookieHash(state.finish())
}

/// Sequence number of the SYN-ACK to a SYN with this `seq`, by the node with this place in the list of nodes; `None` for
/// options that a cookie cannot hold: the kernel then does the whole handshake.
#[inline(always)]
#[must_use]
pub fn make(hash: CookieHash, seq: u32, offer: &SynOptions, slot: u32) -> Option<u32> {
    let step = mss_step(offer.mss);
    let has_scale = offer.offered & OFFERED_SCALE != 0;
    let scale = if has_scale { offer.scale as u32 } else { NO_SCALE };
    let sack = (offer.offered & OFFERED_SACK != 0) as u32;
    let options = if offer.offered & OFFERED_TIMESTAMPS != 0 {
        (step | scale << 3 | sack << 7) << 24
    } else {
        if step == 0 || sack == 0 || (scale != NO_SCALE && scale != WINDOWS_SCALE) {
            return None;
        }
        ((step - 1) >> 1) << 29 | ((scale == WINDOWS_SCALE) as u32) << 31
    };
    let number = hash.number().wrapping_add(seq).wrapping_add(slot << SLOT_SHIFT);
    Some(number.wrapping_add(options))
}

/// Largest step that is no larger than `mss`.
#[inline(always)]
fn mss_step(mss: u16) -> u32 {
    let mut step = 0;
    let mut i = 1;
    while i < MSS_STEPS.len() {
        if mss >= MSS_STEPS[i] {
            step = i as u32;
        }
        i += 1;
    }
    step
}

/// Numbers of a segment that may be of a client with a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    /// Its sequence number.
    pub seq: u32,
    /// Its acknowledgement number.
    pub ack: u32,
    /// Its TSecr; `None` without timestamps.
    pub ts_ecr: Option<u32>,
}

/// Checks a segment against the hash of one epoch, at `now_ms` milliseconds of the key's clock; `None` where it does not
/// fit, or where it is of none of as many nodes.
#[inline(always)]
#[must_use]
pub fn check(hash: CookieHash, echo: &Echo, now_ms: u32, nodes: u32) -> Option<CookieCheck> {
    // The SYN-ACK's number is one less than the client's acknowledgement; the client's first byte follows its SYN.
    let found = echo.ack.wrapping_sub(echo.seq).wrapping_sub(hash.number());
    let low = if echo.ts_ecr.is_some() {
        LOW_WITH_TIMESTAMPS
    } else {
        LOW_WITHOUT
    };
    let slot = (found.wrapping_add(MAX_LATER_BYTES) & low) >> SLOT_SHIFT;
    if slot >= nodes {
        return None;
    }
    let of_slot = found.wrapping_sub(slot << SLOT_SHIFT);
    let behind = of_slot & low;
    let standing = if behind == 0 {
        Standing::First
    } else if behind == 1 {
        Standing::Probe
    } else if behind > low - MAX_LATER_BYTES {
        Standing::Later
    } else {
        return None;
    };
    // A segment that is `k` bytes further borrows from the options: they are those of the number without `k`.
    let bits = if let Standing::Later = standing {
        of_slot.wrapping_add(low + 1 - behind)
    } else {
        of_slot.wrapping_sub(behind)
    };
    let mut clock = hash.clock();
    let options = if let Some(ts_ecr) = echo.ts_ecr {
        let age = now_ms.wrapping_add(clock).wrapping_sub(ts_ecr);
        if age.wrapping_add(MAX_SKEW_MS) > MAX_ECHO_AGE_MS + MAX_SKEW_MS {
            return None;
        }
        if age > MAX_ECHO_AGE_MS {
            // Ahead of this node's clock, which must not go back for the client (PAWS, RFC 7323).
            clock = clock.wrapping_sub(age);
        }
        bits >> 24
    } else {
        let scale = if bits >> 31 != 0 { WINDOWS_SCALE } else { NO_SCALE };
        ((bits >> 29 & 3) * 2 + 1) | scale << 3 | SACK_BIT
    };
    Some(CookieCheck {
        standing,
        clock,
        slot,
        options: offered(options, echo.ts_ecr.is_some()),
    })
}

/// Options by the bits of a cookie.
#[inline(always)]
fn offered(bits: u32, has_timestamps: bool) -> SynOptions {
    let scale = bits >> 3 & 15;
    let has_scale = scale != NO_SCALE;
    let mut offered = 0;
    if has_scale {
        offered |= OFFERED_SCALE;
    }
    if bits & SACK_BIT != 0 {
        offered |= OFFERED_SACK;
    }
    if has_timestamps {
        offered |= OFFERED_TIMESTAMPS;
    }
    SynOptions {
        mss: MSS_STEPS[(bits & 7) as usize],
        scale: if has_scale { scale as u8 } else { 0 },
        offered,
        ts_val: 0,
    }
}

/// Sequence number for a connection to a host (RFC 6528): a clock of 64 ns, plus a keyed hash of the connection.
#[inline(always)]
#[must_use]
pub fn initial_number(key: &[u64; 2], tuple: &Tuple, now_ns: u64) -> u32 {
    hash(key, tuple, u32::MAX, false)
        .number()
        .wrapping_add((now_ns >> 6) as u32)
}

/// State of SipHash-1-3 (Aumasson, Bernstein: "SipHash: a fast short-input PRF", 2012).
struct SipState([u64; 4], u64);

impl SipState {
    #[inline(always)]
    const fn new(key: &[u64; 2]) -> Self {
        Self(
            [
                key[0] ^ 0x736f_6d65_7073_6575,
                key[1] ^ 0x646f_7261_6e64_6f6d,
                key[0] ^ 0x6c79_6765_6e65_7261,
                key[1] ^ 0x7465_6462_7974_6573,
            ],
            0,
        )
    }

    #[inline(always)]
    const fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.0;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.0 = [a, b, c, d];
    }

    #[inline(always)]
    const fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.0[0] ^= word;
        self.1 += 8;
    }

    #[inline(always)]
    const fn finish(mut self) -> u64 {
        // The last word holds the length alone: messages are whole words.
        let last = self.1 << 56;
        self.0[3] ^= last;
        self.round();
        self.0[0] ^= last;
        self.0[2] ^= 0xff;
        self.round();
        self.round();
        self.round();
        self.0[0] ^ self.0[1] ^ self.0[2] ^ self.0[3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::hash::Hasher as _;

    const KEY: [u64; 2] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];

    fn tuple(port: u32) -> Tuple {
        Tuple {
            source: [0, 0, 0xffff, 0x0a00_0001],
            destination: [0, 0, 0xffff, 0x0a00_0002],
            ports: port << 16 | 80,
        }
    }

    #[test]
    fn the_hash_is_siphash() {
        // The standard library's is SipHash-1-3 with a key of zeros.
        let mut ours = SipState::new(&[0, 0]);
        let mut theirs = std::collections::hash_map::DefaultHasher::new();
        for word in [1u64, u64::MAX, 0x0123_4567_89ab_cdef] {
            ours.absorb(word);
            theirs.write(&word.to_le_bytes());
        }
        assert_eq!(ours.finish(), theirs.finish());
    }

    fn with_timestamps() -> impl Strategy<Value = SynOptions> {
        (536u16..9000, 0u8..=14, any::<bool>(), any::<bool>()).prop_map(|(mss, scale, has_scale, has_sack)| {
            SynOptions {
                mss,
                scale: if has_scale { scale } else { 0 },
                offered: OFFERED_TIMESTAMPS
                    | if has_scale { OFFERED_SCALE } else { 0 }
                    | if has_sack { OFFERED_SACK } else { 0 },
                ts_val: 0,
            }
        })
    }

    fn without_timestamps() -> impl Strategy<Value = SynOptions> {
        (1200u16..9000, any::<bool>()).prop_map(|(mss, has_scale)| SynOptions {
            mss,
            scale: if has_scale { 8 } else { 0 },
            offered: OFFERED_SACK | if has_scale { OFFERED_SCALE } else { 0 },
            ts_val: 0,
        })
    }

    const NODES: u32 = 5;

    fn echo_of(hash: CookieHash, seq: u32, offer: &SynOptions, now: u32, behind: u32, slot: u32) -> Echo {
        Echo {
            seq: seq.wrapping_add(1).wrapping_add(behind),
            ack: make(hash, seq, offer, slot).unwrap().wrapping_add(1),
            ts_ecr: (offer.offered & OFFERED_TIMESTAMPS != 0).then(|| now.wrapping_add(hash.clock())),
        }
    }

    proptest! {
        #[test]
        fn a_cookie_says_what_the_syn_said(
            offer in prop_oneof![with_timestamps(), without_timestamps()],
            seq in any::<u32>(), port in 1u32..65536, epoch in any::<u32>(), now in any::<u32>(),
            behind in prop_oneof![Just(0u32), Just(u32::MAX), 1u32..8192], late in 0u32..100_000, slot in 0..NODES,
        ) {
            let hash = hash(&KEY, &tuple(port), epoch, offer.offered & OFFERED_TIMESTAMPS != 0);
            let echo = echo_of(hash, seq, &offer, now, behind, slot);
            prop_assert_eq!(check(hash, &echo, now, slot), None, "of no node");
            let check = check(hash, &echo, now.wrapping_add(late), NODES).unwrap();
            prop_assert_eq!(check.slot, slot);
            prop_assert_eq!(check.standing, match behind {
                0 => Standing::First,
                u32::MAX => Standing::Probe,
                _ => Standing::Later,
            });
            prop_assert_eq!((check.options.scale, check.options.offered), (offer.scale, offer.offered));
            prop_assert!(check.options.mss <= offer.mss);
            prop_assert_eq!(check.clock, hash.clock());
        }

        #[test]
        fn a_syn_cookie_for_another_port_or_epoch_is_refused(
            offer in prop_oneof![with_timestamps(), without_timestamps()],
            seq in any::<u32>(), port in 1u32..65535, epoch in any::<u32>(), now in any::<u32>(),
        ) {
            let has_timestamps = offer.offered & OFFERED_TIMESTAMPS != 0;
            let of = |port, epoch, has_timestamps| hash(&KEY, &tuple(port), epoch, has_timestamps);
            let echo = echo_of(of(port, epoch, has_timestamps), seq, &offer, now, 0, 0);
            for wrong in [
                of(port + 1, epoch, has_timestamps),
                of(port, epoch.wrapping_add(2) & 0x7fff_ffff, has_timestamps),
            ] {
                prop_assert_eq!(check(wrong, &echo, now, 1), None);
            }
        }
    }

    #[test]
    fn an_echo_that_is_too_old_is_not_believed() {
        let offer = SynOptions {
            mss: 1460,
            scale: 7,
            offered: OFFERED_SCALE | OFFERED_SACK | OFFERED_TIMESTAMPS,
            ts_val: 0,
        };
        let hash = hash(&KEY, &tuple(40_000), 7, true);
        let echo = echo_of(hash, 99, &offer, 10_000, 0, 0);
        let clock_at = |now| check(hash, &echo, now, 1).map(|check| check.clock);
        assert_eq!(clock_at(10_000 + MAX_ECHO_AGE_MS), Some(hash.clock()));
        assert_eq!(clock_at(10_001 + MAX_ECHO_AGE_MS), None);
        // By a node whose clock is ahead: what the client gets next is no earlier.
        assert_eq!(clock_at(9_000), Some(hash.clock().wrapping_add(1000)));
        assert_eq!(
            clock_at(10_000 - MAX_SKEW_MS),
            Some(hash.clock().wrapping_add(MAX_SKEW_MS))
        );
        assert_eq!(clock_at(9_999 - MAX_SKEW_MS), None);
    }

    #[test]
    fn cookies_of_a_clock_that_is_ahead_are_accepted() {
        let second = 1_000_000_000;
        for now in (0..300).map(|at| at * second) {
            let accepted = [last_epoch(now).wrapping_sub(1), last_epoch(now)];
            for made in [now + 2 * second, now, now.saturating_sub(66 * second)] {
                assert!(accepted.contains(&epoch(made)), "made at {made}, at {now}");
            }
        }
    }

    #[test]
    fn syn_options_a_cookie_cannot_hold_are_left_to_the_kernel() {
        let hash = hash(&KEY, &tuple(40_000), 7, false);
        let offer = |mss, scale, offered| SynOptions {
            mss,
            scale,
            offered,
            ts_val: 0,
        };
        assert_eq!(make(hash, 1, &offer(536, 0, OFFERED_SACK), 0), None);
        assert_eq!(make(hash, 1, &offer(1460, 0, 0), 0), None);
        assert_eq!(make(hash, 1, &offer(1460, 7, OFFERED_SACK | OFFERED_SCALE), 0), None);
        assert!(make(hash, 1, &offer(1460, 8, OFFERED_SACK | OFFERED_SCALE), 0).is_some());
    }
}

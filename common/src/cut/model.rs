//! Rewriting against a model: two TCP connections that carry the same two streams, each in its own numbers.
//!
//! A packet is described by positions in the streams. Written for leg A and rewritten, it must be the packet that the
//! same description gives on leg B, byte for byte, checksum included; and the other way round.

extern crate std;

use std::vec::Vec;

use proptest::prelude::*;

use super::rewrite::{self, HeaderRewrite, TimestampRewrite};
use crate::net::header::{ACK, AT_CHECKSUM, FIN};
use crate::net::{Diff, Tcp, checksum, seq};

/// Ports, initial numbers and clocks of one leg.
#[derive(Clone, Copy, Debug)]
struct Leg {
    /// Ports of the sender and of the receiver.
    ports: (u16, u16),
    /// Sequence number of the first byte of the sender's stream, and of the receiver's.
    first: (u32, u32),
    /// Offset of the sender's clock, and of the receiver's.
    clock: (u32, u32),
    /// Scale of the sender's window on this leg.
    scale: u8,
}

/// A packet, described by positions in the streams.
#[derive(Clone, Debug)]
struct LegPacket {
    at: u32,
    acked: u32,
    fin: bool,
    acknowledges: bool,
    window: u32,
    stamps: Option<(u32, u32)>,
    sack: Vec<(u32, u32)>,
    /// Padding in front of each option.
    padding: u8,
    sack_first: bool,
}

impl LegPacket {
    fn options(&self, leg: &Leg) -> Vec<u8> {
        let mut stamps = Vec::new();
        if let Some((value, echo)) = self.stamps {
            stamps.extend(std::vec![1u8; usize::from(self.padding % 3)]);
            stamps.extend([8, 10]);
            stamps.extend(value.wrapping_add(leg.clock.0).to_be_bytes());
            let echo = if self.acknowledges {
                echo.wrapping_add(leg.clock.1)
            } else {
                0
            };
            stamps.extend(echo.to_be_bytes());
        }
        let mut sack = Vec::new();
        if !self.sack.is_empty() {
            sack.extend(std::vec![1u8; usize::from(self.padding / 3)]);
            sack.extend([5, 2 + 8 * self.sack.len() as u8]);
            for (from, to) in &self.sack {
                sack.extend(leg.first.1.wrapping_add(*from).to_be_bytes());
                sack.extend(leg.first.1.wrapping_add(*to).to_be_bytes());
            }
        }
        let mut all = if self.sack_first {
            [sack, stamps].concat()
        } else {
            [stamps, sack].concat()
        };
        while all.len() % 4 != 0 {
            all.push(1);
        }
        all
    }

    /// The TCP header as written for a leg, with its checksum over itself alone.
    fn on(&self, leg: &Leg) -> Vec<u8> {
        let options = self.options(leg);
        let mut bytes = Vec::new();
        bytes.extend(leg.ports.0.to_be_bytes());
        bytes.extend(leg.ports.1.to_be_bytes());
        bytes.extend(leg.first.0.wrapping_add(self.at).to_be_bytes());
        let ack = if self.acknowledges {
            leg.first.1.wrapping_add(self.acked)
        } else {
            0
        };
        bytes.extend(ack.to_be_bytes());
        let flags = (u8::from(self.fin) * FIN) | (u8::from(self.acknowledges) * ACK);
        bytes.extend([(((20 + options.len()) / 4) << 4) as u8, flags]);
        bytes.extend(((self.window >> leg.scale) as u16).to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(options);
        let sum = checksum::of(&bytes, 0);
        bytes[16..18].copy_from_slice(&sum.to_be_bytes());
        bytes
    }
}

fn leg() -> impl Strategy<Value = Leg> {
    (any::<(u16, u16)>(), any::<(u32, u32)>(), any::<(u32, u32)>(), 0u8..8).prop_map(|(ports, first, clock, scale)| {
        Leg {
            ports,
            first,
            clock,
            scale,
        }
    })
}

fn packet() -> impl Strategy<Value = LegPacket> {
    (
        any::<(u32, u32, bool)>(),
        prop::bool::weighted(0.9),
        0u32..500,
        prop::option::of(any::<(u32, u32)>()),
        prop::collection::vec(any::<(u32, u32)>(), 0..4),
        (0u8..9, any::<bool>()),
    )
        .prop_map(
            |((at, acked, fin), acknowledges, window, stamps, sack, (padding, sack_first))| {
                // 40 bytes of options at most, and the header of a receiver that has nothing to acknowledge.
                let most = if stamps.is_some() { 3 } else { 4 };
                let sack = if acknowledges {
                    sack.into_iter().take(most.min(2)).collect()
                } else {
                    Vec::new()
                };
                LegPacket {
                    at,
                    acked,
                    fin,
                    acknowledges,
                    // A multiple of the coarsest scale: nothing is rounded.
                    window: window << 7,
                    // An echo of 0 says that there is none.
                    stamps: stamps.filter(|_| true),
                    sack,
                    padding,
                    sack_first,
                }
            },
        )
}

fn rewritten(mut bytes: Vec<u8>, change: &HeaderRewrite, stamps: &mut TimestampRewrite) -> Option<Vec<u8>> {
    let tcp = Tcp::read(bytes.as_slice(), 0)?;
    let options = rewrite::options(bytes.as_mut_slice(), 0, &tcp)?;
    let diff: Diff = rewrite::tcp(bytes.as_mut_slice(), 0, &tcp, &options, change, stamps)?;
    let at = AT_CHECKSUM as usize;
    let sum = diff.apply_to(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    Some(bytes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A rewritten packet equals what a sender on the other leg would have written.
    #[test]
    fn a_packet_means_the_same_on_either_leg(a in leg(), b in leg(), packet in packet()) {
        let change = HeaderRewrite {
            source: b.ports.0,
            destination: b.ports.1,
            seq_delta: b.first.0.wrapping_sub(a.first.0),
            ack_delta: b.first.1.wrapping_sub(a.first.1),
            scale_from: a.scale,
            scale_to: b.scale,
            ack_ahead: 0,
        };
        let by = b.clock.1.wrapping_sub(a.clock.1);
        let mut stamps = TimestampRewrite {
            val_delta: b.clock.0.wrapping_sub(a.clock.0),
            is_known: true,
            ecr_delta: Some(by),
            ..TimestampRewrite::default()
        };
        // An echo of 0 means that there is none, on either leg.
        let echo = packet.stamps.map(|(_, echo)| echo.wrapping_add(a.clock.1));
        prop_assume!(echo != Some(0));
        let got = rewritten(packet.on(&a), &change, &mut stamps).unwrap();
        let want = packet.on(&b);
        let at = AT_CHECKSUM as usize;
        let sum = |bytes: &[u8]| u16::from_be_bytes([bytes[at], bytes[at + 1]]) % 0xffff;
        prop_assert_eq!(sum(&got), sum(&want));
        prop_assert_eq!(&got[..at], &want[..at]);
        prop_assert_eq!(&got[at + 2..], &want[at + 2..]);
    }

    /// Rewriting from leg A to leg B and back gives the original packet.
    #[test]
    fn rewriting_can_be_undone(a in leg(), b in leg(), packet in packet()) {
        let there = |from: &Leg, to: &Leg| HeaderRewrite {
            source: to.ports.0,
            destination: to.ports.1,
            seq_delta: to.first.0.wrapping_sub(from.first.0),
            ack_delta: to.first.1.wrapping_sub(from.first.1),
            scale_from: 7,
            scale_to: 7,
            ack_ahead: 0,
        };
        let mut out = TimestampRewrite { val_delta: 5, is_known: true, ecr_delta: Some(9), ..TimestampRewrite::default() };
        let mut back = TimestampRewrite {
            val_delta: 5u32.wrapping_neg(),
            is_known: true,
            ecr_delta: Some(9u32.wrapping_neg()),
            ..TimestampRewrite::default()
        };
        let before = packet.on(&a);
        let echoes = |bytes: &[u8]| Tcp::read(bytes, 0).is_some() && packet.stamps.is_some();
        let zero = echoes(&before) && packet.stamps.is_some_and(|(_, echo)| {
            let echo = echo.wrapping_add(a.clock.1);
            echo == 0 || echo.wrapping_add(9) == 0
        });
        prop_assume!(!zero);
        let away = rewritten(before.clone(), &there(&a, &b), &mut out).unwrap();
        let again = rewritten(away, &there(&b, &a), &mut back).unwrap();
        let at = AT_CHECKSUM as usize;
        prop_assert_eq!(&again[..at], &before[..at]);
        prop_assert_eq!(&again[at + 2..], &before[at + 2..]);
    }

    /// The clock that a receiver has seen goes on from where it was, whatever the new sender's clock says, and never
    /// runs backwards while that does not.
    #[test]
    fn clocks_go_on(clock: u32, values in prop::collection::vec(0u32..1000, 1..20), first: u32) {
        let mut stamps = TimestampRewrite { first_val: clock, ..TimestampRewrite::default() };
        let (mut value, mut last) = (first, clock);
        for step in values {
            value = value.wrapping_add(step);
            let packet = [0u8, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, ACK, 0, 0, 0, 0, 0, 0, 1, 1, 8, 10];
            let mut bytes = packet.to_vec();
            bytes.extend(value.to_be_bytes());
            bytes.extend([0; 4]);
            stamps.written = None;
            rewritten(bytes, &HeaderRewrite::default(), &mut stamps).unwrap();
            let written = stamps.written.unwrap();
            prop_assert!(seq::reaches(written, last));
            last = written;
        }
    }

    /// Random bytes: nothing is read or written beyond the packet, and nothing loops.
    #[test]
    fn noise_is_survived(mut bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Some(tcp) = Tcp::read(bytes.as_slice(), 0) {
            let mut stamps = TimestampRewrite::default();
            if let Some(options) = rewrite::options(bytes.as_mut_slice(), 0, &tcp) {
                let _ = rewrite::tcp(bytes.as_mut_slice(), 0, &tcp, &options, &HeaderRewrite::default(), &mut stamps);
            }
            if let Some((_, offsets)) = super::handshake::find_options(bytes.as_mut_slice(), 0, &tcp) {
                let _ = super::handshake::limit_options(bytes.as_mut_slice(), &offsets, 0, 1000);
            }
        }
    }
}

//! A packet of one leg, written in the numbers of the other.

use crate::net::header::{ACK, AT_ACK, AT_SEQ, AT_WINDOW, TCP_HEADER};
use crate::net::options::{OptionOffsets, find_options};
use crate::net::{Buffer, Diff, Tcp};

/// Changes to the TCP headers of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderRewrite {
    /// Source port on the other leg.
    pub source: u16,
    /// Destination port on the other leg.
    pub destination: u16,
    /// Offset added to sequence numbers.
    pub seq_delta: u32,
    /// Offset added to acknowledgement numbers and SACK edges.
    pub ack_delta: u32,
    /// Window scale of the packet's sender, as announced on its own leg.
    pub scale_from: u8,
    /// Window scale that the packet's receiver applies to windows on its leg.
    pub scale_to: u8,
    /// Bytes beyond the packet's acknowledgement that the balancer acknowledges itself. The right edge of the window
    /// stays.
    pub ack_ahead: u32,
}

/// Changes to the timestamps of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimestampRewrite {
    /// Offset added to TSval; meaningless while `fixed` is false.
    pub val_delta: u32,
    /// Whether `value` is known.
    pub is_known: bool,
    /// The first TSval to write where `value` is not yet known: the clock that the receiver has seen so far goes on.
    pub first_val: u32,
    /// Offset added to TSecr, where known. Otherwise TSecr becomes 0, which receivers ignore (RFC 7323, section 3.2).
    pub ecr_delta: Option<u32>,
    /// The TSval written, if there was one.
    pub written: Option<u32>,
}

/// A window in the other leg's scale, rounded down. A sender that is promised more than its receiver accepts would
/// exceed the window, and its acknowledgements would be dropped from then on (RFC 9293, section 3.10.7.4). Flows whose
/// windows would round to nothing are not cut: [`super::handshake::fits_scale`].
#[inline(always)]
#[must_use]
pub const fn rescale_window(window: u16, from: u8, to: u8, less: u32) -> u16 {
    let bytes = ((window as u32) << (from & 15)).saturating_sub(less);
    let scaled = bytes >> (to & 15);
    if scaled > 0xffff { 0xffff } else { scaled as u16 }
}

/// Finds the options of the TCP header at `at` that [`tcp`] rewrites; `None` where they are malformed. It is separate
/// and must be called first: the verifier follows this loop once for each state in which it reaches the loop.
#[inline(always)]
pub fn options<B: Buffer + ?Sized>(packet: &mut B, at: u32, tcp: &Tcp) -> Option<OptionOffsets> {
    find_options(packet, at + TCP_HEADER, tcp.length - TCP_HEADER)
}

/// Rewrites the TCP header at `at`, which `tcp` was read from, with its `options`, except its checksum, and returns the
/// difference to that. `None` where the packet is too short; it is then damaged.
#[inline(always)]
pub fn tcp<B: Buffer + ?Sized>(
    packet: &mut B,
    at: u32,
    tcp: &Tcp,
    options: &OptionOffsets,
    change: &HeaderRewrite,
    stamps: &mut TimestampRewrite,
) -> Option<Diff> {
    let mut diff = Diff::unknown_zero(packet);
    let seq = tcp.seq.wrapping_add(change.seq_delta);
    let window = rescale_window(tcp.window, change.scale_from, change.scale_to, change.ack_ahead);
    let (old, new) = (
        u32::from(tcp.source) << 16 | u32::from(tcp.destination),
        u32::from(change.source) << 16 | u32::from(change.destination),
    );
    packet.set_u32(at, new)?;
    packet.set_u32(at + AT_SEQ, seq)?;
    packet.set_u16(at + AT_WINDOW, window)?;
    diff.u32(old, new);
    diff.u32(tcp.seq, seq);
    diff.u16(tcp.window, window);
    let acknowledges = tcp.has(ACK);
    if acknowledges {
        let ack = tcp.ack.wrapping_add(change.ack_delta).wrapping_add(change.ack_ahead);
        packet.set_u32(at + AT_ACK, ack)?;
        diff.u32(tcp.ack, ack);
    }
    if options.timestamps != 0 {
        rewrite_timestamps(packet, options.timestamps, acknowledges, stamps, &mut diff)?;
    }
    if options.sack != 0 {
        rewrite_sack(packet, options.sack, options.sack_length, change.ack_delta, &mut diff)?;
    }
    Some(diff)
}

#[inline(always)]
fn rewrite_timestamps<B: Buffer + ?Sized>(
    packet: &mut B,
    option: u32,
    acknowledges: bool,
    stamps: &mut TimestampRewrite,
    diff: &mut Diff,
) -> Option<()> {
    let value = packet.u32(option + 2)?;
    let echo = packet.u32(option + 6)?;
    if !stamps.is_known {
        stamps.val_delta = stamps.first_val.wrapping_sub(value);
        stamps.is_known = true;
    }
    let new_value = value.wrapping_add(stamps.val_delta);
    let new_echo = match stamps.ecr_delta {
        Some(by) if acknowledges && echo != 0 => echo.wrapping_add(by),
        _ => 0,
    };
    packet.set_u32(option + 2, new_value)?;
    packet.set_u32(option + 6, new_echo)?;
    diff.u32_at(option, value, new_value);
    diff.u32_at(option, echo, new_echo);
    stamps.written = Some(new_value);
    Some(())
}

/// Rewrites the edges of up to four SACK blocks (RFC 2018, section 3).
#[inline(always)]
fn rewrite_sack<B: Buffer + ?Sized>(packet: &mut B, option: u32, length: u32, ack: u32, diff: &mut Diff) -> Option<()> {
    let mut edge = 0;
    while edge < 8 {
        let at = 2 + edge * 4;
        if at + 4 > length {
            break;
        }
        let old = packet.u32(option + at)?;
        let new = old.wrapping_add(ack);
        packet.set_u32(option + at, new)?;
        diff.u32_at(option, old, new);
        edge = packet.hide_from_compiler(edge + 1);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_keep_their_meaning() {
        assert_eq!(rescale_window(1000, 7, 7, 0), 1000);
        assert_eq!(rescale_window(1000, 7, 9, 0), 250);
        assert_eq!(rescale_window(60_000, 9, 7, 0), 65_535);
        assert_eq!(rescale_window(60_000, 0, 7, 0), 468);
        assert_eq!((rescale_window(100, 0, 7, 0), rescale_window(0, 7, 9, 0)), (0, 0));
        assert_eq!(
            (rescale_window(100, 7, 7, 1280), rescale_window(100, 7, 7, 20_000)),
            (90, 0)
        );
    }

    /// Every pair of scales (RFC 7323, section 2.3: up to 14).
    #[test]
    fn a_rescaled_window_is_never_larger_and_loses_less_than_a_unit() {
        for (from, to) in (0..=14).flat_map(|from| (0..=14).map(move |to| (from, to))) {
            for offered in [0, 1, 2, 63, 64, 990, 1000, 32_767, 65_535] {
                for answered_for in [0, 1, 127, 128, 70_000] {
                    let bytes = (u32::from(offered) << from).saturating_sub(answered_for);
                    let told = u32::from(rescale_window(offered, from, to, answered_for)) << to;
                    assert!(told <= bytes, "{offered} << {from} became {told} at scale {to}");
                    let most = 0xffff << to;
                    assert!(
                        bytes.min(most) - told < 1 << to,
                        "{offered} << {from} became {told} at scale {to}"
                    );
                }
            }
            if from >= to {
                let told = u32::from(rescale_window(3, from, to, 0)) << to;
                assert_eq!(told, (3 << from).min(0xffff << to), "what is finer is exact");
            }
        }
    }
}

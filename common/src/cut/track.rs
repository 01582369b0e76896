//! How far the two directions of a flow have come, and how it ends.

use super::flow::{EARLY_FIN, FIN_SEEN, PEER_FIN_ACKED, RESET, RESET_MAYBE, Way};
use super::header::{ACK, FIN, RST, SYN, Tcp};
use super::seq;

/// What a packet has done to its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It goes on.
    Open,
    /// Both directions are finished and acknowledged, by this packet.
    Finished,
    /// The sender of this packet has reset it.
    Reset,
}

/// Notes a packet of the direction `way` that is forwarded; `peer` is the other direction. `seq` and `ack` are the
/// packet's numbers as they leave, on the leg on which `peer` arrives: there they compare with what `peer` holds.
#[inline(always)]
pub fn note(way: &mut Way, peer: &Way, tcp: &Tcp, payload: u32, seq: u32, ack: u32) -> Noted {
    if tcp.has(RST) {
        if seq == peer.ack {
            way.flags |= RESET;
            return Noted::Reset;
        }
        // Not at the receiver's next byte, as far as we know: the receiver may ignore it or ask back (RFC 5961).
        way.flags |= RESET_MAYBE;
        return Noted::Open;
    }
    if way.flags & RESET_MAYBE != 0 {
        way.flags &= !RESET_MAYBE;
    }
    if tcp.has(SYN) {
        return Noted::Open;
    }
    let end = tcp.end(payload);
    if seq::after(end, way.high) {
        // By position, so that a byte sent twice counts once. The FIN takes a number and is no byte; one that came before
        // the flow was cut lies in front of all that comes.
        let fin = u32::from(tcp.has(FIN) || way.flags & EARLY_FIN != 0 && way.bytes == 0);
        way.bytes = way
            .bytes
            .wrapping_add(u64::from(end.wrapping_sub(way.high).wrapping_sub(fin)));
        way.high = end;
    }
    if tcp.has(FIN) {
        way.flags |= FIN_SEEN;
    }
    if tcp.has(ACK) {
        way.ack = seq::later(tcp.ack, way.ack);
        // Nothing comes after a FIN: `high` is where it ended.
        let acked = peer.flags & FIN_SEEN != 0 && seq::reaches(ack, peer.high);
        if acked && way.flags & PEER_FIN_ACKED == 0 {
            way.flags |= PEER_FIN_ACKED;
            if peer.flags & PEER_FIN_ACKED != 0 {
                return Noted::Finished;
            }
        }
    }
    Noted::Open
}

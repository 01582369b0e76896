//! Connection tracking of a cut flow: progress of its two directions, and its end.

use super::flow::{CutFlow, DirState, EARLY_FIN, FIN_SEEN, PEER_FIN_ACKED, RESET, RESET_TENTATIVE, RESYNC};
use crate::net::header::{ACK, FIN, RST, SYN};
use crate::net::{Tcp, atomic, seq};

/// Effect of a packet on its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowProgress {
    /// The flow goes on.
    Open,
    /// Both directions are finished and acknowledged, with this packet.
    Finished,
    /// The sender of this packet has reset the flow.
    Reset,
}

/// How far an acknowledgement may be ahead of the recorded sequence number. Two packets of one direction on two CPUs at
/// once may leave the lower number there.
const MAX_ACK_AHEAD: u32 = 1 << 16;

/// Attempts to advance a number that other CPUs advance, too: that many CPUs would have to work on one direction.
const MAX_CAS_TRIES: u32 = 4;

/// The widest window that either end of either leg can have offered, twice: while userspace delivers what leg A's
/// socket has received, both ends may be a window further than the other knows.
#[inline(always)]
fn max_window(flow: &CutFlow) -> u32 {
    let larger = |a: u8, b: u8| if a > b { a } else { b };
    let scale = larger(
        larger(flow.scale_a & 15, flow.scale_a >> 4),
        larger(flow.scale_b & 15, flow.scale_b >> 4),
    );
    // 14 is the largest scale (RFC 7323, section 2.3), and half of the numbers are in the past.
    if scale >= 14 { 1 << 30 } else { 0x1_fffe << scale }
}

/// Whether a packet of this flow can be from its sender: both numbers, as they leave, must lie in the two ends'
/// windows. Any other packet is forwarded, because its receiver knows best, but changes nothing here. To guess both
/// numbers is about as hard as a guess for the receiver itself (RFC 5961, section 5).
///
/// While the numbers of the packet's own direction are unknown ([`RESYNC`]), none can be checked; while those of the
/// other one are, the sequence number alone.
#[inline(always)]
#[must_use]
pub fn is_in_window(flow: &CutFlow, from_client: bool, seq: u32, ack: u32) -> bool {
    let window = max_window(flow);
    if (flow.dirs[0].flags | flow.dirs[1].flags) & RESYNC != 0 {
        let (own, delta) = if from_client {
            (&flow.dirs[0], flow.seq_delta_in)
        } else {
            (&flow.dirs[1], flow.seq_delta_out)
        };
        let known = own.snd_max.wrapping_add(delta);
        return own.flags & RESYNC == 0 && seq.wrapping_sub(known).wrapping_add(window) <= window * 2;
    }
    let (expected, sent) = if from_client {
        (flow.dirs[1].ack, flow.dirs[1].snd_max)
    } else {
        // Leg B's socket delivers the bytes that came before the cut: leg A's window at most, and those consumed from
        // it. Its number does not move then, and the client's wraps.
        let (delivered, high) = (flow.snd_nxt_b.wrapping_sub(flow.seq_delta_in), flow.dirs[0].snd_max);
        let is_ahead = delivered.wrapping_sub(high) <= window / 2 + MAX_ACK_AHEAD / 2;
        (flow.dirs[0].ack, if is_ahead { delivered } else { high })
    };
    seq.wrapping_sub(expected).wrapping_add(window) <= window * 2
        && sent.wrapping_add(MAX_ACK_AHEAD).wrapping_sub(ack) <= window + MAX_ACK_AHEAD
}

/// Takes the numbers of a direction with [`RESYNC`] from a packet of it, as a firewall does with a connection that it
/// first sees in the middle of its streams. Bytes that went before are not counted here. A SYN or a reset proves
/// nothing: any machine could send one.
#[inline(always)]
pub fn resync(flow: &mut CutFlow, from_client: bool, tcp: &Tcp, payload: u32) {
    let dir = &mut flow.dirs[if from_client { 0 } else { 1 }];
    if dir.flags & RESYNC == 0 || tcp.flags & (SYN | RST | ACK) != ACK {
        return;
    }
    dir.snd_max = tcp.end(payload);
    dir.ack = tcp.ack;
    if tcp.has(FIN) {
        atomic::set(&mut dir.flags, FIN_SEEN);
    }
    if from_client {
        flow.snd_nxt_b = dir.snd_max.wrapping_add(flow.seq_delta_in);
    }
    atomic::clear(&mut dir.flags, RESYNC);
}

/// Records a packet of the direction `dir` that is forwarded; `peer` is the other direction. `seq` and `ack` are the
/// packet's numbers as they leave, on the leg on which `peer` arrives: they compare with what `peer` holds. `believed`
/// is the result of [`is_in_window`].
#[inline(always)]
pub fn record(
    dir: &mut DirState,
    peer: &DirState,
    tcp: &Tcp,
    payload: u32,
    seq: u32,
    ack: u32,
    believed: bool,
) -> FlowProgress {
    if tcp.has(RST) {
        if (dir.flags | peer.flags) & RESYNC != 0 {
            return FlowProgress::Open;
        }
        if seq == peer.ack {
            atomic::set(&mut dir.flags, RESET);
            return FlowProgress::Reset;
        }
        // A sender that gives up with bytes in flight writes this number: accepted if they have all arrived. At any
        // other number the receiver sends a challenge, whose answer is accepted (RFC 5961, section 3.2).
        if tcp.seq == dir.snd_max {
            atomic::set(&mut dir.flags, RESET_TENTATIVE);
        }
        return FlowProgress::Open;
    }
    if !believed || tcp.flags & (SYN | ACK) != ACK {
        return FlowProgress::Open;
    }
    atomic::clear(&mut dir.flags, RESET_TENTATIVE);
    advance(dir, tcp.end(payload), tcp.has(FIN));
    dir.ack = seq::later(tcp.ack, dir.ack);
    let acked = peer.flags & FIN_SEEN != 0 && ack == peer.snd_max;
    if acked && dir.flags & PEER_FIN_ACKED == 0 {
        atomic::set(&mut dir.flags, PEER_FIN_ACKED);
        if peer.flags & PEER_FIN_ACKED != 0 {
            return FlowProgress::Finished;
        }
    }
    FlowProgress::Open
}

/// Advances the direction's highest sequence number to `end`, counts the bytes, and records a FIN.
///
/// Packets of one direction may run here on two CPUs at once. A FIN must not be lost to a packet that began before it
/// and ends after it, since no other packet follows: so a packet moves only the number that it has read, and clears the
/// flag only where it has found it before.
#[inline(always)]
fn advance(dir: &mut DirState, end: u32, is_fin: bool) {
    let mut tries = 0;
    while tries < MAX_CAS_TRIES {
        tries += 1;
        // SAFETY: both are whole and aligned.
        let (flags, high) = unsafe {
            (
                (&raw const dir.flags).read_volatile(),
                (&raw const dir.snd_max).read_volatile(),
            )
        };
        if !is_fin && !seq::after(end, high) {
            return;
        }
        if !atomic::exchange(&mut dir.snd_max, high, end) {
            continue;
        }
        // By position, so that a byte sent twice counts once. The FIN has a number and is no byte. A FIN that came
        // before the cut precedes all later packets.
        let fin = if flags & EARLY_FIN == 0 {
            is_fin && flags & FIN_SEEN == 0
        } else {
            dir.bytes == 0 && end != high
        };
        let more = end.wrapping_sub(high).wrapping_sub(u32::from(fin));
        atomic::add(&mut dir.bytes, i64::from(more as i32) as u64);
        // No packet follows a real FIN: one that does shows that the FIN was not the sender's.
        if is_fin {
            atomic::set(&mut dir.flags, FIN_SEEN);
        } else if flags & FIN_SEEN != 0 {
            atomic::clear(&mut dir.flags, FIN_SEEN);
        }
        return;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A flow just cut, and what each end knows: positions in the two streams, the client's (0) and the host's (1).
    struct Model {
        flow: CutFlow,
        /// Initial numbers of the client's stream on legs A and B, then of the host's.
        first: [[u32; 2]; 2],
        sent: [u32; 2],
        received: [u32; 2],
    }

    /// Two threads share a direction without a lock, as two CPUs share a map's element in a program.
    #[test]
    fn a_fin_is_not_lost_to_what_another_cpu_does_at_the_same_time() {
        use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
        struct Shared(std::cell::UnsafeCell<DirState>);
        // SAFETY: what is shared is changed by atomic operations.
        unsafe impl Sync for Shared {}
        let (dir, barrier) = (Shared(std::cell::UnsafeCell::default()), AtomicU32::new(0));
        let (rounds, mut lost) = (20_000, 0);
        // By yielding: threads that sleep would not wake close enough together.
        let wait = |turn: u32| {
            barrier.fetch_add(1, SeqCst);
            while barrier.load(SeqCst) < 2 * turn {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            let (dir, wait) = (&dir, &wait);
            scope.spawn(move || {
                for round in 0..rounds {
                    wait(2 * round + 1);
                    // SAFETY: see above.
                    advance(unsafe { &mut *dir.0.get() }, 100, false);
                    wait(2 * round + 2);
                }
            });
            for round in 0..rounds {
                // SAFETY: the other thread waits.
                unsafe { *dir.0.get() = DirState::default() };
                wait(2 * round + 1);
                // SAFETY: see above.
                advance(unsafe { &mut *dir.0.get() }, 101, true);
                wait(2 * round + 2);
                // SAFETY: the other thread waits.
                let DirState {
                    snd_max: high, flags, ..
                } = unsafe { *dir.0.get() };
                // Not reported here: the other thread would wait for ever.
                lost += u32::from((high, flags) != (101, FIN_SEEN));
            }
        });
        assert_eq!(lost, 0, "of {rounds}");
    }

    const DATA: u32 = 1000;

    impl Model {
        fn new(first: [[u32; 2]; 2]) -> Self {
            let [[client_a, client_b], [host_a, host_b]] = first;
            let mut flow = CutFlow {
                seq_delta_in: client_b.wrapping_sub(client_a),
                seq_delta_out: host_a.wrapping_sub(host_b),
                snd_nxt_b: client_b,
                scale_a: 0x77,
                scale_b: 0x77,
                ..CutFlow::default()
            };
            (flow.dirs[0].snd_max, flow.dirs[0].ack) = (client_a, host_a);
            (flow.dirs[1].snd_max, flow.dirs[1].ack) = (host_b, client_b);
            Self {
                flow,
                first,
                sent: [0, 0],
                received: [0, 0],
            }
        }

        /// Runs a packet with these numbers through the program's steps.
        fn run_packet(&mut self, dir: usize, flags: u8, seq: u32, ack: u32, payload: u32) -> FlowProgress {
            let flow = &mut self.flow;
            let (there, back) = if dir == 0 {
                (flow.seq_delta_in, flow.seq_delta_out)
            } else {
                (flow.seq_delta_out, flow.seq_delta_in)
            };
            let (out, out_ack) = (seq.wrapping_add(there), ack.wrapping_sub(back));
            let tcp = Tcp {
                seq,
                ack,
                flags,
                length: 20,
                ..Tcp::default()
            };
            let believed = is_in_window(flow, dir == 0, out, out_ack);
            let [first, second] = &mut flow.dirs;
            let (dir, peer) = if dir == 0 { (first, &*second) } else { (second, &*first) };
            record(dir, peer, &tcp, payload, out, out_ack, believed)
        }

        /// Runs a packet at position `at` of the sender's stream, acknowledging what the sender has heard.
        fn send_at(&mut self, dir: usize, flags: u8, at: u32, payload: u32) -> FlowProgress {
            let seq = self.first[dir][dir].wrapping_add(at);
            let ack = self.first[1 - dir][dir].wrapping_add(self.received[dir]);
            self.run_packet(dir, flags, seq, ack, payload)
        }

        fn send_next(&mut self, dir: usize, payload: u32, fin: u8) -> FlowProgress {
            let at = self.sent[dir];
            self.sent[dir] += payload + u32::from(fin != 0);
            self.send_at(dir, ACK | fin, at, payload)
        }

        /// Runs an acknowledgement of everything that the other end has sent.
        fn acknowledge(&mut self, dir: usize) -> FlowProgress {
            self.received[dir] = self.sent[1 - dir];
            self.send_at(dir, ACK, self.sent[dir], 0)
        }
    }

    fn numbers() -> impl Strategy<Value = [[u32; 2]; 2]> {
        any::<[[u32; 2]; 2]>()
    }

    proptest! {
        /// Random orders of data and acknowledgements, with either end behind within the window: bytes are counted, and
        /// the end is seen when both ends have heard everything, and not before.
        #[test]
        fn a_conversation_is_followed_to_its_end(
            first in numbers(),
            steps in prop::collection::vec((0usize..2, 0u32..4), 0..200),
        ) {
            let mut model = Model::new(first);
            for (dir, what) in steps {
                let behind = model.sent[dir] - model.received[1 - dir];
                let noted = match what {
                    0 => model.acknowledge(dir),
                    // Sent twice.
                    1 if behind >= DATA => model.send_at(dir, ACK, model.sent[dir] - DATA, DATA),
                    _ => model.send_next(dir, DATA, 0),
                };
                prop_assert_eq!(noted, FlowProgress::Open);
            }
            let bytes = model.sent.map(u64::from);
            for dir in [0, 1] {
                prop_assert_eq!(model.send_next(dir, 0, FIN), FlowProgress::Open);
                prop_assert_eq!(model.send_at(dir, ACK | FIN, model.sent[dir] - 1, 0), FlowProgress::Open);
            }
            prop_assert_eq!(model.acknowledge(1), FlowProgress::Open);
            prop_assert!(!model.flow.ended());
            prop_assert_eq!(model.acknowledge(0), FlowProgress::Finished);
            prop_assert!(model.flow.ended());
            prop_assert_eq!(model.flow.dirs.map(|dir| dir.bytes), bytes);
        }

        /// Sequence numbers of one direction wrap while those of the other direction, and `sent_b`, stand still.
        #[test]
        fn a_stream_of_gigabytes_is_believed_and_counted_all_the_way(first in numbers(), dir in 0usize..2) {
            const STEP: u32 = 1 << 24;
            let mut model = Model::new(first);
            let (from, to) = (first[dir], first[1 - dir]);
            for step in 0..400u32 {
                let (before, after) = (step.wrapping_mul(STEP), step.wrapping_add(1).wrapping_mul(STEP));
                // In windows, each of which is acknowledged before the next: 6 GiB in all.
                let payload = STEP >> 1;
                for at in [before, before.wrapping_add(payload)] {
                    let seq = from[dir].wrapping_add(at);
                    prop_assert_eq!(model.run_packet(dir, ACK, seq, to[dir], payload), FlowProgress::Open);
                    let heard = from[1 - dir].wrapping_add(at).wrapping_add(payload);
                    prop_assert_eq!(model.run_packet(1 - dir, ACK, to[1 - dir], heard, 0), FlowProgress::Open);
                    prop_assert_eq!(model.flow.dirs[1 - dir].ack, heard, "after {} MiB", before >> 20);
                }
                prop_assert_eq!(model.flow.dirs[dir].snd_max, from[dir].wrapping_add(after));
                prop_assert_eq!(model.flow.dirs[dir].bytes, u64::from(step + 1) * u64::from(STEP));
            }
        }

        /// Packets whose numbers lie outside the two ends' windows change nothing, and end nothing.
        #[test]
        fn packets_with_numbers_outside_the_windows_change_nothing(
            first in numbers(),
            dir in 0usize..2,
            flags in 0u8..64,
            seq: u32,
            ack: u32,
            payload in 0u32..1400,
        ) {
            let mut model = Model::new(first);
            model.send_next(0, DATA, 0);
            model.send_next(1, DATA, 0);
            let before = model.flow;
            let window = max_window(&before);
            let away = |from: u32, what: u32| {
                let off = what.wrapping_sub(from);
                off > window + MAX_ACK_AHEAD && off < 0u32.wrapping_sub(window + MAX_ACK_AHEAD)
            };
            // One of the two numbers is wrong; in a reset only one counts.
            let at = model.first[dir][dir].wrapping_add(DATA);
            let other = model.first[1 - dir][dir].wrapping_add(DATA);
            let reset = flags & RST != 0;
            prop_assume!(if reset { seq != at && seq != at.wrapping_sub(DATA) } else { away(at, seq) || away(other, ack) });
            prop_assert_eq!(model.run_packet(dir, flags, seq, ack, payload), FlowProgress::Open);
            prop_assert_eq!(model.flow, before);
        }

        /// A reset counts at the number that the receiver expects, and is not accepted at the sender's next one.
        #[test]
        fn a_reset_counts_where_the_receiver_takes_it(first in numbers(), dir in 0usize..2) {
            let mut model = Model::new(first);
            model.send_next(dir, DATA, 0);
            prop_assert_eq!(model.send_at(dir, RST, DATA, 0), FlowProgress::Open);
            prop_assert_eq!(model.flow.dirs[dir].flags, RESET_TENTATIVE);
            model.send_next(dir, DATA, 0);
            prop_assert_eq!(model.flow.dirs[dir].flags, 0);
            model.acknowledge(1 - dir);
            prop_assert_eq!(model.send_at(dir, RST, 2 * DATA, 0), FlowProgress::Reset);
            prop_assert!(model.flow.ended());
        }
    }

    /// Data after a FIN shows that the FIN was not the sender's: the connection goes on, and its end is still seen.
    #[test]
    fn a_fin_that_is_overtaken_is_forgotten() {
        let mut model = Model::new([[7, 70], [700, u32::MAX]]);
        model.run_packet(0, FIN | ACK, 7 + DATA, 700, 0);
        assert_ne!(model.flow.dirs[0].flags & FIN_SEEN, 0);
        model.send_next(0, DATA, 0);
        model.send_next(0, DATA, 0);
        assert_eq!(model.flow.dirs[0].flags & FIN_SEEN, 0);
        model.send_next(0, 0, FIN);
        model.send_next(1, 0, FIN);
        model.acknowledge(1);
        assert_eq!(model.acknowledge(0), FlowProgress::Finished);
    }

    /// The client's FIN precedes the bytes that are forwarded; userspace has delivered it.
    #[test]
    fn an_early_fin_is_no_byte() {
        for bytes in [0, DATA] {
            let mut model = Model::new([[7, 70], [700, 900]]);
            model.flow.dirs[0].flags = EARLY_FIN;
            model.flow.snd_nxt_b = 70 + bytes + 1;
            model.sent[0] = bytes + 1;
            model.acknowledge(0);
            model.acknowledge(1);
            model.send_at(0, FIN | ACK, bytes, 0);
            model.send_at(0, FIN | ACK, bytes, 0);
            assert_eq!(model.flow.dirs[0].bytes, u64::from(bytes));
        }
    }
}

//! Record of a cut flow, as one balancer sends it to another, and the entry that the other makes of it.

use signalbox_common::cut::CutFlow;
use signalbox_common::cut::flow::{
    CUT_LATE, IS_REPLICA, LAST_REQUEST, PAIRED, RESYNC, SOCKETS_CLOSED, TS_DELTA_KNOWN, TS_DELTA_UNKNOWN, state,
};

/// Flags of the directions that a record carries: the others depend on how far the packets have come.
const CARRIED_FLAGS: [u32; 2] = [TS_DELTA_KNOWN | CUT_LATE | LAST_REQUEST, TS_DELTA_UNKNOWN];

/// Clocks of the machine that writes or reads a record. They differ between machines; ages and offsets do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordClock {
    /// The current tick: see [`CutFlow::started`].
    pub tick: u32,
    /// Milliseconds of `CLOCK_MONOTONIC`, modulo 2^32.
    pub ms: u32,
}

/// Constants of a cut flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowRecord {
    /// Index in the sender's flow table: names the flow until its end.
    pub index: u32,
    /// Age of the flow in ticks.
    pub age: u32,
    /// Sender's number of the host's name.
    pub host: u32,
    /// Sender's number of the route's name, 0 without one.
    pub route: u32,
    /// Sender's number of the listener's name.
    pub listener: u16,
    /// Window scales of leg A and of leg B, as in [`CutFlow`].
    pub scales: [u8; 2],
    /// Ports of leg A and of leg B, as in [`CutFlow`].
    pub ports: [u32; 2],
    /// Offsets of the client's and of the host's sequence numbers, and of their timestamps.
    pub deltas: [u32; 4],
    /// Flags among [`CARRIED_FLAGS`] that the two directions have.
    pub flags: [u32; 2],
    /// Clock of leg B's socket in milliseconds.
    pub clock_b: u32,
    /// Of a flow that was cut late: its idle limit in ticks, and the clock of leg A's socket in milliseconds.
    pub late: [u32; 2],
    /// Client, VIP, source of leg B and host.
    pub addresses: [[u32; 4]; 4],
}

impl FlowRecord {
    /// Makes the record of a flow that its sockets have left.
    #[must_use]
    pub fn of(index: u32, flow: &CutFlow, clock: RecordClock) -> Self {
        let flags = [0, 1].map(|dir: usize| flow.dirs[dir].flags & CARRIED_FLAGS[dir]);
        let late = if flags[0] & CUT_LATE == 0 {
            [0; 2]
        } else {
            [flow.isn_b, flow.isn_host.wrapping_add(clock.ms)]
        };
        Self {
            index,
            age: clock.tick.wrapping_sub(flow.started),
            host: flow.host,
            route: flow.route,
            listener: flow.listener,
            scales: [flow.scale_a, flow.scale_b],
            ports: [flow.ports_a, flow.ports_b],
            deltas: [
                flow.seq_delta_in,
                flow.seq_delta_out,
                flow.ts_delta_in,
                flow.ts_delta_out,
            ],
            flags,
            clock_b: flow.dirs[1].ts_val.wrapping_add(clock.ms),
            late,
            addresses: [flow.client, flow.vip, flow.local, flow.host_addr],
        }
    }

    /// Makes the entry of the flow, a shadow: packets supply the numbers that the record leaves out.
    #[must_use]
    pub fn shadow(&self, clock: RecordClock) -> CutFlow {
        let [client, vip, local, host_addr] = self.addresses;
        let [seq_delta_in, seq_delta_out, ts_delta_in, ts_delta_out] = self.deltas;
        let mut flow = CutFlow {
            state: state::SHADOW,
            marks: IS_REPLICA,
            scale_a: self.scales[0],
            scale_b: self.scales[1],
            ports_a: self.ports[0],
            ports_b: self.ports[1],
            seq_delta_in,
            seq_delta_out,
            ts_delta_in,
            ts_delta_out,
            host: self.host,
            route: self.route,
            listener: self.listener,
            handoff_state: SOCKETS_CLOSED,
            started: clock.tick.wrapping_sub(self.age),
            client,
            vip,
            local,
            host_addr,
            ..CutFlow::default()
        };
        if self.flags[0] & CUT_LATE != 0 {
            flow.isn_b = self.late[0];
            flow.isn_host = self.late[1].wrapping_sub(clock.ms);
        }
        flow.dirs[0].flags = self.flags[0] | PAIRED | RESYNC;
        flow.dirs[1].flags = self.flags[1] | RESYNC;
        flow.dirs[1].ts_val = self.clock_b.wrapping_sub(clock.ms);
        for dir in &mut flow.dirs {
            dir.last_seen = clock.tick;
            // No next hop is known: it is looked up with the first packet.
            dir.hop_expires = clock.tick;
        }
        flow
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use signalbox_common::cut::rewrite::TimestampRewrite;
    use signalbox_common::cut::track::{self, FlowProgress};
    use signalbox_common::net::Tcp;
    use signalbox_common::net::header::{ACK, FIN, RST, SYN};

    use super::*;

    fn flow(numbers: [u32; 4], started: u32, flags: [bool; 4]) -> CutFlow {
        let [a, b, c, d] = numbers;
        let mut flow = CutFlow {
            state: state::CUT,
            scale_a: 0x79,
            scale_b: 0x97,
            ports_a: a,
            ports_b: b,
            seq_delta_in: c,
            seq_delta_out: d,
            ts_delta_in: a ^ c,
            ts_delta_out: b ^ d,
            host: 5,
            route: 6,
            listener: 7,
            handoff_state: SOCKETS_CLOSED,
            started,
            isn_b: 77,
            isn_host: 88,
            client: [0, 0, 0xffff, a],
            vip: [0, 0, 0xffff, b],
            local: [1, 2, 3, c],
            host_addr: [4, 5, 6, d],
            ..CutFlow::default()
        };
        flow.dirs[1].ts_val = c.wrapping_mul(3);
        let given = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let given_in = given(flags[0], TS_DELTA_KNOWN) | given(flags[1], CUT_LATE) | given(flags[3], LAST_REQUEST);
        flow.dirs[0].flags = PAIRED | given_in;
        flow.dirs[1].flags = given(flags[2], TS_DELTA_UNKNOWN);
        flow
    }

    /// A packet's header as it arrives, and as `flow` forwards it.
    fn forwarded(flow: &mut CutFlow, from_client: bool, tcp: &Tcp, payload: u32) -> (u32, u32, FlowProgress) {
        let (there, back) = if from_client {
            (flow.seq_delta_in, flow.seq_delta_out)
        } else {
            (flow.seq_delta_out, flow.seq_delta_in)
        };
        track::resync(flow, from_client, tcp, payload);
        let (seq, ack) = (tcp.seq.wrapping_add(there), tcp.ack.wrapping_sub(back));
        let believed = track::is_in_window(flow, from_client, seq, ack);
        let [first, second] = &mut flow.dirs;
        let (dir, peer) = if from_client {
            (first, &*second)
        } else {
            (second, &*first)
        };
        (seq, ack, track::record(dir, peer, tcp, payload, seq, ack, believed))
    }

    fn packet(flags: u8, seq: u32, ack: u32) -> Tcp {
        Tcp {
            seq,
            ack,
            flags,
            length: 20,
            ..Tcp::default()
        }
    }

    proptest! {
        #[test]
        fn another_balancer_rewrites_as_the_first_one_does(
            numbers: [u32; 4],
            started: u32,
            flags: [bool; 4],
            there: (u32, u32),
            here: (u32, u32),
        ) {
            let original = flow(numbers, started, flags);
            let (there, here) = (RecordClock { tick: there.0, ms: there.1 }, RecordClock { tick: here.0, ms: here.1 });
            let shadow = FlowRecord::of(3, &original, there).shadow(here);
            prop_assert_eq!((shadow.tuple(0), shadow.tuple(1)), (original.tuple(0), original.tuple(1)));
            prop_assert_eq!((shadow.client, shadow.vip), (original.client, original.vip));
            prop_assert_eq!((shadow.local, shadow.host_addr), (original.local, original.host_addr));
            prop_assert_eq!((shadow.seq_delta_in, shadow.seq_delta_out), (original.seq_delta_in, original.seq_delta_out));
            prop_assert_eq!((shadow.ts_delta_in, shadow.ts_delta_out), (original.ts_delta_in, original.ts_delta_out));
            prop_assert_eq!((shadow.scale_a, shadow.scale_b), (original.scale_a, original.scale_b));
            prop_assert_eq!(here.tick.wrapping_sub(shadow.started), there.tick.wrapping_sub(original.started));
            // Clocks of the sockets continue from the same moment.
            prop_assert_eq!(shadow.dirs[1].ts_val.wrapping_add(here.ms), original.dirs[1].ts_val.wrapping_add(there.ms));
            prop_assert_eq!(shadow.idle_limit(), original.idle_limit());
            if flags[1] {
                prop_assert_eq!(
                    shadow.leg_a_clock().wrapping_add(here.ms),
                    original.leg_a_clock().wrapping_add(there.ms)
                );
            }
            prop_assert_eq!(shadow.dirs[0].flags & CARRIED_FLAGS[0], original.dirs[0].flags & CARRIED_FLAGS[0]);
            prop_assert_eq!(shadow.dirs[1].flags & CARRIED_FLAGS[1], original.dirs[1].flags & CARRIED_FLAGS[1]);
        }

        /// Two balancers carry alternate packets of one conversation, as in a split brain: the receivers get the same
        /// as with one, and each balancer sees the end.
        #[test]
        fn two_balancers_may_carry_alternate_packets_of_one_flow(
            numbers: [u32; 4],
            steps in prop::collection::vec((0usize..2, 0usize..2, 1u32..60_000), 2..120),
        ) {
            let original = flow(numbers, 0, [true, false, false, false]);
            let clock = RecordClock::default();
            let shadow = FlowRecord::of(0, &original, clock).shadow(clock);
            let mut nodes = [shadow, shadow];
            // Positions of the client's stream on leg A and of the host's on leg B.
            let (first, mut sent) = ([numbers[0], numbers[3]], [0u32; 2]);
            let numbers_of = |stream: usize, sent: [u32; 2], flow: &CutFlow| {
                let back = if stream == 0 { flow.seq_delta_out } else { flow.seq_delta_in };
                let heard = first[1 - stream].wrapping_add(sent[1 - stream]).wrapping_add(back);
                (first[stream].wrapping_add(sent[stream]), heard)
            };
            for &(node, stream, bytes) in &steps {
                let flow = &mut nodes[node];
                let (seq, ack) = numbers_of(stream, sent, flow);
                let (seq_out, ack_out, progress) = forwarded(flow, stream == 0, &packet(ACK, seq, ack), bytes);
                let there = if stream == 0 { flow.seq_delta_in } else { flow.seq_delta_out };
                prop_assert_eq!(seq_out, seq.wrapping_add(there));
                prop_assert_eq!(ack_out, first[1 - stream].wrapping_add(sent[1 - stream]));
                prop_assert_eq!(progress, FlowProgress::Open);
                sent[stream] = sent[stream].wrapping_add(bytes);
            }
            // Then one has the flow alone, and sees its end.
            let flow = &mut nodes[0];
            for dir in &mut flow.dirs {
                dir.flags |= RESYNC;
            }
            for stream in [0, 1] {
                let (seq, ack) = numbers_of(stream, sent, flow);
                forwarded(flow, stream == 0, &packet(ACK, seq, ack), 0);
            }
            for stream in [0, 1] {
                let (seq, ack) = numbers_of(stream, sent, flow);
                forwarded(flow, stream == 0, &packet(FIN | ACK, seq, ack), 0);
            }
            prop_assert!(!flow.ended());
            sent = sent.map(|sent| sent.wrapping_add(1));
            let (seq, ack) = numbers_of(0, sent, flow);
            forwarded(flow, true, &packet(ACK, seq, ack), 0);
            let (seq, ack) = numbers_of(1, sent, flow);
            prop_assert_eq!(forwarded(flow, false, &packet(ACK, seq, ack), 0).2, FlowProgress::Finished);
            prop_assert!(flow.ended());
        }

        /// An attacker who guesses cannot end a flow whose numbers are not known yet.
        #[test]
        fn resets_and_handshakes_say_nothing_of_a_shadow(numbers: [u32; 4], seq: u32, ack: u32, from_client: bool) {
            let clock = RecordClock::default();
            let mut shadow = FlowRecord::of(0, &flow(numbers, 0, [true; 4]), clock).shadow(clock);
            for flags in [RST, RST | ACK, SYN, SYN | ACK] {
                let before = shadow;
                prop_assert_eq!(forwarded(&mut shadow, from_client, &packet(flags, seq, ack), 0).2, FlowProgress::Open);
                prop_assert_eq!(shadow, before);
            }
        }
    }

    /// The bytes in front of the first packet are not counted, and a FIN is no byte.
    #[test]
    fn bytes_count_from_the_first_packet_on() {
        let clock = RecordClock::default();
        let mut shadow = FlowRecord::of(0, &flow([9, 8, 7, 6], 0, [false; 4]), clock).shadow(clock);
        forwarded(&mut shadow, true, &packet(ACK, 1_000_000, 500), 100);
        forwarded(&mut shadow, false, &packet(ACK, 2_000_000, 700), 0);
        assert_eq!(shadow.dirs.map(|dir| dir.bytes), [0, 0]);
        let host_heard = 1_000_100u32.wrapping_add(shadow.seq_delta_in);
        let client_heard = 2_000_000u32.wrapping_add(shadow.seq_delta_out);
        forwarded(&mut shadow, true, &packet(ACK, 1_000_100, client_heard), 50);
        assert_eq!(shadow.dirs[0].bytes, 50);
        forwarded(&mut shadow, false, &packet(FIN | ACK, 2_000_000, host_heard), 10);
        assert_eq!(shadow.dirs[1].bytes, 10);
        // A FIN that is the first packet after a move ends the flow like any other.
        let mut closed = FlowRecord::of(0, &flow([9, 8, 7, 6], 0, [false; 4]), clock).shadow(clock);
        let (there, back) = (closed.seq_delta_in, closed.seq_delta_out);
        forwarded(
            &mut closed,
            true,
            &packet(FIN | ACK, 1000, 2000u32.wrapping_add(back)),
            0,
        );
        forwarded(
            &mut closed,
            false,
            &packet(FIN | ACK, 2000, 1001u32.wrapping_add(there)),
            0,
        );
        assert!(!closed.ended());
        let last = forwarded(&mut closed, true, &packet(ACK, 1001, 2001u32.wrapping_add(back)), 0);
        assert_eq!(last.2, FlowProgress::Finished);
        assert!(closed.ended());
        // A FIN after data that is not acknowledged yet ends the flow, too.
        let mut closed = FlowRecord::of(0, &flow([9, 8, 7, 6], 0, [false; 4]), clock).shadow(clock);
        forwarded(&mut closed, true, &packet(ACK, 1000, 2000u32.wrapping_add(back)), 100);
        forwarded(
            &mut closed,
            true,
            &packet(FIN | ACK, 1100, 2000u32.wrapping_add(back)),
            0,
        );
        forwarded(
            &mut closed,
            false,
            &packet(FIN | ACK, 2000, 1101u32.wrapping_add(there)),
            0,
        );
        let last = forwarded(&mut closed, true, &packet(ACK, 1101, 2001u32.wrapping_add(back)), 0);
        assert_eq!(last.2, FlowProgress::Finished);
        let mut only_fin = FlowRecord::of(0, &flow([9, 8, 7, 6], 0, [false; 4]), clock).shadow(clock);
        forwarded(&mut only_fin, true, &packet(ACK, 5, 6), 0);
        forwarded(&mut only_fin, false, &packet(FIN | ACK, 100, 5u32.wrapping_add(7)), 3);
        assert_eq!(only_fin.dirs[1].bytes, 0);
    }

    /// A timestamp that a shadow fixes for the first time is that of leg B's socket on the machine that made the flow.
    #[test]
    fn a_client_without_packets_yet_gets_the_clock_of_the_socket() {
        let original = flow([1, 2, 3, 4], 0, [false; 4]);
        let (there, here) = (RecordClock { tick: 0, ms: 5000 }, RecordClock { tick: 0, ms: 90 });
        let shadow = FlowRecord::of(0, &original, there).shadow(here);
        let first = |flow: &CutFlow, ms: u32| TimestampRewrite {
            val_delta: flow.ts_delta_in,
            is_known: flow.dirs[0].flags & TS_DELTA_KNOWN != 0,
            first_val: flow.dirs[1].ts_val.wrapping_add(ms),
            ecr_delta: None,
            written: None,
        };
        assert_eq!(first(&shadow, 100).first_val, first(&original, 5010).first_val);
    }
}

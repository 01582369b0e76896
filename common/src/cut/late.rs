//! Late cut: a flow that its sockets have carried for a while is cut in the middle of its streams.
//!
//! The moment must be quiet: both sockets have delivered and handed over all that they have ever had, and userspace
//! holds nothing. Then the next byte that leg A's socket expects is the next one that leg B's sends, and the other way
//! round, whatever was removed from the streams or inserted before.

use super::flow::{CUT_LATE, CutFlow, HANDED_OFF, LAST_REQUEST, PAIRED, TS_DELTA_UNKNOWN};

/// Sequence numbers of a leg's socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketNumbers {
    /// Next byte that the socket sends; all before it are acknowledged.
    pub next_sent: u32,
    /// Next byte that the socket expects; all before it have been read.
    pub next_expected: u32,
}

/// Facts of a flow at the moment of its late cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LateCut {
    /// Numbers of the socket of leg A and of leg B.
    pub sockets: [SocketNumbers; 2],
    /// Clocks of both sockets in milliseconds, less this machine's.
    pub clocks: [u32; 2],
    /// Bytes of the client and of the host that userspace has carried and counted.
    pub carried: [u64; 2],
    /// Time without a packet after which the flow ends, in ticks.
    pub idle_limit: u32,
    /// Whether no further bytes of the client may reach the host: the flow carries the rest of an answer.
    pub is_last_request: bool,
    /// The current tick.
    pub now: u32,
}

impl LateCut {
    /// Makes a held entry one of a cut flow, except for its state.
    pub const fn apply_to(&self, flow: &mut CutFlow) {
        let [a, b] = self.sockets;
        flow.seq_delta_in = b.next_sent.wrapping_sub(a.next_expected);
        flow.seq_delta_out = a.next_sent.wrapping_sub(b.next_expected);
        flow.ts_delta_in = 0;
        // All bytes are delivered: the sockets are silent from now on.
        flow.handoff_state = HANDED_OFF;
        flow.handoff_end = b.next_sent;
        flow.snd_nxt_b = b.next_sent;
        flow.isn_b = self.idle_limit;
        flow.isn_host = self.clocks[0];
        let [from_client, from_host] = &mut flow.dirs;
        from_client.flags = PAIRED | CUT_LATE;
        if self.is_last_request {
            from_client.flags |= LAST_REQUEST;
        }
        from_client.ack = a.next_sent;
        from_client.snd_max = a.next_expected;
        from_host.flags = TS_DELTA_UNKNOWN;
        from_host.ts_val = self.clocks[1];
        from_host.ack = b.next_sent;
        from_host.snd_max = b.next_expected;
        (from_client.bytes, from_client.accounted) = (self.carried[0], self.carried[0]);
        (from_host.bytes, from_host.accounted) = (self.carried[1], self.carried[1]);
        (from_client.last_seen, from_host.last_seen) = (self.now, self.now);
    }
}

impl CutFlow {
    /// Time without a packet after which the flow ends, in ticks; `None`: the one of all flows.
    #[must_use]
    pub const fn idle_limit(&self) -> Option<u32> {
        // A flow that was cut late no longer needs the numbers of its handshake, and their fields have other contents.
        if self.dirs[0].flags & CUT_LATE != 0 {
            Some(self.isn_b)
        } else {
            None
        }
    }

    /// Clock of leg A's socket in milliseconds, less this machine's, of a flow whose host's direction has
    /// [`TS_DELTA_UNKNOWN`].
    #[inline(always)]
    #[must_use]
    pub const fn leg_a_clock(&self) -> u32 {
        self.isn_host
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::track::{FlowProgress, is_in_window, record};
    use super::*;
    use crate::net::Tcp;
    use crate::net::header::{ACK, FIN};

    /// A proxied connection as its four ends see it. The client's stream is stream 0.
    #[derive(Clone, Copy, Debug)]
    struct Proxied {
        /// Number of the first byte of each stream on each leg: `first[stream][leg]`.
        first: [[u32; 2]; 2],
        /// Bytes of each stream on each leg before the cut: heads were edited, a header was put in front.
        passed: [[u32; 2]; 2],
    }

    impl Proxied {
        /// Number of the next byte of a stream on a leg, `more` bytes after the cut.
        fn number(&self, stream: usize, leg: usize, more: u32) -> u32 {
            self.first[stream][leg]
                .wrapping_add(self.passed[stream][leg])
                .wrapping_add(more)
        }

        fn cut(&self) -> CutFlow {
            let socket = |leg: usize, sent: usize, heard: usize| SocketNumbers {
                next_sent: self.number(sent, leg, 0),
                next_expected: self.number(heard, leg, 0),
            };
            let late = LateCut {
                sockets: [socket(0, 1, 0), socket(1, 0, 1)],
                carried: [7, 9],
                idle_limit: 11,
                clocks: [13, 15],
                is_last_request: false,
                now: 17,
            };
            let mut flow = CutFlow {
                scale_a: 0x77,
                scale_b: 0x77,
                ..CutFlow::default()
            };
            late.apply_to(&mut flow);
            flow
        }

        /// Runs a packet of the sender of `stream` through the program's steps, and returns its number on the other leg.
        fn run(
            &self,
            flow: &mut CutFlow,
            stream: usize,
            at: u32,
            heard: u32,
            payload: u32,
            flags: u8,
        ) -> (u32, u32, FlowProgress) {
            let leg = stream;
            let tcp = Tcp {
                seq: self.number(stream, leg, at),
                ack: self.number(1 - stream, leg, heard),
                flags: flags | ACK,
                length: 20,
                ..Tcp::default()
            };
            let (there, back) = if stream == 0 {
                (flow.seq_delta_in, flow.seq_delta_out)
            } else {
                (flow.seq_delta_out, flow.seq_delta_in)
            };
            let (seq, ack) = (tcp.seq.wrapping_add(there), tcp.ack.wrapping_sub(back));
            let believed = is_in_window(flow, stream == 0, seq, ack);
            let [first, second] = &mut flow.dirs;
            let (dir, peer) = if stream == 0 {
                (first, &*second)
            } else {
                (second, &*first)
            };
            (seq, ack, record(dir, peer, &tcp, payload, seq, ack, believed))
        }
    }

    fn proxied() -> impl Strategy<Value = Proxied> {
        (any::<[[u32; 2]; 2]>(), any::<[[u32; 2]; 2]>()).prop_map(|(first, passed)| Proxied { first, passed })
    }

    proptest! {
        /// Every byte after the cut has the same place in its stream on either leg, whatever was sent before.
        #[test]
        fn a_late_cut_maps_the_next_byte_of_one_leg_to_the_others(
            proxied in proxied(),
            at in 0u32..1 << 20,
            heard in 0u32..1 << 14,
        ) {
            let mut flow = proxied.cut();
            for stream in [0, 1] {
                let (seq, ack, _) = proxied.run(&mut flow, stream, at, heard, 0, 0);
                prop_assert_eq!(seq, proxied.number(stream, 1 - stream, at));
                prop_assert_eq!(ack, proxied.number(1 - stream, 1 - stream, heard));
            }
        }

        /// The conversation is followed from the cut to its end, and its bytes are counted after those carried before.
        #[test]
        fn a_flow_that_was_cut_late_is_followed_to_its_end(
            proxied in proxied(),
            steps in prop::collection::vec((0usize..2, 1u32..60_000), 0..100),
        ) {
            let mut flow = proxied.cut();
            let (mut sent, mut heard) = ([0u32; 2], [0u32; 2]);
            for (stream, bytes) in steps {
                let (_, _, progress) = proxied.run(&mut flow, stream, sent[stream], heard[stream], bytes, 0);
                prop_assert_eq!(progress, FlowProgress::Open);
                sent[stream] += bytes;
                heard[1 - stream] = sent[stream];
                proxied.run(&mut flow, 1 - stream, sent[1 - stream], heard[1 - stream], 0, 0);
            }
            prop_assert_eq!(flow.dirs.map(|dir| dir.bytes), [7 + u64::from(sent[0]), 9 + u64::from(sent[1])]);
            prop_assert_eq!(flow.dirs.map(|dir| dir.accounted), [7, 9]);
            for stream in [0, 1] {
                proxied.run(&mut flow, stream, sent[stream], heard[stream], 0, FIN);
            }
            prop_assert!(!flow.ended());
            proxied.run(&mut flow, 0, sent[0] + 1, sent[1] + 1, 0, 0);
            let (_, _, progress) = proxied.run(&mut flow, 1, sent[1] + 1, sent[0] + 1, 0, 0);
            prop_assert_eq!(progress, FlowProgress::Finished);
            prop_assert!(flow.ended());
        }
    }

    #[test]
    fn a_flow_of_a_long_answer_forwards_nothing_more_of_the_client() {
        for is_last_request in [false, true] {
            let mut flow = CutFlow::default();
            let late = LateCut {
                is_last_request,
                ..LateCut::default()
            };
            late.apply_to(&mut flow);
            assert_eq!(flow.dirs[0].flags & LAST_REQUEST != 0, is_last_request);
            assert!(flow.idle_limit().is_some());
        }
    }

    #[test]
    fn only_a_flow_that_was_cut_late_has_an_idle_limit_of_its_own() {
        let proxied = Proxied {
            first: [[1, 2], [3, 4]],
            passed: [[5, 6], [7, 8]],
        };
        assert_eq!(
            (proxied.cut().idle_limit(), proxied.cut().leg_a_clock()),
            (Some(11), 13)
        );
        assert_eq!(proxied.cut().dirs[1].ts_val, 15);
        assert_eq!(CutFlow::default().idle_limit(), None);
    }
}

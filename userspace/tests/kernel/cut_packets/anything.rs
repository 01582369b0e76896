//! Random packets: a packet says the same on both legs, with any content.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use signalbox_common::cut::CutFlow;
use signalbox_common::cut::flow::TS_DELTA_KNOWN;
use signalbox_common::net::header::{ACK, FIN};

use super::options::{sack, stamps};
use super::packet::Packet;
use super::scene::{CLIENT_ON_A, CLIENT_ON_B, HOST_ON_A, HOST_ON_B, over_both};

/// Added to the client's and to the host's clock on their way.
const CLOCKS: (u32, u32) = (77_777, 0xf000_0001);

/// A packet in positions of the two streams.
#[derive(Clone, Debug)]
struct Said {
    from_client: bool,
    at: u32,
    heard: u32,
    flags: u8,
    window: u16,
    payload: Vec<u8>,
    stamps: Option<(u32, u32)>,
    blocks: Vec<(u32, u32)>,
    sack_first: bool,
    padding: usize,
    hops: u8,
}

fn said() -> impl Strategy<Value = Said> {
    (
        any::<(bool, u32, u32, u16, bool)>(),
        prop::collection::vec(any::<u8>(), 0..1400),
        prop::option::of(any::<(u32, u32)>()),
        prop::collection::vec(any::<(u32, u32)>(), 0..=2),
        // ECN, PSH and URG, and a reserved bit that may get a meaning.
        (any::<u8>(), 0usize..6, 2u8..),
    )
        .prop_map(
            |((from_client, at, heard, window, sack_first), payload, stamps, blocks, (flags, padding, hops))| Said {
                from_client,
                at,
                heard,
                flags: flags & 0b1110_1000 | ACK | flags & FIN,
                window,
                payload,
                stamps,
                blocks,
                sack_first,
                padding,
                hops,
            },
        )
}

impl Said {
    /// Returns the packet on a leg: itself, the number that acknowledges nothing yet, and the leg's clocks.
    fn on(&self, packet: Packet, acked_from: u32, clocks: (u32, u32), made: u8) -> Packet {
        let mut options = vec![1; self.padding];
        let mut stamps_here = Vec::new();
        if let Some((value, echo)) = self.stamps {
            stamps_here = stamps(value.wrapping_add(clocks.0), echo.wrapping_add(clocks.1));
        }
        let of = |(from, to): &(u32, u32)| (acked_from.wrapping_add(*from), acked_from.wrapping_add(*to));
        let blocks: Vec<_> = self.blocks.iter().map(of).collect();
        let sack_here = if blocks.is_empty() { Vec::new() } else { sack(&blocks) };
        options.extend(if self.sack_first {
            [sack_here, stamps_here].concat()
        } else {
            [stamps_here, sack_here].concat()
        });
        options.resize(options.len().next_multiple_of(4), 1);
        Packet {
            flags: self.flags,
            window: self.window,
            payload: self.payload.clone(),
            hops: self.hops - made,
            options,
            ..packet
        }
    }
}

#[test]
fn any_segment_of_one_leg_is_translated_for_the_other() {
    over_both(|mut scene| {
        let (t1, t2) = CLOCKS;
        let mut flow = CutFlow {
            ts_delta_in: t1,
            ts_delta_out: t2,
            ..scene.flow()
        };
        flow.dirs[0].flags = TS_DELTA_KNOWN;
        scene.put(&flow);
        let config = Config {
            cases: 500,
            failure_persistence: None,
            ..Config::default()
        };
        let outcome = TestRunner::new(config).run(&said(), |said| {
            let (at, heard) = (said.at, said.heard);
            let none = (0, 0);
            let (comes, goes) = if said.from_client {
                let clocks = (t1, t2.wrapping_neg());
                (
                    said.on(scene.client_sends(at, heard), HOST_ON_A, none, 0),
                    said.on(scene.host_receives(at, heard), HOST_ON_B, clocks, 1),
                )
            } else {
                let clocks = (t2, t1.wrapping_neg());
                (
                    said.on(scene.host_sends(at, heard), CLIENT_ON_B, none, 0),
                    said.on(scene.client_receives(at, heard), CLIENT_ON_A, clocks, 1),
                )
            };
            // An echo of 0 is none, on either leg.
            prop_assume!(said.stamps.is_none_or(|(_, echo)| echo != 0));
            scene.arrives(&comes).forwarded_as(&goes);
            Ok(())
        });
        outcome.unwrap();
    });
}

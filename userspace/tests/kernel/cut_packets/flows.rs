//! The flow of the scene, as the programs' maps have it.

use std::net::{IpAddr, SocketAddr};

use signalbox_common::cut::flow::{CutFlow, FlowRef, SOCKETS_CLOSED, state};
use signalbox_common::net::Tuple;

use super::scene::{CLIENT_ON_A, CLIENT_ON_B, HOST_ON_A, HOST_ON_B, LEG_A, LEG_B, Scene, TO_CLIENT, TO_HOST};

/// Index of the flow in `CUT_FLOWS`.
pub(crate) const INDEX: u32 = 3;
/// Ended flows that userspace has been informed of, for tests where there are none.
pub(crate) const NO_FLOW: [u32; 0] = [];

impl Scene {
    /// A flow between the two that is cut, and whose sockets are closed. Nothing has been sent on it yet.
    pub(crate) fn flow(&self) -> CutFlow {
        let mut flow = CutFlow {
            state: state::CUT,
            handoff_state: SOCKETS_CLOSED,
            scale_a: 0x77,
            scale_b: 0x77,
            ports_a: ports(self.client, self.vip),
            ports_b: ports(self.host, self.local),
            seq_delta_in: CLIENT_ON_B.wrapping_sub(CLIENT_ON_A),
            seq_delta_out: HOST_ON_A.wrapping_sub(HOST_ON_B),
            handoff_end: CLIENT_ON_B,
            snd_nxt_b: CLIENT_ON_B,
            isn_b: CLIENT_ON_B,
            isn_host: HOST_ON_B,
            client: words(self.client),
            vip: words(self.vip),
            local: words(self.local),
            host_addr: words(self.host),
            ..CutFlow::default()
        };
        let [from_client, from_host] = &mut flow.dirs;
        (from_client.snd_max, from_client.ack) = (CLIENT_ON_A, HOST_ON_A);
        (from_host.snd_max, from_host.ack) = (HOST_ON_B, CLIENT_ON_B);
        (from_client.hop_ifindex, from_client.macs) = (LEG_B, macs(TO_HOST));
        (from_host.hop_ifindex, from_host.macs) = (LEG_A, macs(TO_CLIENT));
        (from_client.hop_expires, from_host.hop_expires) = (self.until, self.until);
        flow
    }

    /// A flow whose leg B's socket has a hundred bytes to deliver, and has sent them.
    pub(crate) fn owing(&self, drained: u16) -> CutFlow {
        CutFlow {
            handoff_state: drained,
            handoff_end: CLIENT_ON_B + 100,
            snd_nxt_b: CLIENT_ON_B + 100,
            ..self.flow()
        }
    }

    /// Makes it known to the programs.
    pub(crate) fn put(&mut self, flow: &CutFlow) {
        self.programs.flows.set(INDEX, flow, 0).unwrap();
        for way in [0, 1] {
            let entry = FlowRef { index: INDEX, dir: way };
            self.programs.tuples.insert(flow.tuple(way), entry, 0).unwrap();
        }
    }

    /// Takes it back.
    pub(crate) fn forget(&mut self) {
        for tuple in self.tuples() {
            let _ = self.programs.tuples.remove(&tuple);
        }
    }

    pub(crate) fn flow_now(&self) -> CutFlow {
        self.programs.flows.get(&INDEX, 0).unwrap()
    }

    /// Returns the keys by which the programs know packets from the client and from the host.
    pub(crate) fn tuples(&self) -> [Tuple; 2] {
        let flow = self.flow();
        [flow.tuple(0), flow.tuple(1)]
    }

    pub(crate) fn is_known(&self, tuple: &Tuple) -> bool {
        self.programs.tuples.get(tuple, 0).is_ok()
    }
}

fn ports(source: SocketAddr, destination: SocketAddr) -> u32 {
    u32::from(source.port()) << 16 | u32::from(destination.port())
}

/// An address as in [`Tuple`].
fn words(of: SocketAddr) -> [u32; 4] {
    let octets = match of.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    std::array::from_fn(|i| u32::from_be_bytes(octets[4 * i..4 * i + 4].try_into().unwrap()))
}

/// Ethernet addresses as in [`signalbox_common::cut::Way`].
pub(crate) fn macs(of: [u8; 12]) -> [u32; 3] {
    std::array::from_fn(|i| u32::from_be_bytes(of[4 * i..4 * i + 4].try_into().unwrap()))
}

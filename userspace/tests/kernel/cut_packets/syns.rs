//! The four packets of the two handshakes, and the notes of the programs and userspace between them.

use signalbox_common::cut::PendingFlow;
use signalbox_common::cut::flow::{Handshake, OFFERED_SACK, OFFERED_SCALE, OFFERED_TIMESTAMPS, SYN_ACK_SEEN, state};
use signalbox_common::net::header::{ACK, SYN};

use super::flows::{INDEX, macs};
use super::options::offer;
use super::packet::Packet;
use super::scene::{CLIENT_ON_A, HOST_ON_A, LEG_A, Scene, TO_CLIENT};

/// Options that a handshake can agree on, all of them.
pub(crate) const ALL: u8 = OFFERED_SACK | OFFERED_SCALE | OFFERED_TIMESTAMPS;
/// Bytes that the balancer sends to the host in front of the client's: a PROXY header.
pub(crate) const INJECTED: u32 = 28;
/// The balancer's clock on leg A, and on leg B.
pub(crate) const CLOCK_A: u32 = 0xffff_fffe;
pub(crate) const CLOCK_B: u32 = 5_000_000;

impl Scene {
    pub(crate) fn client_syn(&self) -> Packet {
        Packet {
            flags: SYN,
            ack: 0,
            options: offer(1400, 50, 0, 6),
            ..self.client_sends(u32::MAX, 0)
        }
    }

    pub(crate) fn our_answer(&self) -> Packet {
        Packet {
            flags: SYN | ACK,
            options: offer(1460, CLOCK_A, 50, 7),
            ..self.client_receives(u32::MAX, 0)
        }
    }

    pub(crate) fn our_syn(&self) -> Packet {
        Packet {
            flags: SYN,
            ack: 0,
            // Userspace asks for the client's scale.
            options: offer(1460, CLOCK_B, 0, 6),
            ..self.host_receives((INJECTED + 1).wrapping_neg(), 0)
        }
    }

    pub(crate) fn hosts_answer(&self) -> Packet {
        Packet {
            flags: SYN | ACK,
            options: offer(1460, 900, CLOCK_B, 9),
            ..self.host_sends(u32::MAX, INJECTED.wrapping_neg())
        }
    }

    /// Leg A's handshake as it is remembered.
    pub(crate) fn shake(&self) -> Option<Handshake> {
        self.programs.shakes.get(&self.tuples()[0], 0).ok()
    }

    /// Leg A's handshake is over: both have agreed on this.
    pub(crate) fn shaken(&mut self, agreed: u8) {
        let shake = Handshake {
            isn_client: CLIENT_ON_A,
            isn_vip: HOST_ON_A,
            ts_clock: 0,
            ifindex: LEG_A,
            mss_client: 1400,
            mss_vip: 1460,
            scale_client: 6,
            scale_vip: 7,
            agreed,
            progress: SYN_ACK_SEEN,
            macs: macs(TO_CLIENT),
        };
        let [client, _] = self.tuples();
        self.programs.shakes.insert(client, shake, 0).unwrap();
    }

    /// Userspace has an entry of the flow table waiting, and is about to connect leg B.
    pub(crate) fn connects(&mut self) {
        let flow = self.flow();
        let waiting = PendingFlow {
            state: state::REQUESTED,
            injected: INJECTED,
            ports_a: flow.ports_a,
            ports_b: flow.ports_b,
            client: flow.client,
            vip: flow.vip,
            local: flow.local,
            host_addr: flow.host_addr,
            ..PendingFlow::default()
        };
        self.programs.flows.set(INDEX, waiting.to_entry(), 0).unwrap();
        self.programs.expect_from(self.local.port(), INDEX);
    }
}

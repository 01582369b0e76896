//! Outcome of one run of a program on a packet, and a test's expectations of it.

use signalbox_common::Reason;

use super::packet::Packet;

/// Verdict of the program for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// TC_ACT_UNSPEC: the next program, or the kernel, gets it.
    Pass,
    /// TC_ACT_SHOT.
    Drop,
    /// TC_ACT_REDIRECT.
    Redirect,
}

/// Outcome of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) action: Action,
    /// Reasons, each as often as it was counted.
    pub(crate) reasons: Vec<Reason>,
    pub(crate) bytes: Vec<u8>,
}

impl Outcome {
    /// The packet as it is now, after it was treated and counted in exactly this way.
    #[track_caller]
    pub(crate) fn expect(self, action: Action, reason: Reason) -> Vec<u8> {
        assert_eq!((self.action, self.reasons), (action, vec![reason]));
        self.bytes
    }

    #[track_caller]
    pub(crate) fn forwarded_as(self, packet: &Packet) {
        assert_eq!(
            Packet::read(&self.expect(Action::Redirect, Reason::CutForwarded)),
            *packet
        );
    }

    #[track_caller]
    pub(crate) fn dropped(self, reason: Reason) {
        self.expect(Action::Drop, reason);
    }

    /// The kernel gets this packet.
    #[track_caller]
    pub(crate) fn passed_as(self, reason: Reason, packet: &Packet) {
        assert_eq!(Packet::read(&self.expect(Action::Pass, reason)), *packet);
    }
}

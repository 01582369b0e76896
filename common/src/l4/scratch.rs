//! Working memory of the programs.

use super::abi::L4Flow;
use crate::net::{Key, ParsedHeaders, SendInfo};
use crate::shield::{self, abi::NO_GUARD};

/// Working memory of a packet: more than a program's stack holds.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PacketScratch {
    /// Headers of the packet.
    pub seen: ParsedHeaders,
    /// How the packet is sent.
    pub out: SendInfo,
    /// Client's direction of a new flow.
    pub forward_flow: L4Flow,
    /// Host's direction of a new flow.
    pub reply_flow: L4Flow,
    /// Key of the host's direction.
    pub reverse_key: Key,
    /// Working memory of the shield.
    pub shield: shield::ShieldScratch,
}

impl PacketScratch {
    /// Resets the fields that only some packets set.
    #[inline(always)]
    pub(super) fn reset(&mut self) {
        self.out.tunnel = 0;
        self.out.translated = 0;
        self.out.checksum_offset = 0;
        self.shield.guard = NO_GUARD;
    }
}

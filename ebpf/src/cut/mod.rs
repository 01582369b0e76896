//! TC programs of tier `cut`: packets of a cut flow are rewritten from one leg to the other and sent on. All others
//! pass as if there were no program.
//!
//! `cut_in` is at the ingress of every interface that carries legs, `cut_out` at its egress. Their decisions are in
//! `signalbox_common::cut`. Minimum kernel: 5.14.

mod chain;
mod egress;
mod forward;
mod icmp;
mod ingress;
pub mod maps;
mod pair;
mod share;
pub mod skb;
mod too_big;

use aya_ebpf::{macros::classifier, programs::TcContext};

use signalbox_common::Reason;

use crate::count::count;

/// Action that leaves the packet to the next program, or to the kernel (`TCX_NEXT`, `TC_ACT_UNSPEC`).
const PASS: i32 = -1;
const DROP: i32 = 2;

/// Action on a packet, and its reason. One number, because a function of a BPF program returns one register.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
struct Verdict(u64);

impl Verdict {
    /// Verdict on a packet that this program does not handle.
    const UNHANDLED: Self = Self(u64::MAX);

    const fn new(reason: Reason, action: i32) -> Self {
        Self((reason as u64) << 32 | action as u32 as u64)
    }

    /// Counts the reason and returns the action; for [`Self::UNHANDLED`] counts `otherwise` and passes the packet.
    #[inline(always)]
    fn count_and_return(self, otherwise: Reason) -> i32 {
        if self == Self::UNHANDLED {
            count(otherwise as u32);
            return PASS;
        }
        count((self.0 >> 32) as u32);
        self.0 as u32 as i32
    }
}

#[classifier]
pub fn cut_in(ctx: TcContext) -> i32 {
    ingress::decide(&ctx).count_and_return(Reason::CutNotTcp)
}

#[classifier]
pub fn cut_out(ctx: TcContext) -> i32 {
    egress::decide(&ctx).count_and_return(Reason::CutEgressMiss)
}

//! TC programs of tier `cut`: packets of a cut flow are rewritten from one leg into the other and sent on; the rest goes
//! its way as if we were not there.
//!
//! `cut_in` stands at the ingress of every interface that carries legs, `cut_out` at its egress. What they decide stands
//! in `signalbox_common::cut`. Minimum kernel: 5.12 (`BPF_ATOMIC`).

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

use crate::count::{COUNTERS, bump};

/// The next program, or the kernel, goes on with the packet.
const PASS: i32 = -1;
const DROP: i32 = 2;

/// What is done with a packet, and why. One number, because a function of a BPF program returns one register.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
struct Verdict(u64);

impl Verdict {
    /// It is not for who was asked.
    const NONE: Self = Self(u64::MAX);

    const fn new(reason: Reason, action: i32) -> Self {
        Self((reason as u64) << 32 | action as u32 as u64)
    }

    /// Counts it, and says what the kernel is to do; `otherwise` where there is none.
    #[inline(always)]
    fn carry_out(self, otherwise: Reason) -> i32 {
        if self == Self::NONE {
            bump(&COUNTERS, otherwise as u32);
            return PASS;
        }
        bump(&COUNTERS, (self.0 >> 32) as u32);
        self.0 as u32 as i32
    }
}

#[classifier]
pub fn cut_in(ctx: TcContext) -> i32 {
    ingress::decide(&ctx).carry_out(Reason::CutNotTcp)
}

#[classifier]
pub fn cut_out(ctx: TcContext) -> i32 {
    egress::decide(&ctx).carry_out(Reason::CutOutMiss)
}

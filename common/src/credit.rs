//! The credit of tier `sockmap`, which bounds a direction's bytes in flight: one [`Credit`] per direction of a flow.
//!
//! An `sk_skb` redirect has no back-pressure of its own: it acknowledges to the sender at once and queues without bound
//! (`net/core/skmsg.c`, `sk_psock_verdict_apply`). The credit bounds it. The program redirects until `sent` reaches
//! `limit`. Then it passes bytes up to userspace, where they count against the socket's receive buffer and close the
//! TCP window. Userspace raises `limit` as the peer acknowledges. It hands a blocked direction back by writing to
//! `consumed` how many passed bytes it has relayed.
//!
//! The program runs under the receiving socket's lock, so each field has exactly one writer at a time.

/// Directions that can be in the `sockmap` tier at once; two to a flow.
pub const MAX_CREDITS: u32 = 65_536;

/// Credit of one direction of a flow in the `sockmap` tier: a cache line in an mmapable array (kernel 5.5+).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credit {
    /// Bytes redirected so far. Written by the program.
    pub sent: u64,
    /// Bytes passed up to userspace so far. Written by the program.
    pub passed: u64,
    /// 1 while bytes are passed up instead of redirected. Written by the program.
    pub blocked: u32,
    /// TCP sequence number of the next byte of the stream. Written by the program, and by userspace at the join.
    pub next_sequence: u32,
    /// `sent` may not exceed this by more than one packet. Written by userspace.
    pub limit: u64,
    /// Passed bytes that userspace has consumed and relayed. Written by userspace.
    pub consumed: u64,
    /// Packets redirected so far. Written by the program.
    pub packets: u64,
    /// 1 if bytes were lost, so that the flow has to be reset. Written by the program.
    pub failed: u32,
    /// Fills the cache line.
    pub _pad: [u32; 3],
}

/// The credit that a socket's received bytes draw on: value of `SOCKMAP_LEGS`, by socket cookie.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SockmapLeg {
    /// Index into `SOCKMAP_CREDITS`.
    pub credit: u32,
    /// Always zero.
    pub _pad: u32,
}

/// Event to userspace: a credit is exhausted.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditEvent {
    /// Index into `SOCKMAP_CREDITS`.
    pub credit: u32,
    /// Always zero.
    pub _pad: u32,
}

/// Decision of [`Credit::decide`] about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditVerdict {
    /// Redirect the packet to the peer's socket.
    Redirect,
    /// Pass the packet to userspace; the credit was exhausted before.
    Pass,
    /// Pass the packet to userspace, and send a [`CreditEvent`]: the credit has just been exhausted.
    PassAndNotify,
}

impl Credit {
    /// Advances by a packet with these sequence numbers (`end` includes a FIN) and `len` bytes. Returns the difference
    /// to its length: below zero, the number of bytes at its start that the stream has had already.
    ///
    /// A packet that is sent again may hold new bytes after old ones. TCP queues it whole, and `tcp_read_skb`
    /// (`net/ipv4/tcp.c`), unlike every other reader, returns it whole.
    #[inline(always)]
    pub fn take(&mut self, seq: u32, end: u32, len: u32) -> i32 {
        let mut difference = seq.wrapping_sub(self.next_sequence).cast_signed();
        let rest = len.wrapping_add_signed(difference);
        // Impossible numbers: the kernel keeps other data there.
        if end.wrapping_sub(seq).wrapping_sub(len) > 1 || rest > len {
            difference = 0;
        }
        self.next_sequence = self.next_sequence.wrapping_add(len.wrapping_add_signed(difference));
        difference
    }

    /// Decides about the next `len` bytes: the whole policy of credits, shared by the program and its host tests.
    #[inline(always)]
    pub fn decide(&mut self, len: u64, consumed: u64, limit: u64) -> CreditVerdict {
        if self.blocked != 0 {
            if self.passed != consumed {
                self.passed = self.passed.wrapping_add(len);
                return CreditVerdict::Pass;
            }
            self.blocked = 0;
        }
        if self.sent >= limit {
            self.block(len);
            return CreditVerdict::PassAndNotify;
        }
        self.sent = self.sent.wrapping_add(len);
        self.packets = self.packets.wrapping_add(1);
        CreditVerdict::Redirect
    }

    /// Blocks the direction, at a packet that is passed up.
    #[inline(always)]
    pub fn block(&mut self, len: u64) {
        self.blocked = 1;
        self.passed = self.passed.wrapping_add(len);
    }
}

const _: () = assert!(size_of::<Credit>() == 64);
const _: () = assert!(size_of::<SockmapLeg>() == 8);
const _: () = assert!(size_of::<CreditEvent>() == 8);

// SAFETY: repr(C), no implicit padding, every bit pattern is a valid value.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Credit {}
// SAFETY: as above.
#[cfg(feature = "user")]
unsafe impl aya::Pod for SockmapLeg {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn blocked_credit_redirects_again_once_all_passed_is_consumed() {
        let mut credit = Credit {
            limit: 10,
            ..Credit::default()
        };
        assert_eq!(credit.decide(10, 0, 10), CreditVerdict::Redirect);
        assert_eq!(credit.decide(5, 0, 10), CreditVerdict::PassAndNotify);
        assert_eq!(credit.decide(7, 0, 10), CreditVerdict::Pass);
        assert_eq!(credit.decide(1, 5, 100), CreditVerdict::Pass, "5 of 13 consumed");
        assert_eq!(credit.decide(1, 13, 100), CreditVerdict::Redirect);
        assert_eq!((credit.sent, credit.passed, credit.blocked), (11, 13, 0));
    }

    #[test]
    fn bytes_at_a_packets_start_that_the_stream_has_had_are_counted() {
        let mut credit = Credit {
            next_sequence: u32::MAX - 4,
            ..Credit::default()
        };
        assert_eq!(credit.take(u32::MAX - 4, 5, 10), 0, "in order, past the number's end");
        assert_eq!(credit.next_sequence, 5);
        assert_eq!(credit.take(u32::MAX - 4, 15, 20), -10);
        assert_eq!(credit.take(15, 16, 0), 0, "a FIN alone");
        assert_eq!(credit.take(10, 16, 5), -5, "nothing new but a FIN");
        assert_eq!(credit.next_sequence, 15);
        assert_eq!(credit.take(10, 999, 20), 0, "numbers that are not a packet's");
        assert_eq!(credit.next_sequence, 35);
    }

    proptest! {
        /// Bytes leave in the order they came: nothing is redirected while passed bytes are unconsumed.
        #[test]
        fn no_reordering(steps in prop::collection::vec((1u64..5000, any::<bool>(), 0u64..8000), 1..200)) {
            let (mut credit, mut consumed, mut limit, mut total) = (Credit::default(), 0u64, 4096u64, 0u64);
            for (len, consume, more) in steps {
                limit += more;
                if consume { consumed = credit.passed; }
                let verdict = credit.decide(len, consumed, limit);
                total += len;
                if verdict == CreditVerdict::Redirect { prop_assert_eq!(credit.passed, consumed); }
                prop_assert_eq!(credit.sent + credit.passed, total);
                prop_assert!(credit.sent < limit + 5000, "over the limit by a packet at most");
            }
        }
    }
}

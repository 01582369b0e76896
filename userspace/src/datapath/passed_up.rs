//! When userspace may read the bytes that a blocked credit has passed up (tier `sockmap`).

use signalbox_common::credit::Credit;

/// Returns whether a credit is blocked and stays blocked until its count of consumed bytes is written. Only then may
/// userspace read from the leg.
///
/// `blocked` alone does not show that. Once all passed bytes are consumed, the next segments can be redirected, use up
/// the credit and block it again between any two system calls. Bytes read after that would overtake the segments
/// redirected just before.
pub(super) fn stays_blocked(credit: &Credit) -> bool {
    credit.consumed != credit.passed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use signalbox_common::credit::CreditVerdict;

    use super::*;

    /// Otherwise bytes that userspace reads would overtake redirected ones.
    #[test]
    fn a_credit_whose_bytes_are_all_consumed_is_not_read_from() {
        let mut credit = Credit::default();
        assert_eq!(credit.decide(10, 0, 0), CreditVerdict::PassAndNotify);
        assert!(stays_blocked(&credit));
        credit.consumed = credit.passed;
        assert_eq!(credit.blocked, 1, "until the next segment");
        assert!(!stays_blocked(&credit), "the next segment may be redirected");
        assert_eq!(credit.decide(100, credit.consumed, 100), CreditVerdict::Redirect);
        assert_eq!(credit.decide(5, credit.consumed, 100), CreditVerdict::PassAndNotify);
        assert!(stays_blocked(&credit));
    }

    proptest! {
        /// While userspace reads, the count of redirected bytes is final, even if more bytes arrive.
        #[test]
        fn nothing_is_redirected_while_userspace_may_read(
            rounds in prop::collection::vec((prop::collection::vec(1u64..5000, 0..8), any::<bool>(), 0u64..8000), 1..100),
        ) {
            let (mut credit, mut limit) = (Credit::default(), 4096);
            for (segments, consume, more) in rounds {
                let (blocked, sent) = (stays_blocked(&credit), credit.sent);
                limit += more;
                for len in segments {
                    credit.decide(len, credit.consumed, limit);
                }
                if blocked {
                    prop_assert_eq!(credit.sent, sent);
                }
                if consume {
                    credit.consumed = credit.passed;
                }
            }
        }
    }
}

//! Order in which contenders take their turns.
//!
//! A machine drifts: it heats up, neighbours come and go. Round 1 goes backwards through round 0 (A B C, C B A), so
//! that over a pair of rounds each contender has the same mean position in time; the next pair starts with another
//! one, so that the same two do not always follow each other.

/// Turns of a round: indexes into the list of contenders.
pub(crate) fn turns(contenders: usize, round: usize) -> Vec<usize> {
    let first = round / 2;
    let mut turns: Vec<_> = (0..contenders).map(|i| (i + first) % contenders).collect();
    if round % 2 == 1 {
        turns.reverse();
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_each_contender_once() {
        for round in 0..9 {
            let mut turns = turns(5, round);
            turns.sort_unstable();
            assert_eq!(turns, [0, 1, 2, 3, 4]);
        }
    }

    #[test]
    fn a_pair_of_rounds_reads_the_same_from_both_ends() {
        for pair in 0..4 {
            let mut both = turns(4, 2 * pair);
            both.extend(turns(4, 2 * pair + 1));
            assert!(both.iter().eq(both.iter().rev()));
        }
    }

    #[test]
    fn pairs_start_with_different_contenders() {
        assert_eq!((turns(3, 0)[0], turns(3, 2)[0], turns(3, 4)[0]), (0, 1, 2));
    }
}

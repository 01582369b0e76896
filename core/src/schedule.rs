//! Weighted turns, exact over every period: weights 10 and 80 give the first choice one turn in every nine.

use std::sync::Arc;

/// Fixed sequence of choices in which each appears in proportion to its weight, spread evenly.
///
/// Turns are drawn by ticket number, so that any number of threads share one atomic counter and no lock: any
/// [`Schedule::period`] consecutive tickets hold each choice exactly as often as its weight says.
///
/// A clone shares the sequence's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    turns: Arc<[u16]>,
}

impl Schedule {
    /// Builds a schedule over `(choice, weight)`; choices of weight 0 get no turn.
    #[must_use]
    pub fn new(choices: &[(u16, u32)]) -> Self {
        let divisor = choices.iter().fold(0, |acc, &(_, weight)| gcd(acc, weight)).max(1);
        // The k-th of w turns is in the middle of the k-th of w equal parts of the period. Turns are compared as
        // fractions (2k+1)/2w by cross-multiplication: no rounding, equal on every machine.
        let mut turns: Vec<(u64, u64, u16)> = Vec::new();
        for &(choice, weight) in choices {
            let weight = u64::from(weight / divisor);
            turns.extend((0..weight).map(|k| (2 * k + 1, 2 * weight, choice)));
        }
        turns.sort_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1)).then(a.2.cmp(&b.2)));
        Self {
            turns: turns.into_iter().map(|(_, _, choice)| choice).collect(),
        }
    }

    /// Choice of a ticket; `None` where there is nothing to choose.
    #[must_use]
    pub fn draw(&self, ticket: u64) -> Option<u16> {
        let period = self.turns.len() as u64;
        if period == 0 {
            return None;
        }
        self.turns.get((ticket % period) as usize).copied()
    }

    /// The sequence of choices.
    #[must_use]
    pub fn turns(&self) -> &[u16] {
        &self.turns
    }

    /// Number of tickets after which the sequence repeats.
    #[must_use]
    pub fn period(&self) -> usize {
        self.turns.len()
    }
}

const fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ten_to_eighty_is_one_in_every_nine() {
        let schedule = Schedule::new(&[(0, 10), (1, 80)]);
        assert_eq!(schedule.period(), 9);
        for start in 0..50 {
            let east = (start..start + 9).filter(|&t| schedule.draw(t) == Some(0)).count();
            assert_eq!(east, 1, "window from {start}");
        }
    }

    #[test]
    fn nothing_to_choose() {
        assert_eq!(Schedule::new(&[]).draw(3), None);
        assert_eq!(Schedule::new(&[(1, 0)]).draw(3), None);
    }

    proptest! {
        #[test]
        fn exact_over_every_window_of_a_period(weights in prop::collection::vec(1u32..=100, 1..6), start in 0u64..1000) {
            let choices: Vec<_> = weights.iter().enumerate().map(|(i, &w)| (i as u16, w)).collect();
            let schedule = Schedule::new(&choices);
            let period = schedule.period() as u64;
            let total: u32 = weights.iter().sum();
            for (choice, weight) in choices {
                let turns = (start..start + period).filter(|&t| schedule.draw(t) == Some(choice)).count() as u64;
                prop_assert_eq!(turns * u64::from(total), u64::from(weight) * period);
            }
        }
    }
}

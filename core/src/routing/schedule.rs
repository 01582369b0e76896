//! Weighted turns, exact over every period: weights 10 and 80 give the first choice one turn in every nine.

use std::sync::Arc;

/// Fixed sequence of choices in which each appears in proportion to its weight, spread evenly.
///
/// Turns are drawn by ticket number, so that any number of threads share one atomic counter and no lock: any
/// [`Schedule::period`] consecutive tickets hold each choice exactly as often as its weight says.
///
/// A clone shares the sequence's memory, and may start at another turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    turns: Arc<[u16]>,
    /// Turn of ticket 0.
    start: usize,
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
            start: 0,
        }
    }

    /// Starts the sequence at a turn by a hash. Then many schedules that have drawn few turns each draw, all
    /// together, by the weights too.
    #[must_use]
    pub fn starting_at(mut self, hash: u64) -> Self {
        self.start = (hash % self.turns.len().max(1) as u64) as usize;
        self
    }

    /// Choice of a ticket; `None` where there is nothing to choose.
    #[must_use]
    pub fn draw(&self, ticket: u64) -> Option<u16> {
        let period = self.turns.len();
        let turn = ticket.checked_rem(period as u64)? as usize + self.start;
        self.turns.get(turn % period).copied()
    }

    /// The sequence of choices, from the turn of ticket 0.
    pub fn turns(&self) -> impl ExactSizeIterator<Item = u16> {
        (0..self.turns.len()).map(|ticket| self.turns[(ticket + self.start) % self.turns.len()])
    }

    /// The sequence of choices, from its own first turn.
    #[must_use]
    pub fn choices(&self) -> &[u16] {
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
    use signalbox_common::hash::mix;

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

    #[test]
    fn first_turns_of_many_schedules_are_drawn_by_the_weights() {
        let schedule = Schedule::new(&[(0, 75), (1, 25)]);
        let first = |name: u64| schedule.clone().starting_at(mix(name)).draw(0);
        let second = (0..4000).filter(|&name| first(name) == Some(1)).count();
        assert!((900..1100).contains(&second), "{second} of 4000, of 25 %");
    }

    proptest! {
        #[test]
        fn exact_over_every_window_of_a_period(
            weights in prop::collection::vec(1u32..=100, 1..6),
            start in 0u64..1000,
            hash in any::<u64>(),
        ) {
            let choices: Vec<_> = weights.iter().enumerate().map(|(i, &w)| (i as u16, w)).collect();
            let schedule = Schedule::new(&choices).starting_at(hash);
            prop_assert!((0..).zip(schedule.turns()).all(|(ticket, choice)| schedule.draw(ticket) == Some(choice)));
            let period = schedule.period() as u64;
            let total: u32 = weights.iter().sum();
            for (choice, weight) in choices {
                let turns = (start..start + period).filter(|&t| schedule.draw(t) == Some(choice)).count() as u64;
                prop_assert_eq!(turns * u64::from(total), u64::from(weight) * period);
            }
        }
    }
}

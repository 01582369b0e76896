//! Moments at which growing counts are judged. Each judgement may be wrong by chance, so there are few, and each has a
//! share of the risk.

use std::f64::consts::PI;

/// Samples at the first looks.
const FIRST: [u64; 4] = [8, 12, 16, 20];
/// Growth of the samples from one look to the next, in percent.
const GROWTH_PERCENT: u64 = 130;

/// Looks at one count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Looks {
    /// Number of looks so far.
    number: u32,
    /// Samples that the next look needs.
    next: u64,
}

impl Looks {
    /// Returns the part of the risk for a look at a count of so many samples; `None` if it is not due. The parts of all
    /// looks together are 1. `least`: samples of the first look.
    pub(super) fn look(&mut self, samples: u64, least: u64) -> Option<f64> {
        if samples < self.next.max(least).max(FIRST[0]) {
            return None;
        }
        let first = FIRST.into_iter().find(|wanted| *wanted > samples);
        self.next = first.unwrap_or_else(|| (samples * GROWTH_PERCENT).div_ceil(100));
        self.number += 1;
        Some(part_of(f64::from(self.number)))
    }
}

/// Part of a risk for the nth of any number of chances. All parts together are 1.
pub(super) fn part_of(number: f64) -> f64 {
    6.0 / (PI * number).powi(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_get_rarer_and_their_parts_are_one_at_most() {
        let mut looks = Looks::default();
        let found: Vec<(u64, f64)> = (0..1_000_000)
            .filter_map(|samples| Some((samples, looks.look(samples, 0)?)))
            .collect();
        let at: Vec<u64> = found.iter().take(7).map(|(samples, _)| *samples).collect();
        assert_eq!(at, [8, 12, 16, 20, 26, 34, 45]);
        assert!(found.len() < 50, "{}", found.len());
        let sum: f64 = found.iter().map(|(_, part)| part).sum();
        assert!(sum > 0.95 && sum < 1.0, "{sum}");
    }

    #[test]
    fn a_jump_of_samples_is_one_look() {
        let mut looks = Looks::default();
        assert!(looks.look(39, 40).is_none());
        assert!(looks.look(1000, 40).is_some());
        assert!(looks.look(1299, 40).is_none());
        assert!(looks.look(1300, 40).is_some());
    }
}

//! Whether a share of faults is above another one. Both true shares are unknown; their distributions follow from the
//! counts (Bayes, with the prior of Jeffreys).

use serde::{Deserialize, Serialize};
use statrs::function::beta::checked_beta_reg;

/// Cells of the numerical integral.
const CELLS: u32 = 64;
/// Standard deviations around the mean within which a share is integrated.
const DEVIATIONS: f64 = 9.0;
/// Probability with which a step could not have missed more faults.
const SURE: f64 = 0.95;

/// Faults, and all events that they are a share of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rate {
    /// Number of faults.
    pub faults: u64,
    /// Number of all events.
    pub all: u64,
}

impl Rate {
    /// Makes a rate.
    #[must_use]
    pub const fn new(faults: u64, all: u64) -> Self {
        Self { faults, all }
    }

    /// Returns the observed share; 0 without events.
    #[must_use]
    pub fn share(self) -> f64 {
        self.faults as f64 / self.all.max(1) as f64
    }
}

/// Distribution of an unknown share: a beta distribution.
#[derive(Clone, Copy, Debug)]
struct Share {
    a: f64,
    b: f64,
}

impl Share {
    /// Share of a cluster about which nothing is known: about 1 %.
    const UNKNOWN: Self = Self { a: 0.5, b: 50.0 };

    fn of(rate: Rate) -> Self {
        let faults = rate.faults.min(rate.all);
        Self {
            a: faults as f64 + 0.5,
            b: (rate.all - faults) as f64 + 0.5,
        }
    }

    /// Probability that the share is below `x`.
    fn below(self, x: f64) -> f64 {
        checked_beta_reg(self.a, self.b, x.clamp(0.0, 1.0)).unwrap_or(0.0)
    }

    /// Range that contains the share almost certainly.
    fn range(self) -> (f64, f64) {
        let sum = self.a + self.b;
        let mean = self.a / sum;
        let deviation = (mean * (1.0 - mean) / (sum + 1.0)).sqrt();
        let far = DEVIATIONS * deviation;
        ((mean - far).max(0.0), (mean + far).min(1.0))
    }
}

/// Probability that a share is at most `margin` above another one.
fn probability_of_no_more(old: Share, new: Share, margin: f64) -> f64 {
    let (from, to) = old.range();
    let (mut start, mut below) = (from, old.below(from));
    let mut probability = below * new.below(from + margin);
    for number in 1..=CELLS {
        // Narrow cells at the begin: near a share of zero, the density is infinite.
        let end = from + (to - from) * (f64::from(number) / f64::from(CELLS)).powi(2);
        let below_end = old.below(end);
        probability += (below_end - below) * new.below(f64::midpoint(start, end) + margin);
        (start, below) = (end, below_end);
    }
    // The rest of the distribution counts as the end of the range.
    probability + (1.0 - below) * new.below(to + margin)
}

/// Whether the new cluster has more faults than the old one by more than `margin`, with a probability of a wrong verdict
/// of at most `risk`. `old`: `None` if nothing is known of it.
#[must_use]
pub fn is_worse(old: Option<Rate>, new: Rate, margin: f64, risk: f64) -> bool {
    // Most looks end here.
    new.share() > old.unwrap_or_default().share() + margin
        && probability_of_so_many(old.map_or(Share::UNKNOWN, Share::of), new, margin) < risk
}

/// Probability of as many faults, or more, if the true share is only `margin` above the old one's. The prior of Jeffreys
/// would understate it for few events: three of eight would count as nearly impossible.
fn probability_of_so_many(old: Share, Rate { faults, all }: Rate, margin: f64) -> f64 {
    if faults == 0 {
        return 1.0;
    }
    // The binomial distribution's tail is this beta distribution (Clopper and Pearson).
    let tail = Share {
        a: faults as f64,
        b: (all.saturating_sub(faults) + 1) as f64,
    };
    probability_of_no_more(old, tail, margin)
}

/// Returns by how much the new cluster's share of faults could be above the old one's, with a probability of 95 %.
#[must_use]
pub fn possible_excess(old: Option<Rate>, new: Rate) -> f64 {
    let (old, new) = (old.map_or(Share::UNKNOWN, Share::of), Share::of(new));
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..16 {
        let middle = f64::midpoint(low, high);
        if probability_of_no_more(old, new, middle) < SURE {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 0.003, "{found}, expected {expected}");
    }

    /// Values of the same integral by 200000 samples of both distributions.
    #[test]
    fn probabilities_are_those_of_a_simulation() {
        for (old, new, margin, expected) in [
            ((0, 100), (0, 20), 0.01, 0.550),
            ((5, 100), (5, 100), 0.01, 0.632),
            ((10, 1000), (30, 1000), 0.01, 0.0528),
            ((1, 1000), (10, 50), 0.01, 0.0),
            ((50, 100), (10, 100), 0.0, 1.0),
        ] {
            let [old, new] = [old, new].map(|(faults, all)| Share::of(Rate::new(faults, all)));
            near(probability_of_no_more(old, new, margin), expected);
        }
    }

    #[test]
    fn equal_shares_are_as_likely_above_as_below() {
        for all in [1, 8, 100, 100_000] {
            let share = Share::of(Rate::new(all / 10, all));
            near(probability_of_no_more(share, share, 0.0), 0.5);
        }
    }

    /// 3 or more of 8 events, each with a probability of 6 %: 1 - 0.94^8 - 8 * 0.06 * 0.94^7 - 28 * 0.06^2 * 0.94^6.
    #[test]
    fn the_probability_of_so_many_is_the_binomial_one() {
        let old = Share::of(Rate::new(500_000, 10_000_000));
        near(probability_of_so_many(old, Rate::new(3, 8), 0.01), 0.0096);
        near(probability_of_so_many(old, Rate::new(0, 8), 0.01), 1.0);
    }

    #[test]
    fn few_events_prove_little() {
        let old = Some(Rate::new(0, 1_000_000));
        near(possible_excess(old, Rate::new(0, 20)), 0.091);
        near(possible_excess(old, Rate::new(0, 135)), 0.0140);
        assert!(possible_excess(None, Rate::new(0, 0)) > 0.9);
        assert!(possible_excess(old, Rate::new(0, 1_000_000)) < 0.0001);
    }

    #[test]
    fn a_share_without_an_old_one_is_compared_with_one_percent() {
        assert!(is_worse(None, Rate::new(8, 8), 0.01, 0.01));
        assert!(!is_worse(None, Rate::new(1, 20), 0.01, 0.01));
        assert!(!is_worse(None, Rate::new(0, 0), 0.01, 0.05));
    }
}

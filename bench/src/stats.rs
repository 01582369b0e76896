//! Statistics of several rounds.

use serde::Serialize;

/// Median of several measurements, and how far they lie apart.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// Median of the values.
    pub(crate) median: f64,
    /// Smallest value.
    pub(crate) min: f64,
    /// Largest value.
    pub(crate) max: f64,
}

impl Spread {
    /// Spread of the finite numbers among `values`, in any order; `None` of none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<_> = values.into_iter().filter(|v| v.is_finite()).collect();
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[half]
        } else {
            values[half - 1].midpoint(values[half])
        };
        Some(Self { median, min, max })
    }
}

/// Spread of `combine`'s results for two contenders' measurements of the same round. Pairs first and the median after:
/// noise that lasts longer than a round hits both of a pair and cancels.
pub(crate) fn paired<T>(
    mine: &[(usize, T)],
    theirs: &[(usize, T)],
    combine: impl Fn(&T, &T) -> Option<f64>,
) -> Option<Spread> {
    Spread::of(mine.iter().filter_map(|(round, mine)| {
        let (_, theirs) = theirs.iter().find(|(other, _)| other == round)?;
        combine(mine, theirs)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(Spread::of([]), None);
        let spread = |median, min, max| Some(Spread { median, min, max });
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), spread(2.0, 1.0, 3.0));
        assert_eq!(Spread::of([4.0, 1.0, 3.0, 2.0]), spread(2.5, 1.0, 4.0));
        assert_eq!(Spread::of([f64::NAN, 7.0]), spread(7.0, 7.0, 7.0));
    }

    #[test]
    fn pairs_are_of_the_same_round() {
        let ratio = |a: &f64, b: &f64| Some(a / b);
        // Round 1 ran on a machine half as fast: no pair shows it.
        let (mine, theirs) = ([(0, 200.0), (1, 100.0), (2, 1.0)], [(1, 50.0), (0, 100.0)]);
        assert_eq!(
            paired(&mine, &theirs, ratio).unwrap(),
            Spread {
                median: 2.0,
                min: 2.0,
                max: 2.0
            }
        );
        assert_eq!(paired(&mine, &[], ratio), None);
    }
}

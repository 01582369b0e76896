//! Values that rules name: numbers, ranges, addresses, and words.

use std::net::IpAddr;
use std::sync::Arc;

/// Sorted ranges of numbers that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NumberRanges(Arc<[(u128, u128)]>);

impl FromIterator<(u128, u128)> for NumberRanges {
    fn from_iter<I: IntoIterator<Item = (u128, u128)>>(ranges: I) -> Self {
        let mut all: Vec<_> = ranges.into_iter().filter(|(first, last)| first <= last).collect();
        all.sort_unstable();
        all.dedup_by(|next, known| {
            let touches = next.0 <= known.1.saturating_add(1);
            if touches {
                known.1 = known.1.max(next.1);
            }
            touches
        });
        Self(all.into())
    }
}

impl NumberRanges {
    /// Returns the ranges of single numbers.
    pub(crate) fn of(numbers: impl IntoIterator<Item = u128>) -> Self {
        numbers.into_iter().map(|number| (number, number)).collect()
    }

    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the range that holds a number, or the first one after it.
    fn first_from(&self, number: u128) -> Option<(u128, u128)> {
        let at = self.0.partition_point(|(_, last)| *last < number);
        self.0.get(at).copied()
    }

    /// Returns whether a number is in both.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        let (few, many) = if self.0.len() < other.0.len() {
            (self, other)
        } else {
            (other, self)
        };
        let meets = |&(first, last): &(u128, u128)| many.first_from(first).is_some_and(|(at, _)| at <= last);
        few.0.iter().any(meets)
    }

    /// Returns whether all numbers of `other` are in these ranges.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let covered = |&(first, last): &(u128, u128)| {
            self.first_from(first)
                .is_some_and(|(at, end)| at <= first && last <= end)
        };
        other.0.iter().all(covered)
    }

    /// Returns the numbers that are in both.
    #[must_use]
    pub(crate) fn common(&self, other: &Self) -> Self {
        let with = |&(first, last): &(u128, u128)| {
            let begins = other.0.partition_point(|(_, end)| *end < first);
            let meeting = other.0[begins..].iter().take_while(move |(at, _)| *at <= last);
            meeting.map(move |(at, end)| (first.max(*at), last.min(*end)))
        };
        self.0.iter().flat_map(with).collect()
    }

    /// Returns the numbers that `other` lacks.
    #[must_use]
    pub(crate) fn without(&self, other: &Self) -> Self {
        let mut rest = Vec::new();
        let mut next = 0;
        for (first, last) in other.0.iter() {
            rest.extend(first.checked_sub(1).map(|end| (next, end)));
            let Some(after) = last.checked_add(1) else {
                return self.common(&rest.into_iter().collect());
            };
            next = after;
        }
        rest.push((next, u128::MAX));
        self.common(&rest.into_iter().collect())
    }

    /// Returns the ranges in their order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u128, u128)> {
        self.0.iter().copied()
    }

    /// Returns how many numbers there are.
    #[must_use]
    pub(crate) fn count(&self) -> u128 {
        let counts = self.0.iter().map(|(first, last)| (last - first).saturating_add(1));
        counts.fold(0, u128::saturating_add)
    }

    /// Returns the numbers, if they are few.
    #[must_use]
    pub(crate) fn singles(&self) -> Option<Vec<u128>> {
        /// Most numbers that are handled one by one.
        const MAX_SINGLES: u128 = 1024;
        (self.count() <= MAX_SINGLES).then(|| self.0.iter().flat_map(|(first, last)| *first..=*last).collect())
    }
}

/// Values of one field that a rule names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ValuePattern {
    pub(crate) numbers: NumberRanges,
    /// Words: constants of the field, or names of interfaces. `*` at the end of a name stands for any characters.
    pub(crate) names: Vec<String>,
    /// Whether it may have more values than these.
    pub(crate) is_open: bool,
}

impl ValuePattern {
    /// Returns a pattern of which nothing is known.
    #[must_use]
    pub(crate) fn unknown() -> Self {
        Self {
            is_open: true,
            ..Self::default()
        }
    }

    #[must_use]
    pub(crate) fn range(first: u128, last: u128) -> Self {
        Self {
            numbers: [(first, last)].into_iter().collect(),
            ..Self::default()
        }
    }

    /// Reads an address, `A/LENGTH`, or `A-B`; `None` for all others.
    #[must_use]
    pub(crate) fn address(text: &str) -> Option<Self> {
        if let Some((first, last)) = text.split_once('-') {
            return Some(Self::range(address_number(first)?, address_number(last)?));
        }
        let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let is_v4 = address.parse::<IpAddr>().ok()?.is_ipv4();
        let width = if is_v4 { 32 } else { 128 };
        let length = match length {
            None => width,
            Some(length) => length.parse().ok()?,
        };
        Self::prefix(address_number(address)?, length, width)
    }

    /// Returns the addresses of a prefix, of addresses of `width` bits.
    #[must_use]
    pub(crate) fn prefix(address: u128, length: u32, width: u32) -> Option<Self> {
        let free = width.checked_sub(length)?;
        let rest = 1u128.checked_shl(free).map_or(u128::MAX, |size| size - 1);
        Some(Self::range(address & !rest, address | rest))
    }

    /// Returns the values of all patterns.
    pub(crate) fn union(patterns: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Self::default();
        let mut ranges = Vec::new();
        for pattern in patterns {
            ranges.extend(pattern.numbers.0.iter().copied());
            all.names.extend(pattern.names);
            all.is_open |= pattern.is_open;
        }
        all.numbers = ranges.into_iter().collect();
        all
    }

    /// Replaces words by numbers, where `number_of` knows them.
    #[must_use]
    pub(crate) fn resolved(&self, number_of: impl Fn(&str) -> Option<u128>) -> (NumberRanges, bool) {
        if self.names.is_empty() {
            return (self.numbers.clone(), self.is_open);
        }
        let words: Option<Vec<u128>> = self.names.iter().map(|name| number_of(name)).collect();
        let is_open = self.is_open || words.is_none();
        let of_words = words.into_iter().flatten().map(|number| (number, number));
        let ranges = self.numbers.0.iter().copied().chain(of_words).collect();
        (ranges, is_open)
    }
}

/// Returns an address as a number.
#[must_use]
pub(crate) fn address_number(text: &str) -> Option<u128> {
    Some(number_of_address(text.parse().ok()?))
}

#[must_use]
pub(crate) fn number_of_address(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_merged_and_compared() {
        let ranges: NumberRanges = [(7, 9), (1, 2), (3, 4), (8, 12)].into_iter().collect();
        assert_eq!(ranges, [(1, 4), (7, 12)].into_iter().collect());
        assert!(ranges.covers(&NumberRanges::of([1, 4, 12])) && !ranges.covers(&NumberRanges::of([4, 5])));
        assert!(ranges.meets(&[(5, 7)].into_iter().collect()) && !ranges.meets(&NumberRanges::of([0, 5, 6, 13])));
        let all: NumberRanges = [(0, u128::MAX)].into_iter().collect();
        assert!(all.covers(&ranges) && all.singles().is_none());
        let others: NumberRanges = [(0, 0), (3, 8), (10, 10), (12, u128::MAX)].into_iter().collect();
        let expected: NumberRanges = [(3, 4), (7, 8), (10, 10), (12, 12)].into_iter().collect();
        assert_eq!(ranges.common(&others), expected);
        let expected: NumberRanges = [(1, 2), (9, 9), (11, 11)].into_iter().collect();
        assert_eq!(ranges.without(&others), expected);
        assert_eq!(
            (all.without(&NumberRanges::default()), ranges.common(&all)),
            (all, ranges)
        );
    }

    #[test]
    fn addresses_have_prefixes_and_ranges() {
        let range = |text| ValuePattern::address(text).map(|pattern| pattern.numbers);
        let of = |first, last| Some([(first, last)].into_iter().collect());
        assert_eq!(range("10.1.2.3/8"), of(0x0a00_0000, 0x0aff_ffff));
        assert_eq!(range("0.0.0.0/0"), of(0, 0xffff_ffff));
        assert_eq!(range("10.0.0.9-10.0.1.0"), of(0x0a00_0009, 0x0a00_0100));
        assert_eq!(range("::/0"), of(0, u128::MAX));
        for unknown in ["10.0.0.0/255.0.0.0", "10.0.0.0/33", "web.test", ""] {
            assert_eq!(range(unknown), None, "{unknown}");
        }
    }
}

//! Values that packets may have, compared with those that rules name.

use std::sync::Arc;

use super::pattern::{NumberRanges, ValuePattern};

/// Whether a condition holds for the packets of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Truth {
    /// For none of them.
    No,
    /// For some, or it is not known.
    Maybe,
    /// For all of them.
    Yes,
}

impl Truth {
    /// Returns whether both hold.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        self.min(other)
    }

    /// Returns whether this does not hold, if `negated`.
    #[must_use]
    pub(crate) const fn negated(self, negated: bool) -> Self {
        match (self, negated) {
            (Self::No, true) => Self::Yes,
            (Self::Yes, true) => Self::No,
            _ => self,
        }
    }

    /// Returns the truth for a class whose packets give these answers.
    fn of_all(answers: impl Iterator<Item = bool>) -> Self {
        let (mut some, mut all) = (false, true);
        for answer in answers {
            some |= answer;
            all &= answer;
        }
        match (some, all) {
            (false, _) => Self::No,
            (true, true) => Self::Yes,
            (true, false) => Self::Maybe,
        }
    }
}

/// Values of a field that packets of a class may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FieldValues {
    /// Anything, or it is not known.
    Any,
    /// Numbers in these ranges, at most.
    Numbers(NumberRanges),
    /// Numbers of which these bits at most are set.
    Bits(u128),
    /// Names of interfaces, these at most.
    Names(Arc<[String]>),
    /// Any interface but `lo`.
    NotLoopback,
    /// No interface: not equal to any name. Whether an unequal one matches depends on the kernel.
    Nameless,
    /// The packets lack the field: a rule that asks for it does not match, even if it is negated.
    Absent,
}

impl FieldValues {
    pub(crate) fn numbers(numbers: impl IntoIterator<Item = u128>) -> Self {
        Self::Numbers(NumberRanges::of(numbers))
    }

    /// Compares with a rule's values. `number_of` knows the words of the field.
    #[must_use]
    pub(crate) fn are_in(&self, pattern: &ValuePattern, number_of: impl Fn(&str) -> Option<u128>) -> Truth {
        let is_nothing = pattern.numbers.is_empty() && pattern.names.is_empty() && !pattern.is_open;
        let without_match = if pattern.is_open { Truth::Maybe } else { Truth::No };
        match self {
            Self::Absent => Truth::No,
            _ if is_nothing => Truth::No,
            Self::Any | Self::Bits(_) => Truth::Maybe,
            Self::Numbers(own) => {
                let (wanted, is_open) = pattern.resolved(number_of);
                match (wanted.covers(own), own.meets(&wanted) || is_open) {
                    (true, _) => Truth::Yes,
                    (false, true) => Truth::Maybe,
                    (false, false) => Truth::No,
                }
            }
            Self::Names(own) => {
                let matches = |name: &String| pattern.names.iter().any(|wanted| is_named(wanted, name));
                // A number is the index of an interface.
                match Truth::of_all(own.iter().map(matches)) {
                    Truth::No if !pattern.numbers.is_empty() => Truth::Maybe,
                    Truth::No => without_match,
                    some => some,
                }
            }
            Self::NotLoopback if !pattern.numbers.is_empty() => Truth::Maybe,
            Self::NotLoopback if pattern.names.iter().any(|name| name != "lo") => Truth::Maybe,
            // Index 0 means no interface.
            Self::Nameless if !pattern.numbers.is_empty() => Truth::Maybe,
            Self::Nameless if pattern.names.iter().any(|name| name == "*") => Truth::Maybe,
            Self::NotLoopback | Self::Nameless => without_match,
        }
    }

    /// Whether one of the bits of `mask` is set.
    #[must_use]
    pub(crate) fn have_bits(&self, mask: u128) -> Truth {
        match self {
            Self::Absent => Truth::No,
            Self::Numbers(own) => own.singles().map_or(Truth::Maybe, |singles| {
                Truth::of_all(singles.iter().map(|number| number & mask != 0))
            }),
            Self::Bits(possible) if possible & mask == 0 => Truth::No,
            _ => Truth::Maybe,
        }
    }

    /// Values after `(value & and) ^ xor`.
    #[must_use]
    pub(crate) fn changed(&self, and: u128, xor: u128) -> Self {
        match self {
            Self::Absent => Self::Absent,
            Self::Numbers(own) => own.singles().map_or(Self::Any, |singles| {
                Self::numbers(singles.iter().map(|number| (number & and) ^ xor))
            }),
            Self::Bits(possible) if possible & and == 0 => Self::numbers([xor]),
            Self::Bits(possible) if xor == 0 => Self::Bits(possible & and),
            _ => Self::Any,
        }
    }
}

/// Whether a rule's name of an interface is this one's.
fn is_named(wanted: &str, name: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some(start) if !start.ends_with('\\') => name.starts_with(start),
        _ => wanted == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_without_an_interface_may_have_index_0_and_no_name() {
        let in_pattern = |pattern: &ValuePattern| FieldValues::Nameless.are_in(pattern, |_| None);
        let name = |name: &str| ValuePattern {
            names: vec![name.to_owned()],
            ..ValuePattern::default()
        };
        assert_eq!(in_pattern(&ValuePattern::range(0, 0)), Truth::Maybe);
        assert_eq!(in_pattern(&name("*")), Truth::Maybe);
        assert_eq!(in_pattern(&name("eth0")), Truth::No);
    }

    #[test]
    fn bits_that_may_be_set_are_known_apart_from_others() {
        let bits = FieldValues::Bits(0x8e);
        assert_eq!((bits.have_bits(0x30), bits.have_bits(0x81)), (Truth::No, Truth::Maybe));
        assert_eq!(bits.changed(0x30, 0), FieldValues::numbers([0]));
        assert_eq!(bits.changed(0x38, 0), FieldValues::Bits(8));
        assert_eq!(bits.changed(0x38, 1), FieldValues::Any);
        assert_eq!(bits.are_in(&ValuePattern::range(8, 8), |_| None), Truth::Maybe);
    }
}

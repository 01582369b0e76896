//! Patterns that say which applications a setting is for.

use serde::Serialize;
use std::fmt;

/// Pattern of applications: `NAMESPACE/APP`, each part with `*` for any text; `*` alone is all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AppPattern(String);

/// Error of a text that is no pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write NAMESPACE/APP, with * for any text in each of them, or * for all applications")]
pub struct PatternError;

impl AppPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// The text is no pattern.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let part = |part: &str| {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'*');
            (1..=63).contains(&part.len()) && part.bytes().all(allowed)
        };
        let is_right = text == "*"
            || text
                .split_once('/')
                .is_some_and(|(namespace, app)| part(namespace) && part(app));
        is_right.then(|| Self(text.to_owned())).ok_or(PatternError)
    }

    /// Whether an application, `NAMESPACE/APP`, matches the pattern.
    #[must_use]
    pub fn matches(&self, application: &str) -> bool {
        match (self.0.split_once('/'), application.split_once('/')) {
            (None, Some(_)) => true,
            (Some((namespace, app)), Some((in_namespace, name))) => glob(namespace, in_namespace) && glob(app, name),
            (_, None) => false,
        }
    }
}

impl fmt::Display for AppPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a text matches a pattern in which `*` matches any text. The pieces between stars are found from the left, so
/// that the time is at most proportional to pattern times text.
pub(crate) fn glob(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(first) else {
        return false;
    };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let last = pieces.pop().unwrap_or_default();
    for piece in pieces {
        let Some((_, behind)) = text.split_once(piece) else {
            return false;
        };
        text = behind;
    }
    text.ends_with(last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_star_is_any_text_within_its_part() {
        let matches = |pattern: &str, application: &str| AppPattern::parse(pattern).unwrap().matches(application);
        for (pattern, application, is_meant) in [
            ("*", "bank/app", true),
            ("*", "east", false),
            ("bank/*", "bank/app", true),
            ("bank/*", "bank2/app", false),
            ("*/app", "shop/app", true),
            ("ba*/a*p", "bank/app", true),
            ("ba*/a*p", "bank/apx", false),
            ("bank/app", "bank/app", true),
            ("b*n*k/*", "bnbnk/x", true),
            ("b*nn/*", "bn/x", false),
        ] {
            assert_eq!(matches(pattern, application), is_meant, "{pattern} {application}");
        }
        for wrong in ["", "bank", "bank/", "/app", "a/b/c", "ba nk/*", "**"] {
            assert_eq!(AppPattern::parse(wrong), Err(PatternError), "{wrong}");
        }
    }

    /// Definition of a match: a star matches nothing, or a character and perhaps more.
    fn naive(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, _) => text.is_empty(),
            (Some((b'*', rest)), None) => naive(rest, text),
            (Some((b'*', rest)), Some((_, behind))) => naive(rest, text) || naive(pattern, behind),
            (Some((wanted, rest)), Some((found, behind))) => wanted == found && naive(rest, behind),
            (Some(_), None) => false,
        }
    }

    proptest! {
        #[test]
        fn a_pattern_matches_as_its_definition_says(pattern in "[ab*]{1,6}", text in "[ab]{0,8}") {
            prop_assert_eq!(glob(&pattern, &text), naive(pattern.as_bytes(), text.as_bytes()));
        }
    }
}

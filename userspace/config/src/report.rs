//! Where decoders note mistakes, and how they quote a person's text in them.

use super::error::{ConfigError, Errors};
use super::node::{Path, Spot};
use super::suggest;

/// How many pairs of characters may be compared in search of suggestions. A file in which everything is misspelt would
/// otherwise cost errors times names.
const EFFORT: usize = 50_000_000;

/// The longest quote of a person's text in a message, in characters.
const LONGEST_QUOTE: usize = 80;

/// The mistakes found so far, and what is allowed but hardly meant.
#[derive(Debug)]
pub(super) struct Report {
    errors: Vec<ConfigError>,
    warnings: Vec<ConfigError>,
    effort: usize,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            errors: Vec::new(),
            warnings: Vec::new(),
            effort: EFFORT,
        }
    }
}

impl Report {
    /// Notes a mistake.
    pub(super) fn error(&mut self, spot: Spot, path: &Path<'_>, message: impl Into<String>) {
        self.errors
            .push(ConfigError::new(spot, path.to_string(), message.into()));
    }

    /// Notes what is allowed but hardly meant.
    pub(super) fn warning(&mut self, spot: Spot, path: &Path<'_>, message: impl Into<String>) {
        self.warnings
            .push(ConfigError::new(spot, path.to_string(), message.into()));
    }

    /// The warnings so far, which are none of the report's any more.
    pub(super) fn take_warnings(&mut self) -> Vec<ConfigError> {
        std::mem::take(&mut self.warnings)
    }

    /// Whether nothing is wrong so far.
    pub(super) fn is_clean(&self) -> bool {
        self.errors.is_empty()
    }

    /// The candidate that `word` was probably meant to be.
    pub(super) fn suggest<'a>(&mut self, word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
        suggest::nearest(word, candidates, &mut self.effort)
    }

    /// All of it, with the lines of `text` to show.
    pub(super) fn into_errors(mut self, text: &str) -> Errors {
        if self.errors.is_empty() {
            // Not reached: a decoder that gives up says why. Should one ever forget, refusing beats half a model.
            self.error(Spot::START, &Path::ROOT, "the configuration could not be understood");
        }
        Errors::new(self.errors, text)
    }
}

/// A person's text in a message: in backquotes, on one line, not endless.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len().min(LONGEST_QUOTE) + 2);
    quoted.push('`');
    for (at, character) in text.chars().enumerate() {
        if at == LONGEST_QUOTE {
            quoted.push_str("...");
            break;
        }
        match character {
            // `escape_debug` would also escape quotes, which a reader then takes for part of the text.
            '\'' | '"' => quoted.push(character),
            other => quoted.extend(other.escape_debug()),
        }
    }
    quoted.push('`');
    quoted
}

/// `a, b or c`.
pub(super) fn alternatives<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<&str> = words.collect();
    match words.split_last() {
        None => String::new(),
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}

/// `; did you mean ...?`, or nothing.
pub(super) fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |word| format!("; did you mean {}?", quote(word)))
}

//! Report: decoders note mistakes in it, and quote a person's text in them.

use super::error::{ConfigError, ConfigErrors};
use super::node::{NodePath, Position};
use super::suggest;

/// Most pairs of characters that are compared in search of suggestions. A file in which everything is misspelt would
/// otherwise cost errors times names.
const MAX_COMPARISONS: usize = 50_000_000;

/// Longest quote of a person's text in a message, in characters.
const MAX_QUOTE_CHARS: usize = 80;

/// Mistakes and warnings found so far.
#[derive(Debug)]
pub(super) struct Report {
    errors: Vec<ConfigError>,
    warnings: Vec<ConfigError>,
    comparisons_left: usize,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            errors: Vec::new(),
            warnings: Vec::new(),
            comparisons_left: MAX_COMPARISONS,
        }
    }
}

impl Report {
    /// Notes a mistake.
    pub(super) fn error(&mut self, spot: Position, path: &NodePath<'_>, message: impl Into<String>) {
        self.errors
            .push(ConfigError::new(spot, path.to_string(), message.into()));
    }

    /// Notes a warning: a setting is allowed but probably a mistake.
    pub(super) fn warning(&mut self, spot: Position, path: &NodePath<'_>, message: impl Into<String>) {
        self.warnings
            .push(ConfigError::new(spot, path.to_string(), message.into()));
    }

    /// Takes the warnings so far out of the report.
    pub(super) fn take_warnings(&mut self) -> Vec<ConfigError> {
        std::mem::take(&mut self.warnings)
    }

    /// Whether there is no mistake so far.
    pub(super) fn is_clean(&self) -> bool {
        self.errors.is_empty()
    }

    /// Candidate that `word` was probably meant to be.
    pub(super) fn suggest<'a>(&mut self, word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
        suggest::nearest(word, candidates, &mut self.comparisons_left)
    }

    /// Turns the report into errors, with the lines of `text` to show.
    pub(super) fn into_errors(mut self, text: &str) -> ConfigErrors {
        if self.errors.is_empty() {
            // Not reached, because a decoder that fails reports why; if one forgot, refusing would be better than half
            // a model.
            self.error(
                Position::START,
                &NodePath::ROOT,
                "the configuration could not be understood",
            );
        }
        ConfigErrors::new(self.errors, text)
    }
}

/// Quotes a person's text for a message: in backquotes, on one line, of limited length.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len().min(MAX_QUOTE_CHARS) + 2);
    quoted.push('`');
    for (at, character) in text.chars().enumerate() {
        if at == MAX_QUOTE_CHARS {
            quoted.push_str("...");
            break;
        }
        match character {
            // Quotes stay as they are: a reader would take their escapes from `escape_debug` for part of the text.
            '\'' | '"' => quoted.push(character),
            other => quoted.extend(other.escape_debug()),
        }
    }
    quoted.push('`');
    quoted
}

/// Joins words as `a, b or c`.
pub(super) fn alternatives<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<&str> = words.collect();
    match words.split_last() {
        None => String::new(),
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}

/// Text `; did you mean ...?`, or nothing.
pub(super) fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |word| format!("; did you mean {}?", quote(word)))
}

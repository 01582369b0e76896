//! Mistakes in a file, and the way they are shown.

use std::fmt;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::excerpt::{Excerpt, Excerpts};
use super::node::Position;

/// Mistake in a file (or, in [`super::Parsed::warnings`], an oddity).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigError {
    /// Line of the mistake, from 1.
    pub line: usize,
    /// Column of the mistake in characters, from 1.
    pub column: usize,
    /// Path in the tree, such as `clusters[0].hosts[1].weight`; empty for the file as a whole.
    pub path: String,
    /// Description of the mistake and its fix.
    pub message: String,
}

impl ConfigError {
    pub(super) fn new(spot: Position, path: String, message: String) -> Self {
        Self {
            line: spot.line,
            column: spot.column,
            path,
            message,
        }
    }
}

/// Shows `LINE:COL: path: message`.
impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// Most mistakes that are shown: a file of another kind has one in each line.
const MAX_SHOWN: usize = 100;

/// Hint for a mistake in text with the syntax of another program, by its line before the mistake and from there on.
fn hint((before, rest): (&str, &str)) -> &'static str {
    let value = rest.trim_start_matches(['"', '\'']);
    let word = value.split([' ', ',', '"', '\'']).next().unwrap_or_default();
    if value.starts_with("{{") || (before.ends_with('{') && value.starts_with('{')) {
        return "; templates (`{{ }}`) are not filled in here: fill them in first";
    }
    if word.starts_with('$') || word.contains("${") {
        return "; environment variables are not expanded: write the value";
    }
    ""
}

/// All mistakes of a file, in its order; at least one. Displayed one per line, `FILE:LINE:COL: path: message`.
#[derive(Clone, Debug)]
pub struct ConfigErrors {
    file: Option<PathBuf>,
    list: Vec<(ConfigError, Excerpt)>,
}

impl ConfigErrors {
    pub(super) fn new(mut list: Vec<ConfigError>, text: &str) -> Self {
        list.sort_by_key(|error| (error.line, error.column));
        let mut excerpts = Excerpts::of(text);
        let list = list.into_iter().map(|mut error| {
            let excerpt = excerpts.at(error.line, error.column);
            error.message += hint(excerpt.halves());
            (error, excerpt)
        });
        Self {
            file: None,
            list: list.collect(),
        }
    }

    /// Adds the file's name to everything shown from now on.
    #[must_use]
    pub fn with_file(mut self, file: &Path) -> Self {
        self.file = Some(file.to_owned());
        self
    }

    /// Mistakes in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &ConfigError> {
        self.list.iter().map(|(error, _)| error)
    }

    /// Text for a terminal: each mistake with its line and a caret below its place, as rustc shows them.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = String::new();
        for (error, excerpt) in self.list.iter().take(MAX_SHOWN) {
            let _ = self.render_one(&mut out, error, excerpt); // writing to a String cannot fail
        }
        if let Some(more) = self.more() {
            let _ = writeln!(out, "{more}");
        }
        let plural = if self.list.len() == 1 { "" } else { "s" };
        let _ = writeln!(out, "{} error{plural} in the configuration", self.list.len());
        out
    }

    /// Line about the mistakes that are not shown.
    fn more(&self) -> Option<String> {
        let more = self.list.len().checked_sub(MAX_SHOWN).filter(|more| *more > 0)?;
        Some(format!("and {more} more"))
    }

    fn render_one(&self, out: &mut String, error: &ConfigError, excerpt: &Excerpt) -> fmt::Result {
        let number = error.line.to_string();
        let margin = " ".repeat(number.len());
        let colon = if error.path.is_empty() { "" } else { ": " };
        writeln!(out, "error: {}{colon}{}", error.path, error.message)?;
        write!(out, "{margin}--> ")?;
        if let Some(file) = &self.file {
            write!(out, "{}:", file.display())?;
        }
        writeln!(out, "{}:{}", error.line, error.column)?;
        writeln!(out, "{margin} |")?;
        writeln!(out, "{number} | {}", excerpt.line)?;
        writeln!(out, "{margin} | {}^", excerpt.indent)?;
        writeln!(out)
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (error, _)) in self.list.iter().take(MAX_SHOWN).enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            if let Some(file) = &self.file {
                write!(f, "{}:", file.display())?;
            }
            write!(f, "{error}")?;
        }
        if let Some(more) = self.more() {
            write!(f, "\n{more}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str, spots: &[(usize, usize)]) -> ConfigErrors {
        let list = spots.iter().map(|&(line, column)| ConfigError {
            line,
            column,
            path: "a.b".to_owned(),
            message: "is odd".to_owned(),
        });
        ConfigErrors::new(list.collect(), text)
    }

    #[test]
    fn one_line_per_error_in_the_order_of_the_file() {
        let shown = errors("x", &[(2, 7), (1, 1)])
            .with_file(Path::new("/etc/s.yaml"))
            .to_string();
        assert_eq!(shown, "/etc/s.yaml:1:1: a.b: is odd\n/etc/s.yaml:2:7: a.b: is odd");
    }

    #[test]
    fn the_caret_stands_below_the_mistake() {
        let shown = errors("one\r\n\ttwo: three\rfour", &[(2, 7), (3, 1)])
            .with_file(Path::new("f"))
            .render();
        assert_eq!(
            shown,
            "error: a.b: is odd\n --> f:2:7\n  |\n2 | \ttwo: three\n  | \t     ^\n\n\
             error: a.b: is odd\n --> f:3:1\n  |\n3 | four\n  | ^\n\n\
             2 errors in the configuration\n"
        );
    }

    #[test]
    fn an_endless_line_is_cut_around_the_mistake() {
        let shown = errors(&format!("{}X{}", "a".repeat(9000), "b".repeat(9000)), &[(1, 9001)]).render();
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[3].len() < 200 && lines[3].starts_with("1 | ...aaa"), "{shown}");
        assert_eq!(lines[3].find('X'), lines[4].find('^'));
    }

    #[test]
    fn a_place_outside_the_text_is_no_reason_to_panic() {
        assert!(errors("", &[(0, 0), (1, 9), (99, 99)]).render().contains("3 errors"));
    }

    #[test]
    fn a_hundred_mistakes_are_shown_and_the_rest_counted() {
        let errors = errors("x", &vec![(1, 1); 78_000]);
        let shown = errors.to_string();
        assert_eq!(shown.lines().count(), 101);
        assert!(shown.ends_with("\nand 77900 more"), "{}", &shown[shown.len() - 40..]);
        assert!(
            errors
                .render()
                .ends_with("and 77900 more\n78000 errors in the configuration\n")
        );
    }

    #[test]
    fn errors_serialize_for_the_api() {
        let json = serde_json::to_string(errors("x", &[(1, 2)]).iter().next().unwrap()).unwrap();
        assert_eq!(json, r#"{"line":1,"column":2,"path":"a.b","message":"is odd"}"#);
    }
}

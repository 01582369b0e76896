//! Excerpts: the lines that are shown with mistakes.

use std::iter::{Enumerate, Peekable};
use std::str::Chars;

/// Characters of a line that are shown to either side of a mistake: JSON often is a single, endless line.
const CONTEXT: usize = 80;

/// Finds excerpts in one pass over the text: places must be asked for in its order, by line and column.
pub(super) struct Excerpts<'a> {
    lines: Peekable<Enumerate<Lines<'a>>>,
    /// Beginning of the last excerpt in its line: the line's number, characters before it, and the text from there on.
    /// Without this, ten thousand mistakes in one line of JSON would cost ten thousand walks from its start.
    cursor: (usize, usize, &'a str),
}

impl<'a> Excerpts<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let lines = Lines { rest: Some(text) };
        Self {
            lines: lines.enumerate().peekable(),
            cursor: (0, 0, ""),
        }
    }

    /// Excerpt for a place; empty for a place outside the text, such as an unexpected end.
    pub(super) fn at(&mut self, line: usize, column: usize) -> Excerpt {
        while self.lines.next_if(|(at, _)| at + 1 < line).is_some() {}
        let text = match self.lines.peek() {
            Some((at, text)) if at + 1 == line => *text,
            _ => return Excerpt::default(),
        };
        let start = column.saturating_sub(CONTEXT + 1);
        let (passed, rest) = match self.cursor {
            (begun, passed, rest) if begun == line && passed <= start => (passed, rest),
            _ => (0, text),
        };
        let mut rest = rest.chars();
        let skipped = rest.by_ref().take(start - passed).count();
        self.cursor = (line, passed + skipped, rest.as_str());
        Excerpt::of(rest, start > 0, column.saturating_sub(start + 1))
    }
}

/// Part of a line, and the white space that puts a caret below the mistake.
#[derive(Clone, Debug, Default)]
pub(super) struct Excerpt {
    pub(super) line: String,
    pub(super) indent: String,
}

impl Excerpt {
    /// The line before the mistake, and from there on.
    pub(super) fn halves(&self) -> (&str, &str) {
        let at = self.line.char_indices().nth(self.indent.chars().count());
        self.line.split_at(at.map_or(self.line.len(), |(at, _)| at))
    }

    fn of(rest: Chars<'_>, cut: bool, before: usize) -> Self {
        let dots = if cut { "..." } else { "" };
        let line: String = dots.chars().chain(rest.take(2 * CONTEXT).map(printable)).collect();
        // Tabs stay tabs, so that the caret lands below its place at any tab width.
        let blank = |c| if c == '\t' { c } else { ' ' };
        let indent = line.chars().take(dots.len() + before).map(blank).collect();
        Self { line, indent }
    }
}

/// Replaces control characters, so that a hostile file cannot steer the terminal.
fn printable(character: char) -> char {
    match character {
        '\t' | '\'' | '"' | '\\' => character,
        _ if character.escape_debug().count() > 1 => char::REPLACEMENT_CHARACTER,
        _ => character,
    }
}

/// Lines as YAML counts them: ended by `\n`, `\r\n` or a lone `\r`.
struct Lines<'a> {
    rest: Option<&'a str>,
}

impl<'a> Iterator for Lines<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let text = self.rest?;
        let Some((line, after)) = text.find(['\n', '\r']).and_then(|at| text.split_at_checked(at)) else {
            return self.rest.take();
        };
        self.rest = after.strip_prefix("\r\n").or_else(|| after.get(1..));
        Some(line)
    }
}

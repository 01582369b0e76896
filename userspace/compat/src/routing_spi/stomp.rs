//! STOMP frames, <https://stomp.github.io/stomp-specification-1.2.html>: as much of it as a consumer needs, bounded.
//!
//! Own code, because the available client crate, async-stomp, is under the EUPL, a copyleft that signalbox's licence is
//! not compatible with; and because a body that is too large must be skipped, not end the connection: the broker would
//! deliver it again and again.

mod decoder;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

pub(super) use decoder::Decoder;
#[cfg(test)]
use decoder::Malformed;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) command: String,
    /// Headers in order; of a repeated name the first counts (STOMP 1.2).
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// True if the body was longer than the part that is kept.
    pub(super) cut: bool,
}

impl Frame {
    pub(super) fn new(command: &str, headers: &[(&str, &str)]) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            command: command.to_owned(),
            headers: headers.iter().map(own).collect(),
            body: Vec::new(),
            cut: false,
        }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Encodes the frame for the wire.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut head = format!("{}\n", self.command);
        let escaped = has_escapes(&self.command);
        for (name, value) in &self.headers {
            if escaped {
                let _ = writeln!(head, "{}:{}", escape(name), escape(value)); // a String takes everything
            } else {
                let _ = writeln!(head, "{name}:{value}");
            }
        }
        if !self.body.is_empty() {
            let _ = writeln!(head, "content-length:{}", self.body.len());
        }
        head.push('\n');
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes.push(0);
        bytes
    }
}

/// CONNECT and CONNECTED have no escapes, as in STOMP 1.0.
fn has_escapes(command: &str) -> bool {
    !matches!(command, "CONNECT" | "CONNECTED")
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            ':' => escaped.push_str("\\c"),
            other => escaped.push(other),
        }
    }
    escaped
}

//! Fields of an event, each read as the type that it should have.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::error::ParseError;
use crate::wire::hostname::HostnamePattern;
use crate::wire::yaml::{MapEntry, NodeKind, YamlNode};

/// Longest alias, in bytes. DNS ends at 253; longer ones are kept to show the attempt.
const MAX_ALIAS_BYTES: usize = 1024;

/// Fields of a mapping, by key.
pub(super) struct Fields<'a> {
    pub(super) document: usize,
    line: usize,
    entries: &'a [MapEntry],
}

impl<'a> Fields<'a> {
    pub(super) fn open(document: usize, node: &'a YamlNode) -> Result<Self, ParseError> {
        let line = node.position.line;
        let NodeKind::Map(entries) = &node.kind else {
            let message = format!("expected a mapping (`key: value`), found {}", node.kind.type_name());
            return Err(ParseError::new(document, line, message));
        };
        let mut seen = BTreeSet::new();
        for entry in entries {
            if !seen.insert(symbol(&entry.key)) {
                return Err(ParseError::new(document, entry.position.line, "expected each key once"));
            }
        }
        Ok(Self {
            document,
            line,
            entries,
        })
    }

    pub(super) fn get(&self, wanted: &str) -> Option<&'a YamlNode> {
        let entry = self.entries.iter().find(|entry| symbol(&entry.key) == wanted)?;
        (!matches!(entry.value.kind, NodeKind::Null)).then_some(&entry.value)
    }

    /// Error at a key, or at the beginning of the event if the key is missing.
    pub(super) fn error_at(&self, key: &str, expected: impl Into<String>) -> ParseError {
        let line = self.get(key).map_or(self.line, |node| node.position.line);
        ParseError::new(self.document, line, format!("`{key}`: {}", expected.into()))
    }

    /// Text of a key, perhaps empty; `None`: the key is missing or null.
    fn optional(&self, key: &str) -> Result<Option<&'a str>, ParseError> {
        let value = self.get(key).map(|node| {
            let found = node.kind.type_name();
            text(node).ok_or_else(|| self.error_at(key, format!("expected a single value, found {found}")))
        });
        value.transpose()
    }

    pub(super) fn text(&self, key: &str) -> Result<&'a str, ParseError> {
        let text = self.optional(key)?.filter(|text| !text.is_empty());
        text.ok_or_else(|| self.error_at(key, "expected a value, found nothing"))
    }

    pub(super) fn optional_text(&self, key: &str) -> Result<Option<String>, ParseError> {
        let text = self.optional(key)?.filter(|text| !text.is_empty());
        Ok(text.map(str::to_owned))
    }

    /// Text of a key as a name that can be part of a cluster's name.
    pub(super) fn name(&self, key: &str) -> Result<String, ParseError> {
        let text = self.text(key)?;
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if text.len() <= 63 && text.bytes().all(allowed) {
            return Ok(text.to_owned());
        }
        Err(self.error_at(key, "expected 1 to 63 letters, digits, `.`, `_` or `-`"))
    }

    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>, ParseError> {
        match self.optional(key)? {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(self.error_at(key, "expected true or false")),
        }
    }

    /// Time of a key in whole seconds.
    pub(super) fn seconds(&self, key: &str, most: u64) -> Result<Option<Duration>, ParseError> {
        let Some(text) = self.optional(key)? else {
            return Ok(None);
        };
        let seconds = text.parse().ok().filter(|seconds| *seconds <= most);
        let seconds = seconds.ok_or_else(|| self.error_at(key, format!("expected whole seconds, 0 to {most}")))?;
        Ok(Some(Duration::from_secs(seconds)))
    }

    pub(super) fn address(&self) -> Result<SocketAddr, ParseError> {
        let machine = |ip: &IpAddr| !ip.is_unspecified() && !ip.is_multicast();
        let ip = self.text("public_address")?.parse().map(|ip: IpAddr| ip.to_canonical());
        let ip = ip.ok().filter(machine);
        let ip = ip.ok_or_else(|| self.error_at("public_address", "expected the IP address of a machine"))?;
        let port = self.text("public_port")?.parse().ok().filter(|port| *port != 0);
        let port = port.ok_or_else(|| self.error_at("public_port", "expected a port from 1 to 65535"))?;
        Ok(SocketAddr::new(ip, port))
    }

    /// Alias, folded as a host name, so that case does not matter; a text that is no host name is kept unchanged.
    pub(super) fn alias(&self) -> Result<String, ParseError> {
        let text = self.text("alias")?;
        if text.len() > MAX_ALIAS_BYTES {
            return Err(self.error_at("alias", format!("expected at most {MAX_ALIAS_BYTES} bytes")));
        }
        Ok(HostnamePattern::parse(text).map_or_else(|_| text.to_owned(), |pattern| pattern.to_string()))
    }

    pub(super) fn list(&self, key: &str) -> Result<&'a [YamlNode], ParseError> {
        match self.get(key).map(|node| &node.kind) {
            None => Ok(&[]),
            Some(NodeKind::List(items)) => Ok(items),
            Some(other) => Err(self.error_at(key, format!("expected a list, found {}", other.type_name()))),
        }
    }

    pub(super) fn text_set(&self, key: &str) -> Result<BTreeSet<String>, ParseError> {
        let words = self.list(key)?.iter().map(|node| {
            text(node).map(str::to_owned).ok_or_else(|| {
                let message = format!("`{key}`: expected a word, found {}", node.kind.type_name());
                ParseError::new(self.document, node.position.line, message)
            })
        });
        words.collect()
    }
}

/// Text of a single value; symbols have lost their colon. Only the reader of a field knows whether it should be a number.
fn text(node: &YamlNode) -> Option<&str> {
    match &node.kind {
        NodeKind::Scalar { text, quoted: true } => Some(text),
        NodeKind::Scalar { text, quoted: false } => Some(symbol(text)),
        NodeKind::Null | NodeKind::Binary | NodeKind::List(_) | NodeKind::Map(_) => None,
    }
}

/// Removes the colon of a symbol: `:name` and `:"a name"` are symbols; `::1` is an address.
fn symbol(text: &str) -> &str {
    match text.strip_prefix(':') {
        Some(name) if !name.is_empty() && !name.starts_with(':') => name
            .strip_prefix('"')
            .and_then(|name| name.strip_suffix('"'))
            .unwrap_or(name),
        _ => text,
    }
}

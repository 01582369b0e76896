//! Fields of an event, each read as the type that it should have.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::decode::ParseError;
use super::yaml::{YamlKind, YamlNode};
use crate::hostname::HostnamePattern;

/// Longest alias, in bytes. DNS ends at 253; longer ones are kept to show what somebody tried.
const MAX_ALIAS_BYTES: usize = 1024;

/// Fields of a mapping, by key.
pub(super) struct Fields<'a> {
    pub(super) document: usize,
    line: usize,
    entries: &'a [(YamlNode, YamlNode)],
}

impl<'a> Fields<'a> {
    pub(super) fn open(document: usize, node: &'a YamlNode) -> Result<Self, ParseError> {
        let YamlKind::Map(entries) = &node.kind else {
            let expected = format!("expected a mapping (`key: value`), found {}", node.kind.type_name());
            return Err(ParseError::new(document, node.line, expected));
        };
        let mut seen = BTreeSet::new();
        for (key, _) in entries {
            if let YamlKind::Text(text) = &key.kind
                && !seen.insert(text)
            {
                return Err(ParseError::new(document, key.line, "expected each key once"));
            }
        }
        Ok(Self {
            document,
            line: node.line,
            entries,
        })
    }

    pub(super) fn get(&self, wanted: &str) -> Option<&'a YamlNode> {
        let named = |key: &YamlNode| matches!(&key.kind, YamlKind::Text(text) if text == wanted);
        let (_, value) = self.entries.iter().find(|(key, _)| named(key))?;
        (!matches!(value.kind, YamlKind::Null)).then_some(value)
    }

    /// Error at a key, or at the beginning of the event if the key is missing.
    pub(super) fn error_at(&self, key: &str, expected: impl Into<String>) -> ParseError {
        let line = self.get(key).map_or(self.line, |node| node.line);
        ParseError::new(self.document, line, format!("`{key}`: {}", expected.into()))
    }

    /// Text of a key, perhaps empty; `None`: the key is missing or null.
    fn optional(&self, key: &str) -> Result<Option<&'a str>, ParseError> {
        match self.get(key).map(|node| &node.kind) {
            None => Ok(None),
            Some(YamlKind::Text(text)) => Ok(Some(text)),
            Some(other) => Err(self.error_at(key, format!("expected a single value, found {}", other.type_name()))),
        }
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

    /// Alias, folded as a host name, so that case does not matter; a text that is none is kept as it is.
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
            Some(YamlKind::List(items)) => Ok(items),
            Some(other) => Err(self.error_at(key, format!("expected a list, found {}", other.type_name()))),
        }
    }

    pub(super) fn text_set(&self, key: &str) -> Result<BTreeSet<String>, ParseError> {
        let words = self.list(key)?.iter().map(|node| match &node.kind {
            YamlKind::Text(text) => Ok(text.clone()),
            other => {
                let expected = format!("`{key}`: expected a word, found {}", other.type_name());
                Err(ParseError::new(self.document, node.line, expected))
            }
        });
        words.collect()
    }
}

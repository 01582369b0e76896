//! Text to events, or the first thing in it that is none.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::application::{AppKey, Certificate, Endpoint, Mapping};
use super::event::{Change, Event};
use super::secret::Secret;
use super::yaml::{Kind, Node, documents};
use crate::name::HostPattern;

/// The longest text that is looked at, in bytes: thousands of events, or one with an uncommonly long chain.
pub const MAX_BYTES: usize = 4 << 20;

/// The longest alias. DNS ends at 253; the rest is for showing what somebody tried.
const LONGEST_ALIAS: usize = 1024;

const ACTIONS: &str = "create_application, delete_application, add_public_endpoint, remove_public_endpoint, add_alias, \
                       remove_alias, add_ssl or remove_ssl";

/// Why a text is not a series of events. It never quotes what could be a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("document {document}, line {line}: {expected}")]
pub struct ParseError {
    /// Which document of the text, from 1.
    pub document: usize,
    /// Which line of the text, from 1.
    pub line: usize,
    /// What was expected there.
    pub expected: String,
}

impl ParseError {
    pub(super) fn new(document: usize, line: usize, expected: impl Into<String>) -> Self {
        Self {
            document,
            line,
            expected: expected.into(),
        }
    }
}

/// Reads the events of a text, at least one, each a YAML document. Keys and values may be Ruby symbols; keys that are
/// not known are passed over.
///
/// # Errors
/// The first document that is no event, and why; then none of the text counts.
pub fn parse(text: &str) -> Result<Vec<Event>, ParseError> {
    if text.len() > MAX_BYTES {
        return Err(ParseError::new(1, 1, format!("expected at most {MAX_BYTES} bytes")));
    }
    let documents = documents(text)?;
    if documents.is_empty() {
        return Err(ParseError::new(1, 1, "expected an event, found nothing"));
    }
    let events = documents.iter().enumerate();
    events.map(|(at, node)| event(&Fields::open(at + 1, node)?)).collect()
}

fn event(fields: &Fields<'_>) -> Result<Event, ParseError> {
    let action = fields.text("action")?;
    let app = AppKey {
        app: fields.name("app_name")?,
        namespace: fields.name("namespace")?,
    };
    let change = match action {
        "create_application" => Change::Create {
            scalable: fields.truth("scalable")?,
            ha: fields.truth("ha")?,
        },
        "delete_application" => Change::Delete,
        "add_gear" | "delete_gear" | "remove_gear" if fields.get("deprecated").is_some() => Change::Duplicate,
        "add_public_endpoint" | "add_gear" => Change::AddEndpoint {
            at: fields.address()?,
            endpoint: endpoint(fields)?,
        },
        "remove_public_endpoint" | "delete_gear" | "remove_gear" => Change::RemoveEndpoint {
            at: fields.address()?,
            gear: fields.maybe_text("gear_id")?,
        },
        "add_alias" => Change::AddAlias(fields.alias()?),
        "remove_alias" => Change::RemoveAlias(fields.alias()?),
        "add_ssl" => Change::AddCertificate {
            alias: fields.alias()?,
            certificate: Box::new(Certificate {
                chain: fields.text("ssl")?.to_owned(),
                private_key: fields.maybe_text("private_key")?.as_deref().map(Secret::new),
                pass_phrase: fields.maybe_text("pass_phrase")?.as_deref().map(Secret::new),
            }),
        },
        "remove_ssl" => Change::RemoveCertificate(fields.alias()?),
        _ => return Err(fields.wrong("action", format!("expected {ACTIONS}"))),
    };
    Ok(Event { app, change })
}

fn endpoint(fields: &Fields<'_>) -> Result<Endpoint, ParseError> {
    let mappings = fields.list("mappings")?.iter().map(|node| {
        let mapping = Fields::open(fields.document, node)?;
        Ok(Mapping {
            frontend: mapping.maybe_text("frontend")?.unwrap_or_default(),
            backend: mapping.maybe_text("backend")?.unwrap_or_default(),
        })
    });
    Ok(Endpoint {
        gear: fields.maybe_text("gear_id")?,
        name: fields.maybe_text("public_port_name")?,
        protocols: fields.words("protocols")?,
        types: fields.words("types")?,
        mappings: mappings.collect::<Result<_, _>>()?,
    })
}

/// The keys of a mapping.
struct Fields<'a> {
    document: usize,
    line: usize,
    entries: &'a [(Node, Node)],
}

impl<'a> Fields<'a> {
    fn open(document: usize, node: &'a Node) -> Result<Self, ParseError> {
        let Kind::Map(entries) = &node.kind else {
            let expected = format!("expected a mapping (`key: value`), found {}", node.kind.name());
            return Err(ParseError::new(document, node.line, expected));
        };
        let mut seen = BTreeSet::new();
        for (key, _) in entries {
            if let Kind::Text(text) = &key.kind
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

    fn get(&self, wanted: &str) -> Option<&'a Node> {
        let named = |key: &Node| matches!(&key.kind, Kind::Text(text) if text == wanted);
        let (_, value) = self.entries.iter().find(|(key, _)| named(key))?;
        (!matches!(value.kind, Kind::Null)).then_some(value)
    }

    /// An error at a key, or where the event begins if the key is not there.
    fn wrong(&self, key: &str, expected: impl Into<String>) -> ParseError {
        let line = self.get(key).map_or(self.line, |node| node.line);
        ParseError::new(self.document, line, format!("`{key}`: {}", expected.into()))
    }

    /// Text, perhaps empty; `None`: nothing.
    fn maybe(&self, key: &str) -> Result<Option<&'a str>, ParseError> {
        match self.get(key).map(|node| &node.kind) {
            None => Ok(None),
            Some(Kind::Text(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, format!("expected a single value, found {}", other.name()))),
        }
    }

    fn text(&self, key: &str) -> Result<&'a str, ParseError> {
        let text = self.maybe(key)?.filter(|text| !text.is_empty());
        text.ok_or_else(|| self.wrong(key, "expected a value, found nothing"))
    }

    fn maybe_text(&self, key: &str) -> Result<Option<String>, ParseError> {
        let text = self.maybe(key)?.filter(|text| !text.is_empty());
        Ok(text.map(str::to_owned))
    }

    /// A name that can be part of a cluster's.
    fn name(&self, key: &str) -> Result<String, ParseError> {
        let text = self.text(key)?;
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if text.len() <= 63 && text.bytes().all(allowed) {
            return Ok(text.to_owned());
        }
        Err(self.wrong(key, "expected 1 to 63 letters, digits, `.`, `_` or `-`"))
    }

    fn truth(&self, key: &str) -> Result<Option<bool>, ParseError> {
        match self.maybe(key)? {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(self.wrong(key, "expected true or false")),
        }
    }

    fn address(&self) -> Result<SocketAddr, ParseError> {
        let machine = |ip: &IpAddr| !ip.is_unspecified() && !ip.is_multicast();
        let ip = self.text("public_address")?.parse().map(|ip: IpAddr| ip.to_canonical());
        let ip = ip.ok().filter(machine);
        let ip = ip.ok_or_else(|| self.wrong("public_address", "expected the IP address of a machine"))?;
        let port = self.text("public_port")?.parse().ok().filter(|port| *port != 0);
        let port = port.ok_or_else(|| self.wrong("public_port", "expected a port from 1 to 65535"))?;
        Ok(SocketAddr::new(ip, port))
    }

    /// As a host name is folded, so that upper and lower case are one; what is none stays as it is, to be shown.
    fn alias(&self) -> Result<String, ParseError> {
        let text = self.text("alias")?;
        if text.len() > LONGEST_ALIAS {
            return Err(self.wrong("alias", format!("expected at most {LONGEST_ALIAS} bytes")));
        }
        Ok(HostPattern::parse(text).map_or_else(|_| text.to_owned(), |pattern| pattern.to_string()))
    }

    fn list(&self, key: &str) -> Result<&'a [Node], ParseError> {
        match self.get(key).map(|node| &node.kind) {
            None => Ok(&[]),
            Some(Kind::List(items)) => Ok(items),
            Some(other) => Err(self.wrong(key, format!("expected a list, found {}", other.name()))),
        }
    }

    fn words(&self, key: &str) -> Result<BTreeSet<String>, ParseError> {
        let words = self.list(key)?.iter().map(|node| match &node.kind {
            Kind::Text(text) => Ok(text.clone()),
            other => {
                let expected = format!("`{key}`: expected a word, found {}", other.name());
                Err(ParseError::new(self.document, node.line, expected))
            }
        });
        words.collect()
    }
}

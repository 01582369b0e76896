//! Field lines for one hop only, which are not sent on (RFC 9110, section 7.6.1).

use super::super::connection::ConnectionOptions;
use super::super::fields::FieldSection;
use super::super::grammar::elements;
use super::super::head::names_trailers;
use super::ConnectionField;

/// A field section, and the facts that decide which of its lines are sent on.
pub(super) struct Section<'a> {
    pub(super) fields: &'a FieldSection,
    pub(super) buffer: &'a [u8],
    pub(super) options: ConnectionOptions,
    pub(super) kind: HeadKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadKind {
    Answer,
    /// Answer that says nothing about a body's length: 1xx, 204.
    EmptyAnswer,
    Request,
}

/// Whether a line is sent on.
pub(super) enum Passage {
    Passes,
    Stops,
    /// The line asks for trailers, and only that part of it is sent on.
    Trailers,
}

impl Section<'_> {
    /// Whether a line is sent on. Transfer-Encoding is, because chunks are sent on unchanged.
    pub(super) fn passage(&self, name: &[u8], value: &[u8], connection: ConnectionField) -> Passage {
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        let stops = if is("te") {
            if self.kind == HeadKind::Request && names_trailers(value) {
                return Passage::Trailers;
            }
            true
        } else if is("upgrade") {
            connection != ConnectionField::Upgrade
        } else if is("content-length") || is("transfer-encoding") {
            self.kind == HeadKind::EmptyAnswer
        } else {
            is("connection") || is("keep-alive") || is("proxy-connection") || self.is_named_in_connection(name)
        };
        if stops { Passage::Stops } else { Passage::Passes }
    }

    fn is_named_in_connection(&self, name: &[u8]) -> bool {
        self.options.names_fields && {
            let mut options = self.fields.values(self.buffer, "connection").flat_map(elements);
            options.any(|option| option.eq_ignore_ascii_case(name))
        }
    }
}

//! The head that is sent on: ranges of the received one and additions, ready for a vectored write.
//!
//! Fields for this hop only are removed (RFC 9110, section 7.6.1). The rest stays byte for byte: case of names, order,
//! values. Bytes outside a parsed head are never sent on.

mod field_edit;
mod field_name;
mod hop_by_hop;
mod rewritten;

pub use field_edit::FieldEdit;
pub use field_name::FieldName;
pub use rewritten::RewrittenHead;

use field_edit::{LineEdit, PendingEdits};
use hop_by_hop::{HeadKind, Passage, Section};

use super::head::{RequestHead, ResponseHead, Version};
use super::target::Target;

/// Option in the Connection field of a head that is sent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionField {
    /// `close`.
    Close,
    /// `keep-alive`, which HTTP/1.0 needs.
    KeepAlive,
    /// No option, and so no field: the connection is kept, as HTTP/1.1 does.
    #[default]
    Omitted,
    /// `upgrade`: the Upgrade field is kept and sent on.
    Upgrade,
}

impl ConnectionField {
    const fn as_str(self) -> Option<&'static str> {
        match self {
            Self::Close => Some("close"),
            Self::KeepAlive => Some("keep-alive"),
            Self::Omitted => None,
            Self::Upgrade => Some("Upgrade"),
        }
    }
}

/// How a request's head is sent on.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestRewrite<'a> {
    /// Changes of fields. They cannot keep lines that are for this hop only.
    pub fields: &'a [FieldEdit],
    /// Connection field for the host.
    pub connection: ConnectionField,
    /// Target in place of the received one; ignored if it is empty or holds characters that no target may have.
    pub target: Option<&'a [u8]>,
}

/// How an answer's head is sent on.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseRewrite<'a> {
    /// Changes of fields. They cannot keep lines that are for this hop only.
    pub fields: &'a [FieldEdit],
    /// Connection field for the client.
    pub connection: ConnectionField,
}

/// Builds the head of a request for the host. `buffer` must be the one that `head` was parsed from.
///
/// An absolute target becomes its origin-form, and gives a Host field to an HTTP/1.0 request that has none. The version
/// stays: an HTTP/1.0 client is not sent chunks.
#[must_use]
pub fn request(head: &RequestHead, buffer: &[u8], rewrite: &RequestRewrite<'_>) -> RewrittenHead {
    let mut out = RewrittenHead::default();
    out.keep(head.range.start(), head.target.start());
    let is_target = |text: &&[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_graphic);
    if let Some(target) = rewrite.target.filter(is_target) {
        out.add(target);
    } else {
        let (root, rest) = match &head.target_form {
            Target::Absolute { .. } => head.path_and_query(buffer),
            Target::Asterisk | Target::Authority(_) | Target::Origin => (&b""[..], head.target.of(buffer)),
        };
        out.add(root);
        out.keep(head.target.end() - rest.len(), head.target.end());
    }
    let line_end = head.target.end() + " HTTP/1.1\r\n".len();
    out.keep(head.target.end(), line_end);
    let section = Section {
        fields: &head.fields,
        buffer,
        options: head.connection,
        kind: HeadKind::Request,
    };
    section.write(&mut out, rewrite.fields, rewrite.connection);
    let has_host = head.fields.has(buffer, "host") || rewrite.fields.iter().any(|edit| edit.name().is(b"host"));
    if let (Target::Absolute { authority_text, .. }, false) = (&head.target_form, has_host) {
        out.add_line(b"Host", authority_text.of(buffer));
    }
    out.end();
    out
}

/// Builds the head of an answer for the client. `buffer` must be the one that `head` was parsed from.
///
/// The version becomes HTTP/1.1, the balancer's own (RFC 9110, section 2.5). Content-Length and Transfer-Encoding go
/// where no sender may send them: 1xx, 204 (RFC 9112, section 6.1; RFC 9110, section 8.6).
#[must_use]
pub fn response(head: &ResponseHead, buffer: &[u8], rewrite: &ResponseRewrite<'_>) -> RewrittenHead {
    let mut out = RewrittenHead::default();
    let (start, line_end) = (head.status_line.start(), head.status_line.end() + "\r\n".len());
    if head.version == Version::Http11 {
        out.keep(start, line_end);
    } else {
        out.add(Version::Http11.as_str().as_bytes());
        out.keep(start + Version::Http10.as_str().len(), line_end);
    }
    let section = Section {
        fields: &head.fields,
        buffer,
        options: head.connection,
        kind: match head.status {
            100..=199 | 204 => HeadKind::EmptyAnswer,
            _ => HeadKind::Answer,
        },
    };
    section.write(&mut out, rewrite.fields, rewrite.connection);
    out.end();
    out
}

impl Section<'_> {
    fn write(&self, out: &mut RewrittenHead, edits: &[FieldEdit], connection: ConnectionField) {
        let mut edits = PendingEdits::new(edits, self.kind == HeadKind::Request);
        let mut wants_trailers = false;
        for field in self.fields.iter() {
            let (name, value) = (field.name.of(self.buffer), field.value.of(self.buffer));
            match self.passage(name, value, connection) {
                Passage::Stops => {}
                Passage::Trailers => {
                    if !std::mem::replace(&mut wants_trailers, true) {
                        out.add_line(name, b"trailers");
                    }
                }
                Passage::Passes => match edits.of_line(name) {
                    LineEdit::None => out.keep(field.line.start(), field.line.end()),
                    LineEdit::Removed => {}
                    LineEdit::Value(value) => out.add_line(name, value),
                },
            }
        }
        for (name, value) in edits.additions() {
            out.add_line(name.as_bytes(), value);
        }
        let options = connection.as_str().into_iter().chain(wants_trailers.then_some("TE"));
        let options = options.collect::<Vec<_>>().join(", ");
        if !options.is_empty() {
            out.add_line(b"Connection", options.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests;

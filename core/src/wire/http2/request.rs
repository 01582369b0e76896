//! The head of a stream's request in HTTP/1.1 (RFC 9113, section 8.3).

use super::fault::StreamFault;
use super::fields::{check_field, decimal, is_connection_field, push_line};
use crate::wire::http1::authority::Authority;
use crate::wire::http1::framing::{BodyLength, FramingError};
use crate::wire::http1::grammar::is_token;
use crate::wire::http1::head_error::HeadError;

/// Pseudo-header fields of a request, and facts about its stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamHead<'a> {
    /// `:method`.
    pub method: &'a [u8],
    /// `:scheme`, where it is known.
    pub scheme: Option<&'a [u8]>,
    /// `:authority`.
    pub authority: Option<&'a [u8]>,
    /// `:path`; empty for CONNECT.
    pub path: &'a [u8],
    /// Whether the connection is in TLS.
    pub is_tls: bool,
    /// Whether the stream ends with its head: there is no body.
    pub is_ended: bool,
    /// Key of the handshake, where the stream asks for a WebSocket (RFC 8441): it becomes an Upgrade, without a body.
    pub websocket_key: Option<&'a [u8]>,
}

/// Fields of a request that are not sent on unchanged.
#[derive(Default)]
struct OwnFields<'a> {
    host: Option<&'a [u8]>,
    length: Option<&'a [u8]>,
    cookie: Vec<u8>,
    takes_trailers: bool,
}

/// Writes the head in HTTP/1.1. Returns it with the length that it gives the body: of one whose length the client does
/// not say, it announces chunks.
///
/// # Errors
///
/// The stream must be refused.
pub fn to_http1<'a>(
    head: &StreamHead<'a>,
    fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<(Vec<u8>, BodyLength), StreamFault> {
    let scheme: &[u8] = if head.is_tls { b"https" } else { b"http" };
    if head.scheme.is_some_and(|said| !said.eq_ignore_ascii_case(scheme)) {
        return Err(StreamFault::Scheme);
    }
    let mut lines = Vec::new();
    let own = pass_fields(&mut lines, fields, head.websocket_key.is_some())?;
    let host = host(head, own.host)?;
    let mut out = request_line(head, host)?;
    push_line(&mut out, b"host", host);
    out.extend_from_slice(&lines);
    if !own.cookie.is_empty() {
        push_line(&mut out, b"cookie", &own.cookie);
    }
    if own.takes_trailers {
        push_line(&mut out, b"te", b"trailers");
    }
    if let Some(key) = head.websocket_key {
        push_line(&mut out, b"connection", b"Upgrade");
        push_line(&mut out, b"upgrade", b"websocket");
        push_line(&mut out, b"sec-websocket-key", key);
    }
    let is_ended = head.is_ended || head.websocket_key.is_some();
    let length = match own.length {
        Some(digits) => BodyLength::Known(decimal(digits)?),
        None if is_ended => BodyLength::None,
        None => BodyLength::Chunked,
    };
    match (length, own.length) {
        (BodyLength::Known(1..), _) if is_ended => return Err(StreamFault::LengthMismatch),
        (BodyLength::Chunked, _) => push_line(&mut out, b"transfer-encoding", b"chunked"),
        (_, Some(digits)) => push_line(&mut out, b"content-length", digits),
        _ => {}
    }
    out.extend_from_slice(b"\r\n");
    Ok((out, length))
}

/// Writes the fields that pass, and returns the others.
fn pass_fields<'a>(
    lines: &mut Vec<u8>,
    fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    has_key: bool,
) -> Result<OwnFields<'a>, StreamFault> {
    let mut own = OwnFields::default();
    for (name, value) in fields {
        let value = check_field(name, value)?;
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is_connection_field(name) {
            return Err(StreamFault::ConnectionField);
        }
        if is("host") {
            if own.host.replace(value).is_some() {
                return Err(HeadError::HostRepeated.into());
            }
        } else if is("content-length") {
            if own.length.replace(value).is_some() {
                return Err(FramingError::ContentLengthRepeated.into());
            }
        } else if is("cookie") {
            //= https://www.rfc-editor.org/rfc/rfc9113#section-8.2.3
            //# these MUST be concatenated into a single octet string using the two-octet delimiter of 0x3b, 0x20
            if !own.cookie.is_empty() {
                own.cookie.extend_from_slice(b"; ");
            }
            own.cookie.extend_from_slice(value);
        } else if is("te") {
            if !value.eq_ignore_ascii_case(b"trailers") {
                return Err(StreamFault::ConnectionField);
            }
            own.takes_trailers = true;
        } else if !(has_key && is("sec-websocket-key")) {
            push_line(lines, name, value);
        }
    }
    Ok(own)
}

/// Host that the request is for: `:authority`, which a Host field may repeat, with the default port or without.
fn host<'a>(head: &StreamHead<'a>, host: Option<&'a [u8]>) -> Result<&'a [u8], StreamFault> {
    let default_port = if head.is_tls { 443 } else { 80 };
    let agree = |one: &[u8], other: &[u8]| {
        let parsed = Authority::parse(one).zip(Authority::parse(other));
        one.eq_ignore_ascii_case(other) || parsed.is_some_and(|(one, other)| one.agrees_with(&other, default_port))
    };
    let chosen = match (head.authority, host) {
        (Some(authority), Some(host)) if !agree(authority, host) => {
            return Err(HeadError::AuthorityMismatch.into());
        }
        (Some(authority), _) => authority,
        (None, Some(host)) => host,
        (None, None) => return Err(HeadError::HostMissing.into()),
    };
    let is_plain = !chosen.is_empty() && chosen.iter().all(u8::is_ascii_graphic);
    is_plain.then_some(chosen).ok_or_else(|| HeadError::HostInvalid.into())
}

fn request_line(head: &StreamHead<'_>, host: &[u8]) -> Result<Vec<u8>, StreamFault> {
    if !is_token(head.method) {
        return Err(HeadError::RequestLine.into());
    }
    let method = if head.websocket_key.is_some() {
        b"GET"
    } else {
        head.method
    };
    let target = match method {
        b"CONNECT" => host,
        _ => head.path,
    };
    let is_path = target.starts_with(b"/") || (target == b"*" && method == b"OPTIONS");
    if !(is_path || method == b"CONNECT") || !target.iter().all(u8::is_ascii_graphic) {
        return Err(HeadError::TargetForm.into());
    }
    Ok([method, b" ", target, b" HTTP/1.1\r\n"].concat())
}

#[cfg(test)]
mod tests;

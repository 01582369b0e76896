//! The head of a host's answer on a stream in HTTP/1.1 (RFC 9113, section 8.3.2).

use super::fault::StreamFault;
use super::fields::{check_field, decimal, is_connection_field, push_line};
use crate::wire::http1::framing::{BodyLength, FramingError};
use crate::wire::http1::head::Version;
use crate::wire::http1::head_error::HeadError;
use crate::wire::http1::method::Method;

/// An answer beside its fields.
#[derive(Clone, Copy, Debug)]
pub struct StreamAnswer<'a> {
    /// `:status`.
    pub status: u16,
    /// Reason phrase of the status line, which HTTP/2 does not have.
    pub reason: &'a str,
    /// Whether the stream ends with the head: there is no body.
    pub is_ended: bool,
    /// Method of the request.
    pub asked: Method,
    /// Version of the client: one of HTTP/1.0 cannot read chunks.
    pub version: Version,
}

/// Writes the head in HTTP/1.1. Returns it with the length of the body: of one whose length the host does not say, the
/// head announces chunks, or to a client of HTTP/1.0 nothing.
///
/// # Errors
///
/// The answer cannot be passed on.
pub fn to_http1<'a>(
    answer: &StreamAnswer<'_>,
    fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<(Vec<u8>, BodyLength), StreamFault> {
    //= https://www.rfc-editor.org/rfc/rfc9113#section-8.6
    //# HTTP/2 does not support the 101 (Switching Protocols) informational status code
    if answer.status == 101 {
        return Err(HeadError::StatusLine.into());
    }
    let mut out = format!("HTTP/1.1 {} {}\r\n", answer.status, answer.reason).into_bytes();
    let mut written = None;
    for (name, value) in fields {
        let value = check_field(name, value)?;
        if is_connection_field(name) || name.eq_ignore_ascii_case(b"te") {
            return Err(StreamFault::ConnectionField);
        }
        if name.eq_ignore_ascii_case(b"content-length") && written.replace(decimal(value)?).is_some() {
            return Err(FramingError::ContentLengthRepeated.into());
        }
        push_line(&mut out, name, value);
    }
    let length = length(answer, written)?;
    match length {
        BodyLength::Chunked => push_line(&mut out, b"transfer-encoding", b"chunked"),
        BodyLength::Known(0) if written.is_none() => push_line(&mut out, b"content-length", b"0"),
        _ => {}
    }
    out.extend_from_slice(b"\r\n");
    Ok((out, length))
}

fn length(answer: &StreamAnswer<'_>, written: Option<u64>) -> Result<BodyLength, StreamFault> {
    let has_none = matches!(answer.status, 100..=199 | 204 | 304) || answer.asked == Method::Head;
    match written {
        _ if has_none => Ok(BodyLength::None),
        Some(1..) if answer.is_ended => Err(StreamFault::LengthMismatch),
        Some(bytes) => Ok(BodyLength::Known(bytes)),
        None if answer.is_ended => Ok(BodyLength::Known(0)),
        None if answer.version == Version::Http10 => Ok(BodyLength::UntilClose),
        None => Ok(BodyLength::Chunked),
    }
}

#[cfg(test)]
mod tests;

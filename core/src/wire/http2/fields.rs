//! Fields of streams, as lines of HTTP/1.1.

use super::fault::StreamFault;
use crate::wire::http1::framing::FramingError;
use crate::wire::http1::grammar::{is_field_value, is_token, trim_ows};
use crate::wire::http1::head_error::HeadError;

/// Fields that say something about a connection of HTTP/1, and that no stream may have.
const CONNECTION_FIELDS: [&str; 5] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
];

/// Whether a field says something about a connection of HTTP/1: no stream may have it (RFC 9113, section 8.2.2).
#[must_use]
pub fn is_connection_field(name: &[u8]) -> bool {
    CONNECTION_FIELDS
        .into_iter()
        .any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// Checks that a field is possible in HTTP/1.
pub(super) fn check_field<'v>(name: &[u8], value: &'v [u8]) -> Result<&'v [u8], StreamFault> {
    if !is_token(name) {
        return Err(HeadError::FieldName.into());
    }
    // White space around a value makes a request malformed (RFC 9113, section 8.2.1); clients send it, and peers drop it.
    let value = trim_ows(value);
    if !is_field_value(value) {
        return Err(HeadError::FieldValue.into());
    }
    Ok(value)
}

pub(super) fn push_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// Number of a Content-Length.
pub(super) fn decimal(digits: &[u8]) -> Result<u64, StreamFault> {
    let is_decimal = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(digits).ok().filter(|_| is_decimal);
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| FramingError::ContentLengthInvalid.into())
}

//! Fields of heads and trailers of HTTP/1, as a stream may have them.

use std::io;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use signalbox_core::http1::fields::FieldSection;
use signalbox_core::http1::limits::{MAX_FIELDS, MessageLimits};
use signalbox_core::http2::fields::is_connection_field;

/// Fields that a stream may have, but for those that `drops` names.
pub(super) fn stream_fields(section: &FieldSection, buffer: &[u8], drops: &[&str]) -> io::Result<HeaderMap> {
    let mut fields = HeaderMap::with_capacity(section.len());
    for field in section.iter() {
        let name = HeaderName::from_bytes(field.name.of(buffer)).map_err(io::Error::other)?;
        if !is_connection_field(name.as_str().as_bytes()) && !drops.contains(&name.as_str()) {
            let value = HeaderValue::from_bytes(field.value.of(buffer)).map_err(io::Error::other)?;
            fields.append(name, value);
        }
    }
    Ok(fields)
}

/// Limits of a head that has met those of its sender already, and has grown since.
pub(super) fn grown_limits() -> MessageLimits {
    let limits = MessageLimits::default();
    MessageLimits {
        head_bytes: 2 * limits.head_bytes,
        fields: MAX_FIELDS,
        ..limits
    }
}

//! Fields of HTTP/1 heads and trailers, in the form that a stream allows.

use std::io;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use signalbox_core::wire::http1::chunked::{ChunkedBody, NO_TRAILERS};
use signalbox_core::wire::http1::fields::FieldSection;
use signalbox_core::wire::http1::limits::{MAX_FIELDS, MessageLimits};
use signalbox_core::wire::http2::fields::is_connection_field;

/// Fields that a stream may have, except those listed in `drops`.
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

/// Writes fields as lines of HTTP/1.
pub(super) fn write_fields(fields: &HeaderMap, out: &mut Vec<u8>) {
    for (name, value) in fields {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
}

/// Trailers from a host for another stream. They are checked like trailers after chunks.
pub(super) fn checked_trailers(trailers: &HeaderMap) -> io::Result<HeaderMap> {
    let malformed = |fault| io::Error::new(io::ErrorKind::InvalidData, fault);
    let mut text = b"0\r\n".to_vec();
    write_fields(trailers, &mut text);
    text.extend_from_slice(NO_TRAILERS);
    let mut body = ChunkedBody::new(&MessageLimits::default());
    body.scan(&text).map_err(malformed)?;
    stream_fields(body.trailer_fields(), body.trailers(), &["te"])
}

/// Limits for a head that has already met its sender's limits and has grown since.
pub(super) const fn grown_limits() -> MessageLimits {
    MessageLimits::of_heads(usize::MAX, MAX_FIELDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_are_checked_as_those_behind_chunks() {
        let fields = |all: &[(&'static str, &'static str)]| -> HeaderMap {
            let all = all.iter();
            all.map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
                .collect()
        };
        let good = fields(&[("x-sum", "1"), ("grpc-status", "0")]);
        assert_eq!(checked_trailers(&good).unwrap(), good);
        assert_eq!(checked_trailers(&HeaderMap::new()).unwrap(), HeaderMap::new());
        let connection = checked_trailers(&fields(&[("x-sum", "1"), ("keep-alive", "5")]));
        assert_eq!(connection.unwrap(), fields(&[("x-sum", "1")]));
        for bad in [("content-length", "5"), ("host", "a.test")] {
            let error = checked_trailers(&fields(&[bad])).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bad:?}");
        }
    }
}

//! The answer of an exchange, from HTTP/1.1 to a stream.

use std::future::poll_fn;
use std::io;

use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};
use signalbox_core::http1::fields::FieldSection;
use signalbox_core::http1::framing::{self, AnswerKind, BodyLength};
use signalbox_core::http1::head::ResponseHead;
use signalbox_core::http1::limits::MessageLimits;
use signalbox_core::http1::method::Method;
use signalbox_core::http1::parse;
use signalbox_core::http2::request::CONNECTION_FIELDS;

use super::answer_body::AnswerBody;
use super::pipe::{PipeReader, Piped};
use super::streams::StreamCount;

/// Reads the head of the final answer. Interim ones are dropped: hyper cannot send them.
pub(super) async fn read(mut pipe: PipeReader, method: Method, count: StreamCount) -> io::Result<Response<AnswerBody>> {
    let limits = limits();
    let mut bytes = Vec::new();
    loop {
        let parsed = if bytes.is_empty() {
            None
        } else {
            parse::response(&bytes, &limits).map_err(io::Error::other)?
        };
        let Some(head) = parsed else {
            match poll_fn(|cx| pipe.poll_take(cx)).await {
                Piped::Bytes(more) if bytes.is_empty() => bytes = more,
                Piped::Bytes(more) => bytes.extend_from_slice(&more),
                Piped::Ended | Piped::CutOff => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
            continue;
        };
        match framing::answer(&head, &bytes, method).map_err(io::Error::other)? {
            AnswerKind::Interim => drop(bytes.drain(..head.range.end())),
            AnswerKind::Final(length) => return response(&head, bytes, length, pipe, count),
            AnswerKind::SwitchingProtocols | AnswerKind::Tunnel => {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }
}

/// Limits of an answer's head, which has met those of its host's already and has grown since.
fn limits() -> MessageLimits {
    let limits = MessageLimits::default();
    MessageLimits {
        head_bytes: 2 * limits.head_bytes,
        ..limits
    }
}

fn response(
    head: &ResponseHead,
    mut bytes: Vec<u8>,
    length: BodyLength,
    pipe: PipeReader,
    count: StreamCount,
) -> io::Result<Response<AnswerBody>> {
    let fields = fields(&head.fields, &bytes)?;
    bytes.drain(..head.range.end());
    let mut response = Response::new(AnswerBody::new(length, bytes, pipe, count));
    *response.status_mut() = StatusCode::from_u16(head.status).map_err(io::Error::other)?;
    *response.headers_mut() = fields;
    Ok(response)
}

/// Fields that a stream may have.
pub(super) fn fields(section: &FieldSection, buffer: &[u8]) -> io::Result<HeaderMap> {
    let mut fields = HeaderMap::with_capacity(section.len());
    for field in section.iter() {
        let name = HeaderName::from_bytes(field.name.of(buffer)).map_err(io::Error::other)?;
        if !CONNECTION_FIELDS.contains(&name.as_str()) && name != "te" {
            let value = HeaderValue::from_bytes(field.value.of(buffer)).map_err(io::Error::other)?;
            fields.append(name, value);
        }
    }
    Ok(fields)
}

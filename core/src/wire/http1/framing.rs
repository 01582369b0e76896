//! Length of a message's body (RFC 9112, section 6.3), strictly: a doubtful length is refused.

mod error;

pub use error::FramingError;

use super::fields::FieldSection;
use super::head::{RequestHead, ResponseHead, Version};
use super::method::Method;

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// There is no body.
    None,
    /// After this many bytes.
    Known(u64),
    /// With the last chunk and the trailer section.
    Chunked,
    /// When the host closes the connection; only of answers.
    UntilClose,
}

/// Kind of an answer by its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// An interim answer (1xx but 101): another head follows.
    Interim,
    /// The final answer, with its body.
    Final(BodyLength),
    /// 101 (Switching Protocols): another protocol follows.
    SwitchingProtocols,
    /// 2xx to CONNECT: a tunnel follows.
    Tunnel,
}

/// Length of a request's body: never [`BodyLength::UntilClose`].
///
/// # Errors
///
/// Refuse the request, and close its connection, because its end is not certain.
pub fn request_body(head: &RequestHead, buffer: &[u8]) -> Result<BodyLength, FramingError> {
    let length = written_length(&head.fields, buffer, head.version)?.unwrap_or(BodyLength::None);
    let has_content = !matches!(length, BodyLength::None | BodyLength::Known(0));
    if has_content && matches!(head.method, Method::Connect | Method::Trace) {
        return Err(FramingError::ContentNotAllowed);
    }
    Ok(length)
}

/// Kind of an answer to a request of a method. Fields about the length are checked even where they have no meaning.
///
/// # Errors
///
/// The answer cannot be passed on: close the host's connection.
pub fn answer(head: &ResponseHead, buffer: &[u8], asked: Method) -> Result<AnswerKind, FramingError> {
    let length = written_length(&head.fields, buffer, head.version)?;
    Ok(match head.status {
        101 => AnswerKind::SwitchingProtocols,
        100..=199 => AnswerKind::Interim,
        200..=299 if asked == Method::Connect => AnswerKind::Tunnel,
        204 | 304 => AnswerKind::Final(BodyLength::None),
        _ if asked == Method::Head => AnswerKind::Final(BodyLength::None),
        _ => AnswerKind::Final(length.unwrap_or(BodyLength::UntilClose)),
    })
}

/// Length that Content-Length and Transfer-Encoding give, where there is one of them.
fn written_length(fields: &FieldSection, buffer: &[u8], version: Version) -> Result<Option<BodyLength>, FramingError> {
    let mut encodings = fields.values(buffer, "transfer-encoding");
    let mut lengths = fields.values(buffer, "content-length");
    match (encodings.next(), lengths.next()) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(FramingError::LengthAndTransferEncoding),
        (Some(_), None) if version == Version::Http10 => Err(FramingError::TransferEncodingInHttp10),
        (Some(coding), None) => {
            let is_chunked = coding.eq_ignore_ascii_case(b"chunked") && encodings.next().is_none();
            let length = is_chunked.then_some(Some(BodyLength::Chunked));
            length.ok_or(FramingError::TransferEncodingUnsupported)
        }
        (None, Some(_)) if lengths.next().is_some() => Err(FramingError::ContentLengthRepeated),
        (None, Some(digits)) => {
            let length = decimal(digits).map(BodyLength::Known).map(Some);
            length.ok_or(FramingError::ContentLengthInvalid)
        }
    }
}

/// Number of `1*DIGIT`.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| digit - b'0')?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests;

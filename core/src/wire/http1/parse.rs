//! Parses heads over httparse, and checks that no byte is left that another recipient could read differently.
//!
//! Outcomes are final: once a head is whole or refused, more bytes change nothing.

use std::mem::MaybeUninit;

use super::authority::Authority;
use super::byte_range::ByteRange;
use super::connection::ConnectionOptions;
use super::fields::{FieldSection, behind};
use super::head::{RequestHead, ResponseHead, Version};
use super::head_error::HeadError;
use super::limits::{MAX_FIELDS, MessageLimits};
use super::method::Method;
use super::target::Target;
use crate::wire::peek::h2::{PREFACE, has_preface};

/// Outcome for the bytes of a request received so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParsedRequest {
    /// The head is whole.
    Head(Box<RequestHead>),
    /// The client begins with the connection preface of HTTP/2 (RFC 9113, section 3.4).
    Http2,
    /// More bytes are needed.
    Incomplete,
}

/// Parses the head of a request at the start of a buffer. Empty lines before it are skipped (RFC 9112, section 2.2).
///
/// # Errors
///
/// A fault that further bytes cannot repair.
pub fn request(buffer: &[u8], limits: &MessageLimits) -> Result<ParsedRequest, HeadError> {
    if has_preface(buffer) {
        return Ok(if buffer.len() < PREFACE.len() {
            ParsedRequest::Incomplete
        } else {
            ParsedRequest::Http2
        });
    }
    let window = &buffer[..buffer.len().min(limits.head_bytes)];
    if target_length(window) > limits.target_bytes {
        return Err(HeadError::TargetTooLong);
    }
    let mut room = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut parsed = httparse::Request::new(&mut []);
    match parsed.parse_with_uninit_headers(window, &mut room[..limits.fields.min(MAX_FIELDS)]) {
        Ok(httparse::Status::Complete(end)) => check_request(&window[..end], &parsed)
            .map(Box::new)
            .map(ParsedRequest::Head),
        Ok(httparse::Status::Partial) if buffer.len() >= limits.head_bytes => Err(HeadError::HeadTooLarge),
        Ok(httparse::Status::Partial) => Ok(ParsedRequest::Incomplete),
        Err(httparse::Error::Version) if names_http(window) => Err(HeadError::VersionUnsupported),
        Err(error) => Err(fault(error, HeadError::RequestLine)),
    }
}

/// Parses the head of an answer at the start of a buffer; `None`: more bytes are needed.
///
/// # Errors
///
/// A fault that further bytes cannot repair.
pub fn response(buffer: &[u8], limits: &MessageLimits) -> Result<Option<ResponseHead>, HeadError> {
    // httparse skips empty lines; before an answer they are unrequested bytes.
    if matches!(buffer.first(), Some(b'\r' | b'\n')) {
        return Err(HeadError::StatusLine);
    }
    let window = &buffer[..buffer.len().min(limits.head_bytes)];
    let mut room = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut parsed = httparse::Response::new(&mut []);
    let room = &mut room[..limits.fields.min(MAX_FIELDS)];
    match httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut parsed, window, room) {
        Ok(httparse::Status::Complete(end)) => check_response(&window[..end], &parsed).map(Some),
        Ok(httparse::Status::Partial) if buffer.len() >= limits.head_bytes => Err(HeadError::HeadTooLarge),
        Ok(httparse::Status::Partial) => Ok(None),
        Err(error) => Err(fault(error, HeadError::StatusLine)),
    }
}

fn fault(error: httparse::Error, first_line: HeadError) -> HeadError {
    match error {
        httparse::Error::HeaderName => HeadError::FieldName,
        httparse::Error::HeaderValue => HeadError::FieldValue,
        httparse::Error::NewLine => HeadError::LineEnd,
        httparse::Error::TooManyHeaders => HeadError::TooManyFields,
        httparse::Error::Status | httparse::Error::Token | httparse::Error::Version => first_line,
    }
}

fn version(minor: Option<u8>) -> Version {
    match minor {
        Some(0) => Version::Http10,
        _ => Version::Http11,
    }
}

fn check_request(head: &[u8], parsed: &httparse::Request<'_, '_>) -> Result<RequestHead, HeadError> {
    let start = request_start(head);
    let method_name = parsed.method.unwrap_or_default().as_bytes();
    let target_text = parsed.path.unwrap_or_default().as_bytes();
    let version = version(parsed.version);
    let located = || {
        let method_end = behind(head, start, method_name)?;
        let target_start = behind(head, method_end, b" ")?;
        let target_end = behind(head, target_start, target_text)?;
        let at = behind(head, target_end, b" ")?;
        let at = behind(head, behind(head, at, version.as_str().as_bytes())?, b"\r\n")?;
        let (fields, end) = FieldSection::locate(head, at, parsed.headers)?;
        let ranges = (
            ByteRange::new(start, method_end),
            ByteRange::new(target_start, target_end),
        );
        (end == head.len()).then_some((ranges, fields))
    };
    let ((method_range, target), fields) = located().ok_or(HeadError::LineEnd)?;
    let method = Method::parse(method_name);
    let target_form = Target::parse(head, target, method).ok_or(HeadError::TargetForm)?;
    Ok(RequestHead {
        method,
        method_name: method_range,
        target,
        authority: authority(head, &fields, &target_form, version)?,
        target_form,
        version,
        connection: ConnectionOptions::read(&fields, head).ok_or(HeadError::ConnectionOption)?,
        fields,
        range: ByteRange::new(start, head.len()),
    })
}

/// Authority of a request: that of the target, which the Host field has to repeat, or that of the Host field.
fn authority(
    head: &[u8],
    fields: &FieldSection,
    target: &Target,
    version: Version,
) -> Result<Option<Authority>, HeadError> {
    let mut hosts = fields.values(head, "host");
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(HeadError::HostRepeated);
    }
    let host = match host {
        Some(text) => Some(Authority::parse(text).ok_or(HeadError::HostInvalid)?),
        None if version == Version::Http11 => return Err(HeadError::HostMissing),
        None => None,
    };
    let Some(of_target) = target.authority() else {
        return Ok(host);
    };
    //= https://www.rfc-editor.org/rfc/rfc9112#section-3.2
    //# If the target URI includes an authority component, then a client MUST send a field value for Host that is
    //# identical to that authority component
    match host {
        Some(host) if !host.agrees_with(of_target, target.default_port()) => Err(HeadError::AuthorityMismatch),
        _ => Ok(Some(of_target.clone())),
    }
}

fn check_response(head: &[u8], parsed: &httparse::Response<'_, '_>) -> Result<ResponseHead, HeadError> {
    let version = version(parsed.version);
    // httparse hides a reason phrase with characters beyond ASCII; its bytes were checked.
    let line_end = head
        .iter()
        .position(|&b| matches!(b, b'\r' | b'\n'))
        .unwrap_or(head.len());
    let located = || {
        let at = behind(head, line_end, b"\r\n")?;
        let (fields, end) = FieldSection::locate(head, at, parsed.headers)?;
        (end == head.len()).then_some(fields)
    };
    let fields = located().ok_or(HeadError::LineEnd)?;
    let status = parsed.code.filter(|code| (100..=999).contains(code));
    Ok(ResponseHead {
        version,
        status: status.ok_or(HeadError::StatusLine)?,
        status_line: ByteRange::new(0, line_end),
        connection: ConnectionOptions::read(&fields, head).ok_or(HeadError::ConnectionOption)?,
        fields,
        range: ByteRange::new(0, head.len()),
    })
}

/// Offset of the request line: after empty lines.
fn request_start(buffer: &[u8]) -> usize {
    let mut at = 0;
    while let Some(next) = behind(buffer, at, b"\r\n") {
        at = next;
    }
    at
}

/// Offsets of the target, as far as it has arrived. Its bytes are counted up to the first that no target may have, so
/// that a fault which was final for fewer bytes stays the one that is reported.
fn target_bounds(buffer: &[u8]) -> Option<(usize, usize)> {
    let start = request_start(buffer);
    let method = buffer[start..]
        .iter()
        .take_while(|&&b| super::grammar::is_tchar(b))
        .count();
    let target = behind(buffer, start + method, b" ")?;
    let length = buffer[target..].iter().take_while(|&&b| b > b' ' && b != 0x7f).count();
    (method > 0).then_some((target, target + length))
}

fn target_length(buffer: &[u8]) -> usize {
    target_bounds(buffer).map_or(0, |(start, end)| end - start)
}

/// Whether something like `HTTP/2` is where the version belongs.
fn names_http(buffer: &[u8]) -> bool {
    target_bounds(buffer)
        .and_then(|(_, end)| behind(buffer, end, b" HTTP/"))
        .is_some_and(|at| buffer.get(at).is_some_and(u8::is_ascii_digit))
}

/// Finds out when bytes of a head in arrival are worth another parse, which begins at the start each time: at each line
/// end and each KiB. A client that sends byte by byte costs no more than one that sends line by line.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadArrival {
    seen: usize,
}

impl HeadArrival {
    /// Whether a buffer that has grown must be parsed now. To be called once for each growth.
    pub fn is_due(&mut self, buffer: &[u8], limits: &MessageLimits) -> bool {
        const STEP: usize = 1024;
        let before = self.seen.min(buffer.len());
        self.seen = buffer.len();
        before == 0
            || buffer[before..].contains(&b'\n')
            || before / STEP != buffer.len() / STEP
            || buffer.len() >= limits.head_bytes
    }
}

#[cfg(test)]
mod tests;

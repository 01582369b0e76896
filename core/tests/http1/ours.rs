//! The verdict of `signalbox_core::wire::http1` on a request or an answer.

use signalbox_core::wire::http1::chunked::ChunkedBody;
use signalbox_core::wire::http1::fields::FieldSection;
use signalbox_core::wire::http1::framing::{self, AnswerKind, BodyLength};
use signalbox_core::wire::http1::limits::MessageLimits;
use signalbox_core::wire::http1::method::Method;
use signalbox_core::wire::http1::parse::{self, ParsedRequest};

use crate::hyper_client::SeenAnswer;
use crate::hyper_server::SeenRequest;
use crate::wire::sorted;

/// How a stream goes on behind its whole messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// The last message asked for the end of the connection.
    Closed,
    /// Nothing, or a message that is not whole.
    Incomplete,
    Refused,
}

/// Whole requests of a stream.
pub(crate) fn requests(mut stream: &[u8]) -> (Vec<SeenRequest>, Rest) {
    let limits = MessageLimits::default();
    let mut found = Vec::new();
    loop {
        let head = match parse::request(stream, &limits) {
            Ok(ParsedRequest::Head(head)) => head,
            Ok(ParsedRequest::Incomplete) => return (found, Rest::Incomplete),
            Ok(ParsedRequest::Http2) | Err(_) => return (found, Rest::Refused),
        };
        let Ok(length) = framing::request_body(&head, stream) else {
            return (found, Rest::Refused);
        };
        let body = match read_body(&stream[head.range.end()..], length, &limits) {
            Ok(Some(body)) => body,
            Ok(None) => return (found, Rest::Incomplete),
            Err(()) => return (found, Rest::Refused),
        };
        let (root, rest) = head.path_and_query(stream);
        found.push(SeenRequest {
            method: text(head.method_name.of(stream)),
            path_and_query: text(&[root, rest].concat()),
            is_http11: head.version == signalbox_core::wire::http1::head::Version::Http11,
            fields: of_section(&head.fields, stream),
            body: body.data,
            trailers: body.trailers,
        });
        stream = &stream[head.range.end() + body.length..];
        if !head.is_persistent() {
            return (found, Rest::Closed);
        }
    }
}

/// Final answer of a stream that ends where the host closes; `None` if it is refused or cut off.
pub(crate) fn answer(mut stream: &[u8], asked: Method) -> Option<SeenAnswer> {
    let limits = MessageLimits::default();
    loop {
        let head = parse::response(stream, &limits).ok()??;
        let rest = &stream[head.range.end()..];
        let length = match framing::answer(&head, stream, asked).ok()? {
            AnswerKind::Interim => {
                stream = rest;
                continue;
            }
            AnswerKind::Final(length) => length,
            AnswerKind::SwitchingProtocols | AnswerKind::Tunnel => return None,
        };
        let body = read_body(rest, length, &limits).ok()??;
        return Some(SeenAnswer {
            status: head.status,
            fields: of_section(&head.fields, stream),
            body: body.data,
            trailers: body.trailers,
        });
    }
}

struct ReadBody {
    data: Vec<u8>,
    trailers: Vec<(String, Vec<u8>)>,
    length: usize,
}

/// Body at the start of bytes; `None` if it is not whole.
fn read_body(bytes: &[u8], length: BodyLength, limits: &MessageLimits) -> Result<Option<ReadBody>, ()> {
    let plain = |length: usize| ReadBody {
        data: bytes[..length].to_vec(),
        trailers: Vec::new(),
        length,
    };
    match length {
        BodyLength::None => Ok(Some(plain(0))),
        BodyLength::UntilClose => Ok(Some(plain(bytes.len()))),
        BodyLength::Known(length) => {
            let length = usize::try_from(length).ok().filter(|&length| length <= bytes.len());
            Ok(length.map(plain))
        }
        BodyLength::Chunked => {
            let mut body = ChunkedBody::new(limits);
            let scan = body.scan(bytes).map_err(drop)?;
            Ok(scan.is_done.then(|| ReadBody {
                data: decode(&bytes[..scan.pass]),
                trailers: of_section(body.trailer_fields(), body.trailers()),
                length: scan.used,
            }))
        }
    }
}

/// Data of chunks that were scanned; the scanner itself leaves them as they stand.
fn decode(mut chunks: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    while let Some(end) = chunks.windows(2).position(|w| w == b"\r\n") {
        let digits = chunks.iter().take_while(|b| b.is_ascii_hexdigit()).count();
        let digits = text(&chunks[..digits]);
        let size = usize::from_str_radix(&digits, 16).unwrap();
        if size == 0 {
            break;
        }
        data.extend_from_slice(&chunks[end + 2..end + 2 + size]);
        chunks = &chunks[end + 2 + size + 2..];
    }
    data
}

fn of_section(fields: &FieldSection, buffer: &[u8]) -> Vec<(String, Vec<u8>)> {
    sorted(
        fields
            .iter()
            .map(|field| (text(field.name.of(buffer)), field.value.of(buffer).to_vec())),
    )
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

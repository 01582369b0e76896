use super::*;
use crate::wire::http1::limits::MessageLimits;
use crate::wire::http1::parse::{self, ParsedRequest};

fn of_request(line: &str, fields: &str) -> Result<BodyLength, FramingError> {
    let text = format!("{line}\r\nHost: a.test\r\n{fields}\r\n");
    match parse::request(text.as_bytes(), &MessageLimits::default()) {
        Ok(ParsedRequest::Head(head)) => request_body(&head, text.as_bytes()),
        outcome => panic!("{text:?}: {outcome:?}"),
    }
}

fn of_answer(line: &str, fields: &str, asked: Method) -> Result<AnswerKind, FramingError> {
    let text = format!("{line}\r\n{fields}\r\n");
    let head = parse::response(text.as_bytes(), &MessageLimits::default())
        .unwrap()
        .unwrap();
    answer(&head, text.as_bytes(), asked)
}

#[test]
fn length_of_a_request() {
    let of = |fields| of_request("POST / HTTP/1.1", fields);
    assert_eq!(of(""), Ok(BodyLength::None));
    assert_eq!(of("content-length: 007\r\n"), Ok(BodyLength::Known(7)));
    assert_eq!(
        of("Content-Length: 18446744073709551615\r\n"),
        Ok(BodyLength::Known(u64::MAX))
    );
    assert_eq!(of("Transfer-Encoding: Chunked\r\n"), Ok(BodyLength::Chunked));
    assert_eq!(
        of_request("GET / HTTP/1.1", "Content-Length: 3\r\n"),
        Ok(BodyLength::Known(3))
    );
    assert_eq!(
        of_request("TRACE / HTTP/1.1", "Content-Length: 0\r\n"),
        Ok(BodyLength::Known(0))
    );
}

#[test]
fn requests_whose_end_is_in_doubt_are_refused() {
    for (fields, fault, status) in [
        ("Content-Length:\r\n", FramingError::ContentLengthInvalid, 400),
        ("Content-Length: +1\r\n", FramingError::ContentLengthInvalid, 400),
        ("Content-Length: -1\r\n", FramingError::ContentLengthInvalid, 400),
        ("Content-Length: 0x1\r\n", FramingError::ContentLengthInvalid, 400),
        ("Content-Length: 1 2\r\n", FramingError::ContentLengthInvalid, 400),
        ("Content-Length: 5, 5\r\n", FramingError::ContentLengthInvalid, 400),
        (
            "Content-Length: 18446744073709551616\r\n",
            FramingError::ContentLengthInvalid,
            400,
        ),
        (
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            FramingError::ContentLengthRepeated,
            400,
        ),
        (
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            FramingError::LengthAndTransferEncoding,
            400,
        ),
        (
            "Transfer-Encoding: x\r\nContent-Length: 5\r\n",
            FramingError::LengthAndTransferEncoding,
            400,
        ),
        (
            "Transfer-Encoding: gzip, chunked\r\n",
            FramingError::TransferEncodingUnsupported,
            501,
        ),
        (
            "Transfer-Encoding: chunked, chunked\r\n",
            FramingError::TransferEncodingUnsupported,
            501,
        ),
        (
            "Transfer-Encoding: chunked;x\r\n",
            FramingError::TransferEncodingUnsupported,
            501,
        ),
        (
            "Transfer-Encoding: xchunked\r\n",
            FramingError::TransferEncodingUnsupported,
            501,
        ),
        (
            "Transfer-Encoding: identity\r\n",
            FramingError::TransferEncodingUnsupported,
            501,
        ),
        ("Transfer-Encoding:\r\n", FramingError::TransferEncodingUnsupported, 501),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            FramingError::TransferEncodingUnsupported,
            501,
        ),
    ] {
        let found = of_request("POST / HTTP/1.1", fields);
        assert_eq!(found, Err(fault), "{fields:?}");
        assert_eq!(fault.status(), status, "{fields:?}");
    }
    let old = of_request("POST / HTTP/1.0", "Transfer-Encoding: chunked\r\n");
    assert_eq!(old, Err(FramingError::TransferEncodingInHttp10));
    let trace = of_request("TRACE / HTTP/1.1", "Content-Length: 1\r\n");
    assert_eq!(trace, Err(FramingError::ContentNotAllowed));
}

#[test]
fn status_method_and_fields_decide_the_kind_of_an_answer() {
    use AnswerKind::{Final, Interim, SwitchingProtocols, Tunnel};
    let length = "Content-Length: 5\r\n";
    for (line, fields, asked, kind) in [
        ("HTTP/1.1 200 OK", length, Method::Get, Final(BodyLength::Known(5))),
        ("HTTP/1.1 200 OK", length, Method::Head, Final(BodyLength::None)),
        (
            "HTTP/1.1 304 Not Modified",
            length,
            Method::Get,
            Final(BodyLength::None),
        ),
        ("HTTP/1.1 204 No Content", "", Method::Delete, Final(BodyLength::None)),
        (
            "HTTP/1.1 205 Reset Content",
            length,
            Method::Get,
            Final(BodyLength::Known(5)),
        ),
        (
            "HTTP/1.1 200 OK",
            "Transfer-Encoding: chunked\r\n",
            Method::Get,
            Final(BodyLength::Chunked),
        ),
        ("HTTP/1.0 200 OK", "", Method::Get, Final(BodyLength::UntilClose)),
        ("HTTP/1.1 100 Continue", "", Method::Post, Interim),
        ("HTTP/1.1 103 Early Hints", "", Method::Get, Interim),
        ("HTTP/1.1 101 Switching Protocols", "", Method::Get, SwitchingProtocols),
        ("HTTP/1.1 200 OK", "", Method::Connect, Tunnel),
        (
            "HTTP/1.1 403 Forbidden",
            length,
            Method::Connect,
            Final(BodyLength::Known(5)),
        ),
    ] {
        assert_eq!(of_answer(line, fields, asked), Ok(kind), "{line} to {asked:?}");
    }
}

#[test]
fn answers_in_doubt_are_refused_even_without_a_body() {
    for (fields, fault) in [
        (
            "Content-Length: 5\r\nContent-Length: 6\r\n",
            FramingError::ContentLengthRepeated,
        ),
        (
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            FramingError::LengthAndTransferEncoding,
        ),
        ("Transfer-Encoding: gzip\r\n", FramingError::TransferEncodingUnsupported),
    ] {
        assert_eq!(of_answer("HTTP/1.1 200 OK", fields, Method::Get), Err(fault));
        assert_eq!(of_answer("HTTP/1.1 304 Not Modified", fields, Method::Get), Err(fault));
    }
    let old = of_answer("HTTP/1.0 200 OK", "Transfer-Encoding: chunked\r\n", Method::Get);
    assert_eq!(old, Err(FramingError::TransferEncodingInHttp10));
}

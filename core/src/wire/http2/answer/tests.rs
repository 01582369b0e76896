use super::*;
use crate::wire::http1::framing::{self, AnswerKind};
use crate::wire::http1::limits::MessageLimits;
use crate::wire::http1::parse;

const OK: StreamAnswer<'_> = StreamAnswer {
    status: 200,
    reason: "OK",
    is_ended: false,
    asked: Method::Get,
    version: Version::Http11,
};

fn written(answer: &StreamAnswer<'_>, pairs: &[(&str, &str)]) -> Result<(Vec<u8>, BodyLength), StreamFault> {
    let fields = pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    to_http1(answer, fields)
}

/// Text of a head, which the parser of HTTP/1 must give the same length.
fn text(answer: &StreamAnswer<'_>, pairs: &[(&str, &str)]) -> String {
    let (bytes, length) = written(answer, pairs).unwrap();
    let head = parse::response(&bytes, &MessageLimits::default()).unwrap().unwrap();
    assert_eq!(head.range.end(), bytes.len());
    match framing::answer(&head, &bytes, answer.asked).unwrap() {
        AnswerKind::Final(read) => assert_eq!(read, length),
        AnswerKind::Interim => assert_eq!(length, BodyLength::None),
        kind => panic!("{kind:?}"),
    }
    String::from_utf8(bytes).unwrap()
}

fn label(answer: &StreamAnswer<'_>, pairs: &[(&str, &str)]) -> &'static str {
    written(answer, pairs).unwrap_err().label()
}

#[test]
fn an_answer_becomes_one_of_http1() {
    assert_eq!(
        text(
            &OK,
            &[
                ("content-type", "application/grpc"),
                ("set-cookie", "a"),
                ("set-cookie", "b")
            ]
        ),
        "HTTP/1.1 200 OK\r\ncontent-type: application/grpc\r\nset-cookie: a\r\nset-cookie: b\r\n\
         transfer-encoding: chunked\r\n\r\n"
    );
    assert_eq!(
        text(&OK, &[("content-length", "12")]),
        "HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n"
    );
    assert_eq!(
        text(
            &StreamAnswer {
                reason: "",
                status: 299,
                ..OK
            },
            &[("content-length", "0")]
        )
        .lines()
        .next(),
        Some("HTTP/1.1 299 ")
    );
}

#[test]
fn an_answer_that_ends_with_its_head_has_no_body() {
    let ended = StreamAnswer { is_ended: true, ..OK };
    // gRPC's errors have their status in the head.
    assert_eq!(
        text(&ended, &[("grpc-status", "12")]),
        "HTTP/1.1 200 OK\r\ngrpc-status: 12\r\ncontent-length: 0\r\n\r\n"
    );
    assert_eq!(
        text(&ended, &[("content-length", "0")])
            .matches("content-length")
            .count(),
        1
    );
    for (status, asked) in [
        (204, Method::Get),
        (304, Method::Get),
        (200, Method::Head),
        (103, Method::Get),
    ] {
        for is_ended in [true, false] {
            let empty = StreamAnswer {
                status,
                asked,
                is_ended,
                ..OK
            };
            let said = text(&empty, &[]);
            assert!(
                !said.contains("content-length") && !said.contains("transfer-encoding"),
                "{said}"
            );
        }
    }
    let of_head = StreamAnswer {
        asked: Method::Head,
        ..ended
    };
    assert!(text(&of_head, &[("content-length", "12")]).contains("content-length: 12"));
}

#[test]
fn a_client_of_http10_gets_no_chunks() {
    let old = StreamAnswer {
        version: Version::Http10,
        ..OK
    };
    assert_eq!(written(&old, &[]).unwrap().1, BodyLength::UntilClose);
    assert_eq!(text(&old, &[]), "HTTP/1.1 200 OK\r\n\r\n");
}

#[test]
fn answers_that_break_the_rules_are_not_passed_on() {
    let ended = StreamAnswer { is_ended: true, ..OK };
    for (name, value) in [
        ("connection", "close"),
        ("transfer-encoding", "chunked"),
        ("Upgrade", "h2c"),
        ("te", "trailers"),
    ] {
        assert_eq!(label(&OK, &[(name, value)]), "connection_field", "{name}");
    }
    assert_eq!(label(&OK, &[("a b", "c")]), "field_name");
    assert_eq!(label(&OK, &[("a", "b\r\nc: d")]), "field_value");
    assert!(text(&OK, &[("a", " b\t")]).contains("\r\na: b\r\n"));
    assert_eq!(
        label(&OK, &[("content-length", "1"), ("content-length", "1")]),
        "content_length_repeated"
    );
    assert_eq!(label(&OK, &[("content-length", "+1")]), "content_length_invalid");
    assert_eq!(label(&ended, &[("content-length", "1")]), "length_mismatch");
    assert_eq!(label(&StreamAnswer { status: 101, ..OK }, &[]), "status_line");
}

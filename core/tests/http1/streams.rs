//! Streams of messages, right ones and others.

use proptest::prelude::*;
use proptest::sample::select;

fn text(choices: &[&'static str]) -> impl Strategy<Value = String> + use<> {
    select(choices.to_vec()).prop_map(str::to_owned)
}

/// Right almost always, wrong sometimes.
fn mostly(right: &[&'static str], wrong: &[&'static str]) -> impl Strategy<Value = String> + use<> {
    prop_oneof![14 => text(right), 1 => text(wrong)]
}

fn field() -> impl Strategy<Value = String> {
    let plain = text(&[
        "Accept: */*",
        "a:b",
        "X-Empty:",
        "x-Odd!#$: \"q\"",
        "Cookie:\ta=b; c=d\t ",
        "A: 1",
        "a: \u{fc}",
        "TE: trailers",
        "Connection: keep-alive",
        "Connection: close",
        "Expect: 100-continue",
    ]);
    let wrong = text(&[
        "X : y",
        " X: y",
        "X",
        ": y",
        "X: a\0",
        "X: a\u{7f}",
        "X: a\r\n folded",
        "X: a\rb",
        "Host: a.test",
        "Connection: transfer-encoding",
        "Transfer-Encoding : chunked",
        "Content-Length\t: 5",
    ]);
    prop_oneof![14 => plain, 1 => wrong]
}

/// A body with the fields that frame it.
fn framed() -> impl Strategy<Value = (Vec<String>, String)> {
    let known = "[ -~\r\n]{0,12}".prop_map(|body| (vec![format!("Content-Length: {}", body.len())], body));
    let chunked = chunked().prop_map(|body| (vec!["Transfer-Encoding: chunked".to_owned()], body));
    prop_oneof![2 => Just((Vec::new(), String::new())), 2 => known, 3 => chunked]
}

/// A body with fields that may not fit it.
fn misframed() -> impl Strategy<Value = (Vec<String>, String)> {
    let fields = text(&[
        "Content-Length: 5",
        "Content-Length: 0",
        "Content-Length: +5",
        "Content-Length: 5, 5",
        "Content-Length:",
        "Content-Length: 5 5",
        "Content-Length: 0x5",
        "Content-Length: 99999999999999999999",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: Chunked",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked;x",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding:",
        "Transfer-Encoding: \u{b}chunked",
        "transfer-encoding:chunked ",
    ]);
    let body = text(&[
        "",
        "hello",
        "0\r\n\r\n",
        "5\r\nhello\r\n0\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a.test\r\n\r\n",
    ]);
    (prop::collection::vec(fields, 0..3), body)
}

fn chunked() -> impl Strategy<Value = String> {
    let end = || mostly(&["\r\n"], &["\n", "\r", " \r\n"]);
    let extension = mostly(&["", "", ";a", ";a=b", "; a=\"b c\""], &[" ", ";\n", ";\0", "x"]);
    let chunk = ("[ -~\r\n]{1,20}", extension, end(), end(), any::<bool>());
    let trailers = mostly(
        &["", "", "A: b\r\n", "A: b\r\nc-d:\r\n"],
        &["A: b\n", "A : b\r\n", "Host: b.test\r\n", "A\r\n"],
    );
    let chunks = prop::collection::vec(chunk, 0..4);
    (chunks, mostly(&["0", "000"], &["0x0", "-0"]), end(), trailers, end()).prop_map(
        |(chunks, last, last_end, trailers, end)| {
            let mut text = String::new();
            for (data, extension, size_end, data_end, is_upper) in chunks {
                let size = if is_upper {
                    format!("0{:X}", data.len())
                } else {
                    format!("{:x}", data.len())
                };
                text += &[&size, &extension, &size_end, &data, &data_end]
                    .map(String::as_str)
                    .concat();
            }
            text + &last + &last_end + &trailers + &end
        },
    )
}

fn message(first: impl Strategy<Value = String>, host: Option<&'static str>) -> impl Strategy<Value = Vec<u8>> {
    let end = || mostly(&["\r\n", "\r\n", "\r\n"], &["\n", "\r", "\r\r\n"]);
    let body = prop_oneof![3 => framed(), 2 => misframed()];
    let fields = prop::collection::vec((field(), any::<bool>()), 0..4);
    (first, fields, body, end(), end()).prop_map(move |(first, fields, (framing, body), first_end, last_end)| {
        let mut lines: Vec<String> = host.map(str::to_owned).into_iter().collect();
        let (before, behind): (Vec<_>, Vec<_>) = fields.into_iter().partition(|(_, is_before)| *is_before);
        lines.extend(before.into_iter().map(|(field, _)| field));
        lines.extend(framing);
        lines.extend(behind.into_iter().map(|(field, _)| field));
        let head = format!(
            "{first}{first_end}{}{last_end}",
            lines.iter().map(|line| format!("{line}\r\n")).collect::<String>()
        );
        // One byte for each character: obs-text is no UTF-8.
        (head + &body)
            .chars()
            .map(|c| u8::try_from(u32::from(c)).unwrap())
            .collect()
    })
}

/// Several requests, one behind the other.
pub(crate) fn requests() -> impl Strategy<Value = Vec<u8>> {
    let line = mostly(
        &[
            "GET / HTTP/1.1",
            "POST /a?b=c HTTP/1.1",
            "PUT http://a.test/z HTTP/1.1",
            "GET /%2e HTTP/1.0",
            "OPTIONS * HTTP/1.1",
        ],
        &[
            "GET  / HTTP/1.1",
            "GET / HTTP/1.2",
            "\r\nGET / HTTP/1.1",
            "\nGET / HTTP/1.1",
            "G@T / HTTP/1.1",
            "GET /",
            "GET / HTTP/1.1 ",
        ],
    );
    prop::collection::vec(message(line, Some("Host: a.test")), 1..4).prop_map(|messages| messages.concat())
}

/// An answer, and what may stand before and behind it.
pub(crate) fn answers() -> impl Strategy<Value = Vec<u8>> {
    let line = mostly(
        &[
            "HTTP/1.1 200 OK",
            "HTTP/1.1 404 Not Found",
            "HTTP/1.0 200 OK",
            "HTTP/1.1 204 No Content",
            "HTTP/1.1 304 N",
            "HTTP/1.1 500 ",
        ],
        &[
            "HTTP/1.1  200 OK",
            "HTTP/1.1 20 OK",
            "HTTP/2 200 OK",
            "HTTP/1.1 200 O\0",
            "\r\nHTTP/1.1 200 OK",
        ],
    );
    let interim = mostly(
        &["", "", "HTTP/1.1 100 Continue\r\n\r\n"],
        &["HTTP/1.1 100 Continue\r\nX: y\r\n\r\n"],
    );
    (interim, message(line, None)).prop_map(|(interim, message)| [interim.as_bytes(), &message].concat())
}

/// Streams without any fault.
pub(crate) fn right_requests() -> impl Strategy<Value = Vec<u8>> {
    let line = text(&[
        "GET /a HTTP/1.1",
        "POST /a?b=c HTTP/1.1",
        "DELETE http://a.test/z HTTP/1.1",
        "PROPFIND /%2e HTTP/1.1",
    ]);
    let fields = "(([A-Z][a-z-]{0,8}x|x): ?[!-~]{0,8}( [!-~\u{80}-\u{ff}]{1,4})?\r\n){0,4}";
    let data = || "[ -~\r\n]{0,300}";
    let known = data().prop_map(|body| format!("Content-Length: {}\r\n\r\n{body}", body.len()));
    let chunk = data().prop_filter("the last chunk", |data| !data.is_empty());
    let chunk = chunk.prop_map(|data| format!("{:x}\r\n{data}\r\n", data.len()));
    let chunked =
        (prop::collection::vec(chunk, 0..4), text(&["", "A: b\r\nC: d\r\n"])).prop_map(|(chunks, trailers)| {
            format!(
                "Transfer-Encoding: chunked\r\n\r\n{}0\r\n{trailers}\r\n",
                chunks.concat()
            )
        });
    let body = prop_oneof![Just("\r\n".to_owned()), known, chunked];
    let request = (line, fields, body).prop_map(|(line, fields, body)| {
        let text = format!("{line}\r\nHost: a.test\r\n{fields}{body}");
        text.chars()
            .map(|c| u8::try_from(u32::from(c)).unwrap())
            .collect::<Vec<u8>>()
    });
    prop::collection::vec(request, 1..4).prop_map(|requests| requests.concat())
}

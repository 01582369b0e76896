use super::super::limits::MessageLimits;
use super::super::parse::{self, ParsedRequest};
use super::*;

fn rewritten(text: &str, rewrite: &RequestRewrite<'_>) -> (String, usize) {
    let buffer = [text.as_bytes(), b"body"].concat();
    match parse::request(&buffer, &MessageLimits::default()) {
        Ok(ParsedRequest::Head(head)) => {
            let out = request(&head, &buffer, rewrite);
            let sent = out.to_vec(&buffer);
            assert_eq!(sent.len(), out.len());
            assert!(out.slices(&buffer).all(|slice| !slice.is_empty()));
            (String::from_utf8(sent).unwrap(), out.slices(&buffer).count())
        }
        outcome => panic!("{text:?}: {outcome:?}"),
    }
}

/// Field lines of the head that is sent on for these.
fn lines(fields: &str, rewrite: &RequestRewrite<'_>) -> String {
    let (sent, _) = rewritten(&format!("GET / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"), rewrite);
    let rest = sent.strip_prefix("GET / HTTP/1.1\r\nHost: a.test\r\n").expect(&sent);
    rest.strip_suffix("\r\n").expect(rest).to_owned()
}

fn answered(text: &str, connection: ConnectionField) -> String {
    let head = parse::response(text.as_bytes(), &MessageLimits::default())
        .unwrap()
        .unwrap();
    let rewrite = ResponseRewrite {
        connection,
        ..ResponseRewrite::default()
    };
    String::from_utf8(response(&head, text.as_bytes(), &rewrite).to_vec(text.as_bytes())).unwrap()
}

fn name(text: &str) -> FieldName {
    FieldName::parse(text).unwrap()
}

const PLAIN: RequestRewrite<'_> = RequestRewrite {
    fields: &[],
    connection: ConnectionField::Omitted,
    target: None,
};

#[test]
fn a_head_without_fields_of_the_hop_goes_byte_for_byte() {
    let text = "GET /%2e/../x?y HTTP/1.1\r\nhOST:a.test:80 \r\nB:  2\t\r\na: 1\r\nB: 1\r\nX-Odd!: \"\r\n\r\n";
    assert_eq!(rewritten(text, &PLAIN), (text.to_owned(), 2));
    let late = format!("\r\n\r\n{text}");
    assert_eq!(
        rewritten(&late, &PLAIN).0,
        text,
        "empty lines before it are not sent on"
    );
}

#[test]
fn fields_of_the_hop_and_those_that_connection_names_stay_here() {
    let hop = "Keep-Alive: 5\r\nA: 1\r\nProxy-Connection: x\r\nconnection: x-secret, close\r\nX-Secret: s\r\n\
               x-SECRET: t\r\nConnection: http2-settings\r\nHTTP2-Settings: q\r\nUpgrade: h2c\r\nB: 2\r\n";
    assert_eq!(lines(hop, &PLAIN), "A: 1\r\nB: 2\r\n");
    // Framing is kept, because the body is passed on unchanged.
    assert_eq!(
        lines("Transfer-Encoding: chunked\r\n", &PLAIN),
        "Transfer-Encoding: chunked\r\n"
    );
}

#[test]
fn a_wish_for_trailers_is_sent_on_alone() {
    assert_eq!(
        lines("TE: trailers\r\nConnection: TE\r\n", &PLAIN),
        "TE: trailers\r\nConnection: TE\r\n"
    );
    assert_eq!(
        lines("TE: gzip;q=0.5, Trailers\r\nA: 1\r\nTE: trailers\r\n", &PLAIN),
        "TE: trailers\r\nA: 1\r\nConnection: TE\r\n"
    );
    assert_eq!(lines("TE: gzip\r\n", &PLAIN), "");
}

#[test]
fn an_upgrade_is_sent_on_where_it_is_asked_for() {
    let fields = "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Key: x\r\n";
    let upgrade = RequestRewrite {
        connection: ConnectionField::Upgrade,
        ..PLAIN
    };
    assert_eq!(
        lines(fields, &upgrade),
        "Upgrade: websocket\r\nSec-WebSocket-Key: x\r\nConnection: Upgrade\r\n"
    );
    assert_eq!(lines(fields, &PLAIN), "Sec-WebSocket-Key: x\r\n");
}

#[test]
fn edits_change_the_lines_of_their_name() {
    let with = |fields: &str, edits: &[FieldEdit]| {
        let rewrite = RequestRewrite { fields: edits, ..PLAIN };
        lines(fields, &rewrite)
    };
    let came = "X: 1\r\nY: 2\r\nx: 3\r\n";
    let (x, one) = (name("x"), || b"9".to_vec());
    assert_eq!(with(came, &[FieldEdit::Remove(x.clone())]), "Y: 2\r\n");
    assert_eq!(with(came, &[FieldEdit::Set(x.clone(), one())]), "X: 9\r\nY: 2\r\n");
    assert_eq!(with(came, &[FieldEdit::Replace(x.clone(), one())]), "X: 9\r\nY: 2\r\n");
    assert_eq!(
        with(came, &[FieldEdit::Add(x.clone(), one())]),
        format!("{came}x: 9\r\n")
    );
    assert_eq!(with("", &[FieldEdit::Set(x.clone(), one())]), "x: 9\r\n");
    assert_eq!(with("", &[FieldEdit::Replace(x.clone(), one())]), "");
    let remove_and_add = [FieldEdit::Remove(x.clone()), FieldEdit::Add(name("X"), one())];
    assert_eq!(with(came, &remove_and_add), "Y: 2\r\nX: 9\r\n");
    let add_and_remove = [FieldEdit::Add(x.clone(), one()), FieldEdit::Remove(x.clone())];
    assert_eq!(with(came, &add_and_remove), "Y: 2\r\n");
    // A field named by the client in Connection is removed; the same field, set by the balancer, is sent.
    let set = [FieldEdit::Set(x, one())];
    assert_eq!(with("X: 1\r\nConnection: X\r\n", &set), "x: 9\r\n");
}

#[test]
fn a_value_cannot_end_its_line() {
    let edits = [FieldEdit::Set(name("X"), b"a\r\nEvil: 1\0".to_vec())];
    let rewrite = RequestRewrite {
        fields: &edits,
        ..PLAIN
    };
    assert_eq!(lines("", &rewrite), "X: a  Evil: 1 \r\n");
    assert_eq!(FieldName::parse("X: y"), None);
    assert_eq!(FieldName::parse(""), None);
    assert!(!name("Content-length").is_editable());
    assert!(name("X-Content-Length").is_editable());
}

#[test]
fn an_absolute_target_becomes_its_origin_form() {
    let line = |line: &str| {
        let (sent, _) = rewritten(&format!("{line} HTTP/1.1\r\nHost: a.test\r\n\r\n"), &PLAIN);
        sent.split_once("\r\n").unwrap().0.to_owned()
    };
    assert_eq!(line("GET http://a.test/x?y"), "GET /x?y HTTP/1.1");
    assert_eq!(line("GET http://a.test"), "GET / HTTP/1.1");
    assert_eq!(line("GET http://a.test?y"), "GET /?y HTTP/1.1");
    assert_eq!(line("OPTIONS http://a.test"), "OPTIONS * HTTP/1.1");
    assert_eq!(line("CONNECT a.test:443"), "CONNECT a.test:443 HTTP/1.1");
    let (sent, _) = rewritten("GET http://a.test:8080/x HTTP/1.0\r\nA: 1\r\n\r\n", &PLAIN);
    assert_eq!(sent, "GET /x HTTP/1.0\r\nA: 1\r\nHost: a.test:8080\r\n\r\n");
}

#[test]
fn a_host_that_is_set_is_the_only_one() {
    let edits = [FieldEdit::Set(name("host"), b"b.test".to_vec())];
    let rewrite = RequestRewrite {
        fields: &edits,
        ..PLAIN
    };
    let (sent, _) = rewritten("GET http://a.test/ HTTP/1.0\r\n\r\n", &rewrite);
    assert_eq!(sent, "GET / HTTP/1.0\r\nhost: b.test\r\n\r\n");
    let (sent, _) = rewritten("GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", &rewrite);
    assert_eq!(sent, "GET / HTTP/1.1\r\nHost: b.test\r\n\r\n");
}

#[test]
fn a_target_is_replaced_unless_it_is_none() {
    let to = |target: &[u8]| {
        let rewrite = RequestRewrite {
            target: Some(target),
            ..PLAIN
        };
        let (sent, _) = rewritten("GET /x HTTP/1.1\r\nHost: a.test\r\n\r\n", &rewrite);
        sent.split_once("\r\n").unwrap().0.to_owned()
    };
    assert_eq!(to(b"/y?z"), "GET /y?z HTTP/1.1");
    assert_eq!(to(b"/y HTTP/1.1\r\nEvil: 1"), "GET /x HTTP/1.1");
}

#[test]
fn the_head_of_an_answer() {
    let text = "HTTP/1.1 200 OK\r\nServer: x\r\nUpgrade: h2,h2c\r\nConnection: Upgrade, Keep-Alive\r\nKeep-Alive: 5\r\nTE: trailers\r\n\r\n";
    let sent = answered(text, ConnectionField::Omitted);
    assert_eq!(sent, "HTTP/1.1 200 OK\r\nServer: x\r\n\r\n");
    let sent = answered("HTTP/1.0 200 Gut \u{fc}\r\nA: 1\r\n\r\n", ConnectionField::KeepAlive);
    assert_eq!(
        sent,
        "HTTP/1.1 200 Gut \u{fc}\r\nA: 1\r\nConnection: keep-alive\r\n\r\n"
    );
    let sent = answered(
        "HTTP/1.1 204 No\r\nContent-Length: 0\r\nA: 1\r\n\r\n",
        ConnectionField::Close,
    );
    assert_eq!(sent, "HTTP/1.1 204 No\r\nA: 1\r\nConnection: close\r\n\r\n");
    let sent = answered("HTTP/1.1 304 N\r\nContent-Length: 7\r\n\r\n", ConnectionField::Omitted);
    assert_eq!(sent, "HTTP/1.1 304 N\r\nContent-Length: 7\r\n\r\n");
    let text = "HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n";
    let sent = answered(text, ConnectionField::Upgrade);
    assert_eq!(
        sent,
        "HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    );
}

#[test]
fn removing_or_setting_a_field_also_drops_its_other_spellings() {
    let edits = [
        FieldEdit::Remove(name("X-Debug-Me")),
        FieldEdit::Set(name("X-Remote-User"), b"us".to_vec()),
        FieldEdit::Replace(name("X-Once"), b"1".to_vec()),
        FieldEdit::Add(name("X-More"), b"2".to_vec()),
        FieldEdit::Remove(name("X_Own")),
    ];
    let rewrite = RequestRewrite {
        fields: &edits,
        ..PLAIN
    };
    let came =
        "X_Debug_Me: 1\r\nx-debug_me: 2\r\nX_Remote_User: them\r\nX_Once: 3\r\nX_More: 4\r\nX-Own: 5\r\nX_Own: 6\r\n";
    assert_eq!(
        lines(came, &rewrite),
        "X_More: 4\r\nX-Own: 5\r\nX-Remote-User: us\r\nX-More: 2\r\n"
    );
    // Both spellings: the value goes to the field itself, wherever it is.
    assert_eq!(
        lines("X_Remote_User: them\r\nX-Remote-User: them\r\n", &rewrite),
        "X-Remote-User: us\r\nX-More: 2\r\n"
    );
}

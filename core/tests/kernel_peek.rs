//! The readers of the kernel peek against those of userspace, on the same bytes: the same name, or passed up.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use signalbox_common::peek::KernelPeek;
use signalbox_common::peek::abi::{HEAD_ROOM, MAX_PAYLOAD_BYTES, PAYLOAD_ROOM, PeekName, PeekPayload, protocol};
use signalbox_common::peek::hello::{self, HelloReader};
use signalbox_common::peek::request::{self, RequestReader};
use signalbox_core::wire::peek::{Peek, http, tls};

fn payload(bytes: &[u8]) -> PeekPayload {
    // Behind the bytes stands the data of an earlier client.
    let mut payload = PeekPayload {
        generation: 1,
        length: bytes.len() as u32,
        _pad: [0; 2],
        head: [0; HEAD_ROOM],
        data: [b'x'; PAYLOAD_ROOM],
    };
    payload.data[..bytes.len()].copy_from_slice(bytes);
    payload
}

/// Outcome of a kernel reader, and the name where one is found.
fn read(protocol: u8, bytes: &[u8]) -> (u32, String) {
    let (payload, mut name) = (payload(bytes), PeekName::empty(protocol));
    let outcome = if protocol == protocol::HTTP {
        let mut reader = RequestReader::new();
        for _ in 0..request::MAX_STEPS {
            if reader.outcome() != KernelPeek::Open as u32 {
                break;
            }
            reader.step(&payload, &mut name);
        }
        reader.outcome()
    } else {
        let mut reader = HelloReader::new();
        for _ in 0..hello::MAX_STEPS {
            if reader.outcome() != KernelPeek::Open as u32 {
                break;
            }
            reader.step(&payload, &mut name);
        }
        reader.outcome()
    };
    let text = String::from_utf8(name.text[..usize::from(name.length)].to_vec()).unwrap();
    (outcome, text)
}

/// Checks that what the kernel finds is what userspace finds.
fn check(protocol: u8, bytes: &[u8]) -> Result<bool, TestCaseError> {
    let (outcome, name) = read(protocol, bytes);
    if outcome != KernelPeek::Found as u32 {
        return Ok(false);
    }
    let found = if protocol == protocol::HTTP {
        http::peek(bytes)
    } else {
        tls::peek(bytes)
    };
    match found {
        Peek::Found(request) => {
            let theirs = request.hostname.map(|name| name.to_string()).unwrap_or_default();
            // A name that is not in its usual form is in no table, and passed up: only whether it is another counts.
            prop_assert!(
                theirs == name || theirs == name.trim_end_matches('.'),
                "{theirs} and {name}"
            );
        }
        // Nor is a name that is none: no route has it.
        other => prop_assert!(!is_name(&name), "{other:?} and {name}"),
    }
    Ok(true)
}

fn is_name(text: &str) -> bool {
    signalbox_core::wire::hostname::Hostname::parse(text.as_bytes()).is_ok()
}

fn found(bytes: &[u8], protocol: u8) -> Option<String> {
    let (outcome, name) = read(protocol, bytes);
    (outcome == KernelPeek::Found as u32).then_some(name)
}

#[test]
fn requests_of_real_clients_are_found() {
    for (head, name) in [
        ("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", "a.test"),
        (
            "GET / HTTP/1.1\r\nHost: A.Test:8080\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n",
            "a.test",
        ),
        (
            "POST /api/v1?x=1&y=%20 HTTP/1.1\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 \
             Firefox/128.0\r\nAccept: text/html,application/xhtml+xml\r\nhost: app1.example.com\r\nContent-Length: \
             5\r\nConnection: keep-alive\r\n\r\nhello",
            "app1.example.com",
        ),
        ("GET /x HTTP/1.0\r\nHost: a.test\r\n\r\n", "a.test"),
    ] {
        assert_eq!(found(head.as_bytes(), protocol::HTTP).as_deref(), Some(name), "{head}");
        for end in 0..head.find("\r\n\r\n").unwrap() + 3 {
            let (outcome, _) = read(protocol::HTTP, &head.as_bytes()[..end]);
            assert_eq!(outcome, KernelPeek::Incomplete as u32, "{end} bytes of {head}");
        }
    }
}

#[test]
fn requests_that_only_userspace_may_judge_are_passed_up() {
    for head in [
        "GET http://a.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n",
        "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "CONNECT / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.test\r\n folded: x\r\n\r\n",
        "GET / HTTP/1.1\nHost: a.test\n\n",
        "GET / HTTP/1.1\r\nHost : a.test\r\n\r\n",
        "GET / HTTP/1.1\r\nX: \u{7f}\r\nHost: a.test\r\n\r\n",
        "GET / HTTP/1.1\r\nAccept: */*\r\n\r\n",
        "GET / HTTP/1.2\r\nHost: a.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
        "get / HTTP/1.1\r\nHost: a.test\r\n\r\n",
    ] {
        let (outcome, _) = read(protocol::HTTP, head.as_bytes());
        assert_eq!(outcome, KernelPeek::PassUp as u32, "{head}");
    }
}

/// A ClientHello with these extensions, in one record.
fn client_hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut list = Vec::new();
    for (kind, body) in extensions {
        list.extend(kind.to_be_bytes());
        list.extend((body.len() as u16).to_be_bytes());
        list.extend(body);
    }
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([32; 33]);
    body.extend([0, 4, 0x13, 0x01, 0x13, 0x02, 1, 0]);
    body.extend((list.len() as u16).to_be_bytes());
    body.extend(list);
    let mut message = vec![1, 0];
    message.extend((body.len() as u16).to_be_bytes());
    message.extend(body);
    let mut record = vec![22, 3, 1];
    record.extend((message.len() as u16).to_be_bytes());
    record.extend(message);
    record
}

fn sni(name: &str) -> (u16, Vec<u8>) {
    let mut body = (name.len() as u16 + 3).to_be_bytes().to_vec();
    body.push(0);
    body.extend((name.len() as u16).to_be_bytes());
    body.extend(name.as_bytes());
    (0, body)
}

fn alpn(names: &[&str]) -> (u16, Vec<u8>) {
    let list: Vec<u8> = names
        .iter()
        .flat_map(|name| [name.len() as u8].into_iter().chain(name.bytes()))
        .collect();
    let mut body = (list.len() as u16).to_be_bytes().to_vec();
    body.extend(list);
    (16, body)
}

#[test]
fn hellos_are_found_whatever_stands_around_the_name() {
    let share = (51, vec![0xaa; 1216]);
    for extensions in [
        vec![sni("A.Test")],
        vec![share.clone(), sni("a.test"), alpn(&["h2", "http/1.1"])],
        vec![alpn(&["h2"]), (43, vec![2, 3, 4]), sni("a.test"), share],
    ] {
        let hello = client_hello(&extensions);
        assert_eq!(found(&hello, protocol::TLS).as_deref(), Some("a.test"));
        for end in 9..hello.len() {
            let (outcome, _) = read(protocol::TLS, &hello[..end]);
            assert_eq!(outcome, KernelPeek::Incomplete as u32, "{end} of {}", hello.len());
        }
    }
    for extensions in [vec![], vec![sni("a.test"), sni("b.test")], vec![(16, vec![0, 9, 1])]] {
        let (outcome, _) = read(protocol::TLS, &client_hello(&extensions));
        assert_eq!(outcome, KernelPeek::PassUp as u32);
    }
}

/// Bytes of `text`, some of them changed.
fn bent(text: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), any::<u8>(), 0u8..3);
    prop::collection::vec(change, 0..4).prop_map(move |changes| {
        let mut bytes = text.clone();
        for (at, byte, kind) in changes {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => {}
            }
        }
        bytes.truncate(MAX_PAYLOAD_BYTES as usize);
        bytes
    })
}

fn requests() -> impl Strategy<Value = Vec<u8>> {
    let name = "[A-Za-z0-9.-]{1,20}(:[0-9]{1,4})?";
    let field = "[A-Za-z-]{1,12}: ?[ -~]{0,40}";
    let target = "(/[!-~]{0,20}|\\*|http://[a-z.]{1,9}/)";
    (
        "(GET|POST|OPTIONS|CONNECT|get|M-SEARCH)",
        target,
        "HTTP/[12]\\.[012]",
        name,
        prop::collection::vec(field, 0..6),
        any::<prop::sample::Index>(),
        "(\r\n|\n)",
    )
        .prop_map(|(method, target, version, name, mut fields, at, end)| {
            let at = at.index(fields.len() + 1);
            fields.insert(at, format!("Host: {name}"));
            format!("{method} {target} {version}{end}{}{end}{end}", fields.join(&end)).into_bytes()
        })
        .prop_flat_map(bent)
}

fn hellos() -> impl Strategy<Value = Vec<u8>> {
    let other = (1u16..70, prop::collection::vec(any::<u8>(), 0..40)).boxed();
    let name = "[A-Za-z0-9._-]{1,70}".prop_map(|name| sni(&name)).boxed();
    let protocols = prop::collection::vec("[a-z0-9/.]{1,8}", 1..4)
        .prop_map(|names| alpn(&names.iter().map(String::as_str).collect::<Vec<_>>()))
        .boxed();
    prop::collection::vec(prop_oneof![other, name, protocols], 0..6)
        .prop_map(|extensions| client_hello(&extensions))
        .prop_flat_map(bent)
}

/// Cases of each property; `PROPTEST_CASES` asks for more.
fn cases() -> u32 {
    let text = std::env::var("PROPTEST_CASES").ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(20_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn requests_get_the_same_name_or_are_passed_up(bytes in requests()) {
        check(protocol::HTTP, &bytes)?;
    }

    #[test]
    fn hellos_get_the_same_name_or_are_passed_up(bytes in hellos()) {
        check(protocol::TLS, &bytes)?;
    }

    #[test]
    fn noise_is_read_without_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..MAX_PAYLOAD_BYTES as usize)) {
        check(protocol::HTTP, &bytes)?;
        check(protocol::TLS, &bytes)?;
    }
}

use proptest::prelude::*;

use super::*;

const LIMITS: MessageLimits = MessageLimits {
    head_bytes: 512,
    target_bytes: 64,
    fields: 8,
    chunk_extension_bytes: 16,
    trailer_bytes: 64,
    trailer_fields: 3,
};

/// Scans a body that comes in pieces of these sizes, the last one over and over. Returns the bytes sent on, how many
/// bytes were the body's, and whether it ended.
fn scan(bytes: &[u8], pieces: &[usize]) -> Result<(Vec<u8>, usize, bool), ChunkedError> {
    let (mut body, mut sent, mut used) = (ChunkedBody::new(&LIMITS), Vec::new(), 0);
    let mut sizes = pieces.iter().copied().chain(std::iter::repeat(*pieces.last().unwrap()));
    while used < bytes.len() && !body.is_done() {
        let end = bytes.len().min(used + sizes.next().unwrap().max(1));
        let piece = &bytes[used..end];
        let found = body.scan(piece)?;
        assert!(found.is_done || found.used == piece.len());
        assert_eq!(found.is_done, body.is_done());
        sent.extend_from_slice(&piece[..found.pass]);
        used += found.used;
    }
    if body.is_done() {
        sent.extend_from_slice(body.trailers());
    }
    Ok((sent, used, body.is_done()))
}

/// Scans a body at once and cut in two at each place: the outcome has to be the same.
fn whole(bytes: &[u8]) -> Result<(Vec<u8>, usize, bool), ChunkedError> {
    let outcome = scan(bytes, &[bytes.len()]);
    for cut in 1..bytes.len() {
        assert_eq!(scan(bytes, &[cut, bytes.len()]), outcome, "cut at {cut}");
    }
    assert_eq!(scan(bytes, &[1]), outcome);
    outcome
}

#[test]
fn a_body_passes_as_it_stands_and_ends_where_it_ends() {
    for body in [
        "0\r\n\r\n",
        "5\r\nhello\r\n0\r\n\r\n",
        "00000000000000aB\r\n",
        "5;a=b;c=\"d \"\r\nhello\r\n000;x\r\n\r\n",
        "5 \t;a\r\nhello\r\n0\r\n\r\n",
        "1\r\n\n\r\n0\r\nA: b\r\nC-D:\r\n\r\n",
    ] {
        let body = if body.ends_with("aB\r\n") {
            format!("{body}{}\r\n0\r\n\r\n", "x".repeat(0xab))
        } else {
            body.to_owned()
        };
        let followed = [body.as_bytes(), b"GET / HTTP/1.1\r\n"].concat();
        assert_eq!(
            whole(&followed),
            Ok((body.clone().into_bytes(), body.len(), true)),
            "{body:?}"
        );
        let short = &body.as_bytes()[..body.len() - 1];
        assert!(!whole(short).unwrap().2, "{body:?}");
    }
}

#[test]
fn sizes_that_are_padded_are_taken() {
    for body in [
        "5 \r\nhello\r\n0\r\n\r\n",
        "5\t  \r\nhello\r\n0   \r\n\r\n",
        "00000000000000000005\r\nhello\r\n0\r\n\r\n",
    ] {
        assert_eq!(
            whole(body.as_bytes()),
            Ok((body.as_bytes().to_vec(), body.len(), true)),
            "{body:?}"
        );
    }
}

/// Scans a body leniently that comes in pieces of a size. Returns the bytes sent on.
fn lenient(body: &[u8], piece: usize) -> Result<Vec<u8>, ChunkedError> {
    let mut scanner = ChunkedBody::lenient(&MessageLimits::default());
    let mut passed = Vec::new();
    for mut bytes in body.chunks(piece) {
        while !bytes.is_empty() && !scanner.is_done() {
            let scan = scanner.scan(bytes)?;
            passed.extend_from_slice(&bytes[..scan.pass]);
            bytes = &bytes[scan.used..];
        }
    }
    assert!(scanner.is_done() && scanner.is_repaired(), "{body:?}");
    passed.extend_from_slice(scanner.trailers());
    Ok(passed)
}

#[test]
fn a_lenient_scanner_leaves_out_white_space_before_sizes() {
    let body = b" 5\r\nhello\r\n\t \t2;x\r\n  \r\n \t0 \r\n A: b\r\n\r\n".as_slice();
    assert!(lenient(body, 64).is_err(), "a field has none");
    let body = b" 5\r\nhello\r\n\t \t2;x\r\n  \r\n \t0 \r\nA: b\r\n\r\n".as_slice();
    for piece in [1, 2, 3, 7, 64] {
        let passed = lenient(body, piece).unwrap();
        let expected = "5\r\nhello\r\n2;x\r\n  \r\n0 \r\nA: b\r\n\r\n";
        assert_eq!(String::from_utf8(passed).unwrap(), expected, "{piece}");
    }
    let mut data = Vec::new();
    let mut scanner = ChunkedBody::lenient(&MessageLimits::default());
    assert_eq!(scanner.take_apart(body, &mut data), Ok(body.len()));
    assert_eq!((data.as_slice(), scanner.is_repaired()), (b"hello  ".as_slice(), true));
    // All others refuse it, and no scanner takes it within a size or without one.
    assert_eq!(whole(b" 5\r\n"), Err(ChunkedError::Size));
    for (body, fault) in [
        ("5 5\r\n", ChunkedError::Extension),
        (" \r\n", ChunkedError::Size),
        ("5\r\nhello \r\n", ChunkedError::DataEnd),
    ] {
        assert_eq!(lenient(body.as_bytes(), 64), Err(fault), "{body:?}");
    }
    let padded = [" ".repeat(100_000).as_bytes(), b"5\r\n"].concat();
    assert_eq!(lenient(&padded, 1000), Err(ChunkedError::ExtensionTooLong));
}

#[test]
fn ambiguous_chunked_bodies_are_refused() {
    for (body, fault) in [
        ("\r\n", ChunkedError::Size),
        (";x\r\n", ChunkedError::Size),
        ("g\r\n", ChunkedError::Size),
        ("-1\r\n", ChunkedError::Size),
        ("0x5\r\n", ChunkedError::Size),
        ("5_\r\n", ChunkedError::Size),
        ("10000000000000000\r\n", ChunkedError::Size),
        ("5\nhello\r\n", ChunkedError::LineEnd),
        ("5\r\rhello\r\n", ChunkedError::LineEnd),
        ("5;a\nhello\r\n", ChunkedError::LineEnd),
        ("5;a\rhello\r\n", ChunkedError::LineEnd),
        ("5 a\r\nhello\r\n", ChunkedError::Extension),
        ("5;\0\r\nhello\r\n", ChunkedError::Extension),
        ("5;0123456789abcdef\r\n", ChunkedError::ExtensionTooLong),
        ("5\r\nhello0\r\n", ChunkedError::DataEnd),
        ("5\r\nhello\n0\r\n", ChunkedError::DataEnd),
        ("5\r\nhello\r0\r\n", ChunkedError::DataEnd),
        ("0\r\n\n", ChunkedError::TrailerLine),
        ("0\r\nA: b\n\r\n", ChunkedError::TrailerLine),
        ("0\r\nA : b\r\n\r\n", ChunkedError::TrailerLine),
        ("0\r\nA: b\r\n c\r\n\r\n", ChunkedError::TrailerLine),
        ("0\r\nA: b\rc\r\n\r\n", ChunkedError::TrailerLine),
        ("0\r\nGET / HTTP/1.1\r\n\r\n", ChunkedError::TrailerLine),
        ("0\r\nContent-Length: 5\r\n\r\n", ChunkedError::TrailerNotAllowed),
        ("0\r\nhost: b.test\r\n\r\n", ChunkedError::TrailerNotAllowed),
        (
            "0\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n",
            ChunkedError::TrailerNotAllowed,
        ),
        ("0\r\nx_forwarded_proto: https\r\n\r\n", ChunkedError::TrailerNotAllowed),
        ("0\r\nX-SSL-Client-CN: root\r\n\r\n", ChunkedError::TrailerNotAllowed),
        (
            "0\r\nAuthorization: Basic YTpi\r\n\r\n",
            ChunkedError::TrailerNotAllowed,
        ),
        (
            "0\r\nA: b\r\nA: b\r\nA: b\r\nA: b\r\n\r\n",
            ChunkedError::TooManyTrailers,
        ),
    ] {
        assert_eq!(whole(body.as_bytes()), Err(fault), "{body:?}");
    }
    let long = format!("0\r\nA: {}\r\n\r\n", "x".repeat(64));
    assert_eq!(whole(long.as_bytes()), Err(ChunkedError::TrailersTooLarge));
}

#[test]
fn trailers_are_held_until_checked_and_may_be_dropped() {
    let mut body = ChunkedBody::new(&LIMITS);
    let found = body.scan(b"1\r\nx\r\n0\r\nDigest: a").unwrap();
    assert_eq!(
        found,
        ChunkScan {
            pass: 9,
            used: 18,
            is_done: false
        }
    );
    let found = body.scan(b"bc\r\n\r\nHTTP").unwrap();
    assert_eq!(
        found,
        ChunkScan {
            pass: 0,
            used: 6,
            is_done: true
        }
    );
    assert_eq!(body.trailers(), b"Digest: abc\r\n\r\n");
    let values: Vec<_> = body.trailer_fields().values(body.trailers(), "digest").collect();
    assert_eq!(values, [b"abc"]);
    // Bytes after the body are not taken.
    assert_eq!(
        body.scan(b"HTTP").unwrap(),
        ChunkScan {
            pass: 0,
            used: 0,
            is_done: true
        }
    );
}

#[test]
fn chunk_data_may_be_moved_without_a_look() {
    let mut body = ChunkedBody::new(&LIMITS);
    assert_eq!(body.scan(b"ffffffffffffffff\r\nab").unwrap().pass, 20);
    assert_eq!(body.data_ahead(), u64::MAX - 2);
    body.skip(u64::MAX - 3);
    assert_eq!(body.data_ahead(), 1);
    body.skip(1);
    assert_eq!(body.data_ahead(), 0);
    assert!(body.scan(b"\r\n0\r\n\r\n").unwrap().is_done);
}

#[test]
fn chunks_are_taken_apart_and_trailers_dropped() {
    let (mut body, mut data) = (ChunkedBody::new(&LIMITS), Vec::new());
    assert_eq!(body.take_apart(b"5;a=b\r\nhel", &mut data), Ok(10));
    assert_eq!(
        body.take_apart(b"lo\r\n1\r\n\n\r\n0\r\nA: b\r\n\r\nHTTP", &mut data),
        Ok(21)
    );
    assert!(body.is_done());
    assert_eq!(data, b"hello\n");
    assert_eq!(body.take_apart(b"HTTP", &mut data), Ok(0));
    let mut body = ChunkedBody::new(&LIMITS);
    assert_eq!(body.take_apart(b"1\r\nxy", &mut data), Err(ChunkedError::DataEnd));
}

/// Text of a chunked body: chunks with extensions, and trailer fields.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let chunk = (
        prop::collection::vec(any::<u8>(), 1..40),
        "(;[a-z]{1,5}(=[a-z]{1,5})?)?",
        "0{0,4}",
    );
    let trailer = "([A-Z][a-z-]{0,5}x: ?[ -~]{0,5}!\r\n){0,3}";
    (prop::collection::vec(chunk, 0..6), trailer).prop_map(|(chunks, trailer)| {
        let mut text = Vec::new();
        for (data, extension, zeros) in chunks {
            text.extend(format!("{zeros}{:x}{extension}\r\n", data.len()).bytes());
            text.extend(data);
            text.extend(b"\r\n");
        }
        text.extend(format!("0\r\n{trailer}\r\n").bytes());
        text
    })
}

proptest! {
    #[test]
    fn any_pieces_give_the_same_bytes(body in body(), behind in any::<Vec<u8>>(), pieces in prop::collection::vec(1usize..50, 1..20)) {
        let bytes = [&body[..], &behind].concat();
        prop_assert_eq!(scan(&bytes, &pieces), Ok((body.clone(), body.len(), true)));
    }

    #[test]
    fn arbitrary_bytes_have_one_outcome_in_any_pieces(
        bytes in prop::collection::vec(prop::sample::select(b"015a;\r\n: \0".to_vec()), 0..60),
        pieces in prop::collection::vec(1usize..9, 1..20),
    ) {
        prop_assert_eq!(scan(&bytes, &pieces), scan(&bytes, &[usize::MAX / 2]));
    }
}

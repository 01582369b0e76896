//! Tests of frames over the wire, well-formed and malformed.

use proptest::prelude::*;

use super::decoder::MAX_HEAD;
use super::*;

fn all(decoder: &mut Decoder) -> Result<Vec<Frame>, Malformed> {
    std::iter::from_fn(|| decoder.next().transpose()).collect()
}

#[test]
fn frames_as_activemq_sends_them_are_decoded() {
    let mut decoder = Decoder::new(100);
    decoder.push(b"CONNECTED\nserver:ActiveMQ/5.17.2\nheart-beat:5000,5000\nsession:ID:vm-3:2\nversion:1.2\n\n\0\n");
    decoder.push(b"\n\nMESSAGE\nack:ID\\cvm-4\\c1\ncontent-length:3\n\na\0b\0\nMESSAGE\r\nack:2\r\nack:3\r\n\r\nxyz\0");
    let frames = all(&mut decoder).unwrap();
    assert_eq!(frames[0].header("session"), Some("ID:vm-3:2"));
    assert_eq!(
        (frames[1].header("ack"), &frames[1].body[..]),
        (Some("ID:vm-4:1"), &b"a\0b"[..])
    );
    assert_eq!((frames[2].header("ack"), &frames[2].body[..]), (Some("2"), &b"xyz"[..]));
    assert_eq!((frames.len(), decoder.waiting()), (3, 0));
}

#[test]
fn a_body_that_is_too_long_is_passed_over() {
    for length in ["", "content-length:1000\n"] {
        let mut decoder = Decoder::new(10);
        decoder.push(format!("MESSAGE\n{length}\n{}\0MESSAGE\n\nshort\0", "x".repeat(1000)).as_bytes());
        let frames = all(&mut decoder).unwrap();
        assert_eq!((frames[0].body.len(), frames[0].cut), (10, true));
        assert_eq!((&frames[1].body[..], frames[1].cut), (&b"short"[..], false));
    }
}

#[test]
fn malformed_stomp_frames_are_refused() {
    for (bytes, error) in [
        (&b"HTTP/1.1 400 Bad Request\nServer nginx\n\n"[..], Malformed::Header),
        (b"MESSAGE\na:\\t\n\n\0", Malformed::Header),
        (b"MESSAGE\na:\\", Malformed::Head),
        (b"MESSAGE\ncontent-length:-1\n\n\0", Malformed::Length),
        (b"MESSAGE\ncontent-length:1\n\nabc\0", Malformed::End),
        (b"\xff\n\n\0", Malformed::Text),
    ] {
        let mut decoder = Decoder::new(10);
        decoder.push(bytes);
        decoder.push(&vec![b'x'; MAX_HEAD * usize::from(error == Malformed::Head)]);
        assert_eq!(all(&mut decoder), Err(error), "{}", String::from_utf8_lossy(bytes));
    }
}

proptest! {
    /// Frames come out as they went in, with any content and with the bytes cut up in any way.
    #[test]
    fn frames_survive_the_wire(
        frames in proptest::collection::vec(
            (proptest::collection::vec(("\\PC{1,8}|[\\\\:\r\n]{1,4}", "\\PC{0,8}|[\\\\:\r\n]{0,4}"), 0..4), proptest::collection::vec(any::<u8>(), 0..50)),
            1..5,
        ),
        pieces in proptest::collection::vec(1usize..40, 0..30),
    ) {
        let frames: Vec<Frame> = frames.into_iter().map(|(headers, body)| Frame {
            command: "MESSAGE".into(),
            headers: headers.into_iter().filter(|(name, _)| name != "content-length").collect(),
            body,
            cut: false,
        }).collect();
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| [frame.encode(), b"\n".to_vec()].concat()).collect();
        let mut decoder = Decoder::new(50);
        let mut decoded = Vec::new();
        let mut rest = &bytes[..];
        for piece in pieces {
            let (now, later) = rest.split_at(piece.min(rest.len()));
            decoder.push(now);
            decoded.extend(all(&mut decoder).unwrap());
            rest = later;
        }
        decoder.push(rest);
        decoded.extend(all(&mut decoder).unwrap());
        for frame in &mut decoded {
            frame.headers.retain(|(name, _)| name != "content-length");
        }
        prop_assert_eq!(decoded, frames);
    }

    /// Any bytes are survived, and the buffers stay bounded.
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        prop::sample::select(vec![&b"MESSAGE\n"[..], b"\n\n", b"\0", b"content-length:", b"7", b"\\c", b":", b"\r\n"]).prop_map(<[u8]>::to_vec),
    ], 0..60)) {
        let mut decoder = Decoder::new(5);
        decoder.push(&bytes.concat());
        if let Ok(frames) = all(&mut decoder) {
            prop_assert!(frames.iter().all(|frame| frame.body.len() <= 5));
        }
    }
}

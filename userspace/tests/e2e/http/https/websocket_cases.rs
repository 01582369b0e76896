//! Permitted and forbidden frames of a WebSocket's client: the cases of Autobahn's fuzzing client, which is a program
//! of Python 2 and no longer runs anywhere.

/// Most bytes of a message that the host takes.
pub(super) const MAX_MESSAGE: usize = 16 << 20;

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

const FIN: u8 = 0x80;
const MASKED: u8 = 0x80;
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// A client's bytes after the head of the upgrade.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
    /// Code of the close frame that the host ends with; `None` for one without a code.
    pub(super) closes_with: Option<u16>,
    /// Whether each byte is sent separately.
    pub(super) is_chopped: bool,
}

/// A frame with these bits before its opcode.
fn frame_of(bits: u8, opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![bits | opcode];
    match payload.len() {
        short if short < 126 => frame.push(MASKED | short as u8),
        middle if middle <= 0xffff => {
            frame.push(MASKED | 126);
            frame.extend((middle as u16).to_be_bytes());
        }
        long => {
            frame.push(MASKED | 127);
            frame.extend((long as u64).to_be_bytes());
        }
    }
    frame.extend(MASK);
    frame.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    frame_of(FIN, opcode, payload)
}

/// A frame that is not its message's last.
fn part(opcode: u8, payload: &[u8]) -> Vec<u8> {
    frame_of(0, opcode, payload)
}

fn close(code: u16, reason: &[u8]) -> Vec<u8> {
    frame(CLOSE, &[&code.to_be_bytes(), reason].concat())
}

fn case(name: impl Into<String>, frames: &[Vec<u8>], closes_with: impl Into<Option<u16>>) -> Case {
    Case {
        name: name.into(),
        bytes: frames.concat(),
        closes_with: closes_with.into(),
        is_chopped: false,
    }
}

/// A case that the client ends in good order.
fn good(name: impl Into<String>, frames: &[Vec<u8>]) -> Case {
    case(name, &[frames, &[close(1000, b"done")]].concat(), 1000)
}

/// A case that the host ends by a close frame with this code.
fn bad(name: impl Into<String>, frames: &[Vec<u8>], code: u16) -> Case {
    case(name, frames, code)
}

pub(super) fn all() -> Vec<Case> {
    let mut all = Vec::new();
    for length in [0, 1, 125, 126, 127, 128, 65_535, 65_536, 65_537, MAX_MESSAGE] {
        all.push(good(format!("text of {length}"), &[frame(TEXT, &vec![b'*'; length])]));
        all.push(good(
            format!("binary of {length}"),
            &[frame(BINARY, &vec![0xfe; length])],
        ));
    }
    all.extend(fragments());
    all.extend(control());
    all.extend(floods());
    all.extend(closes());
    all.extend(text());
    all.extend(malformed());
    all
}

fn fragments() -> Vec<Case> {
    let pieces = [
        part(TEXT, b"one"),
        part(CONTINUATION, b"two"),
        frame(CONTINUATION, b"three"),
    ];
    let [first, second, last] = pieces.clone();
    let ping = frame(PING, b"between");
    let mut chopped = good("chopped", &[first.clone(), ping.clone(), second.clone(), last.clone()]);
    chopped.is_chopped = true;
    let many: Vec<_> = std::iter::once(part(BINARY, b"0"))
        .chain((0..10_000).map(|n: u32| part(CONTINUATION, &n.to_be_bytes())))
        .chain([frame(CONTINUATION, b"")])
        .collect();
    vec![
        good("fragments", &pieces),
        good(
            "pings between fragments",
            &[first.clone(), ping.clone(), second.clone(), ping, last.clone()],
        ),
        good(
            "empty fragments",
            &[part(TEXT, b""), part(CONTINUATION, b""), frame(CONTINUATION, b"")],
        ),
        good("ten thousand fragments", &many),
        chopped,
        bad("continuation of nothing", &[last], 1002),
        bad("text within a text", &[first, frame(TEXT, b"x")], 1002),
    ]
}

fn control() -> Vec<Case> {
    vec![
        good("empty ping", &[frame(PING, b"")]),
        good("longest ping", &[frame(PING, &[0xfe; 125])]),
        good(
            "pong that nobody asked for",
            &[frame(PONG, b"pong"), frame(PING, b"ping")],
        ),
        bad("ping that is too long", &[frame(PING, &[0; 126])], 1002),
        bad("ping in fragments", &[part(PING, b"a")], 1002),
    ]
}

fn floods() -> Vec<Case> {
    let flood = |opcode| -> Vec<_> { (0..10_000_u32).map(|n| frame(opcode, &n.to_be_bytes())).collect() };
    vec![
        good("flood of pings", &flood(PING)),
        good("flood of pongs", &flood(PONG)),
        good("flood of messages", &flood(BINARY)),
    ]
}

fn closes() -> Vec<Case> {
    let mut all = vec![
        case("close without a code", &[frame(CLOSE, b"")], None),
        case("longest reason", &[close(1000, &[b'*'; 123])], 1000),
        case("data behind the close", &[close(1000, b""), frame(TEXT, b"late")], 1000),
        bad("close of one byte", &[frame(CLOSE, &[3])], 1002),
        bad("reason that is too long", &[close(1000, &[b'*'; 124])], 1002),
        bad("reason that is no UTF-8", &[close(1000, &[0xc0, 0xaf])], 1007),
    ];
    let codes = [
        1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999,
    ];
    all.extend(codes.map(|code| case(format!("close with {code}"), &[close(code, b"")], code)));
    all
}

fn text() -> Vec<Case> {
    let kosme = "κόσμε".as_bytes();
    let mut all = vec![
        good("UTF-8", &[frame(TEXT, kosme)]),
        good(
            "UTF-8 split within a character",
            &[part(TEXT, &kosme[..3]), frame(CONTINUATION, &kosme[3..])],
        ),
        good("bytes that are no text", &[frame(BINARY, &[0xc0, 0xaf])]),
    ];
    let wrong: [(&str, &[u8]); 5] = [
        ("overlong", &[0xc0, 0xaf]),
        ("surrogate", &[0xed, 0xa0, 0x80]),
        ("beyond the last character", &[0xf4, 0x90, 0x80, 0x80]),
        ("cut off", &[0xce]),
        ("no first byte", &[0x80]),
    ];
    all.extend(wrong.map(|(what, bytes)| bad(format!("text that is {what}"), &[frame(TEXT, bytes)], 1007)));
    let (begun, rest) = (part(TEXT, &[0xce]), frame(CONTINUATION, b"x"));
    all.push(bad("text that goes wrong in its second fragment", &[begun, rest], 1007));
    all
}

fn malformed() -> Vec<Case> {
    let mut unmasked = vec![FIN | TEXT, 5];
    unmasked.extend(b"plain");
    let mut all = vec![
        bad("a frame without a mask", &[unmasked], 1002),
        bad(
            "a message that is too long",
            &[frame(BINARY, &vec![0; MAX_MESSAGE + 1])],
            1009,
        ),
    ];
    all.extend([0x40, 0x20, 0x10].map(|bit| {
        bad(
            format!("reserved bit {bit:#x}"),
            &[frame_of(FIN | bit, TEXT, b"x")],
            1002,
        )
    }));
    all.extend([3, 7, 11, 15].map(|opcode| bad(format!("reserved opcode {opcode}"), &[frame(opcode, b"x")], 1002)));
    all
}

//! Large answers over kept connections: the pattern distinguishes a repeated, lost or overtaking byte from one in its
//! place.

use crate::lab;

use std::io::{Read, Write};
use std::net::TcpStream;

use lab::tiers::{BACKEND, start, tiers};
use lab::{Lab, SOON, eventually, lab_test};

/// Longer than tier sockmap lets be under way (1 MiB), as a head and a body of 1 MiB are: the rest of each answer goes
/// by userspace.
const ANSWER: usize = (1 << 20) + 261;

const WORD: usize = 8;
const CONNECTIONS: usize = 4;

/// The bytes of which a connection's answers are parts: each word encodes the connection and the word's place.
struct Pattern(Vec<u8>);

impl Pattern {
    fn new(connection: usize, answers: usize) -> Self {
        let word = |place: usize| ((connection as u64) << 32 | place as u64).to_be_bytes();
        Self((0..answers + ANSWER / WORD + 1).flat_map(word).collect())
    }

    /// An answer, which begins with the word of its number: no two are alike.
    fn answer(&self, number: usize) -> &[u8] {
        &self.0[number * WORD..][..ANSWER]
    }

    /// Describes the origin of wrong bytes in an answer: their first place, and their place in the pattern.
    fn describe(&self, number: usize, bytes: &[u8]) -> String {
        let wrong = |(a, b): (&u8, &u8)| a != b;
        let at = self
            .answer(number)
            .iter()
            .zip(bytes)
            .position(wrong)
            .unwrap_or_default();
        let found = &bytes[at..(at + 4 * WORD).min(bytes.len())];
        let place = self.0.windows(found.len()).position(|window| window == found);
        match place {
            Some(place) => format!(
                "at {at} stands what belongs to {}",
                place as i64 - (number * WORD) as i64
            ),
            None => format!("at {at} stands {found:x?}, which is nowhere in this connection's answers"),
        }
    }
}

/// Answers a connection's requests: these are its number and the number of answers, then a byte for each answer.
fn serve(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut numbers = [0; 2 * WORD];
    stream.read_exact(&mut numbers)?;
    let number = |at: usize| {
        numbers[at..at + WORD]
            .iter()
            .fold(0, |n, &byte| n << 8 | usize::from(byte))
    };
    let answers = number(WORD);
    let pattern = Pattern::new(number(0), answers);
    for number in 0..answers {
        stream.read_exact(&mut [0])?;
        stream.write_all(pattern.answer(number))?;
    }
    Ok(())
}

/// Asks for `answers` answers, one after the other: the error names the first that is wrong.
fn ask(mut stream: &TcpStream, connection: usize, answers: usize) -> Result<(), String> {
    let pattern = Pattern::new(connection, answers);
    let (mut received, mut request) = (vec![0; ANSWER], Vec::new());
    request.extend((connection as u64).to_be_bytes());
    request.extend((answers as u64).to_be_bytes());
    for number in 0..answers {
        let wrong = |what: String| format!("connection {connection}, answer {number} of {answers}: {what}");
        request.push(b'?');
        stream.write_all(&request).map_err(|e| wrong(e.to_string()))?;
        request.clear();
        stream.read_exact(&mut received).map_err(|e| wrong(e.to_string()))?;
        if received != pattern.answer(number) {
            return Err(wrong(pattern.describe(number, &received)));
        }
    }
    Ok(())
}

/// In tier sockmap userspace carries the end of an answer, and the kernel redirects the beginning of the next one. A flow
/// that reads from a leg whose gate can open at any moment sends later bytes ahead of the redirected ones.
#[lab_test]
fn answers_of_a_mebibyte_over_kept_connections_arrive_in_order() {
    let lab = Lab::new();
    let _server = lab::Server::start(lab.host("east-1"), BACKEND, |stream| {
        // A failure here also shows at the client, and is judged there.
        let _ = serve(&stream);
    });
    let (_health, sb) = start(&lab, "");
    for (tier, at) in tiers() {
        let answers = if tier == "sockmap" { 1500 } else { 50 };
        std::thread::scope(|scope| {
            for connection in 1..=CONNECTIONS {
                let client = lab.client.connect(at);
                client.set_nodelay(true).unwrap();
                scope.spawn(move || ask(&client, connection, answers).unwrap_or_else(|e| panic!("{tier}: {e}")));
            }
        });
        let opened = sb.metric(&format!(
            "signalbox_connections_opened_total{{cluster=\"east\",tier=\"{tier}\"}}"
        ));
        assert!(opened >= 1.0, "{tier} is counted");
    }
    let ways = ["redirected", "passed"].map(|way| {
        sb.metric(&format!(
            "signalbox_bpf_exits_total{{program=\"sockmap_verdict\",reason=\"{way}\"}}"
        ))
    });
    let has_sockmap = tiers().any(|(tier, _)| tier == "sockmap");
    assert!(
        !has_sockmap || ways.iter().all(|&n| n > 0.0),
        "both ways were taken: {ways:?}"
    );
    assert!(eventually(SOON, || sb.flow_count() == 0), "no flow is left");
}

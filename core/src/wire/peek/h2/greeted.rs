//! Greeted client: one that was sent SETTINGS before a host has its connection.
//!
//! Clients of gRPC send only preface and SETTINGS until they have heard the server's SETTINGS. An empty SETTINGS frame
//! is valid, and the host's own may follow at any time; but the client acknowledges each of the two, and a host that
//! receives an acknowledgement too many ends the connection. The acknowledgement of the balancer's SETTINGS is
//! therefore removed from the client's stream, which is read and kept until the acknowledgement has come.

use super::PREFACE;
use super::frame::{self, FirstFrame, Header, MAX_PAYLOAD, code, flag, frame_type};
use super::refusal::H2Refusal;
use super::request::{ProtocolError, RequestParser};
use crate::wire::peek::{ClientRequest, PeekParseError, http::MAX_HEAD_BYTES};

/// Most PINGs that are answered before the first request; later ones are the host's to answer.
const MAX_PINGS: u32 = 8;

/// Most bytes of a client's stream that are kept while its acknowledgement is under way. A client can send a request's
/// head and 65 535 bytes of bodies before a server says anything (RFC 9113, section 6.9.2).
const MAX_BUFFERED_BYTES: usize = 128 * 1024;

/// Stream of a client from its first byte until it acknowledges the balancer's SETTINGS.
#[derive(Debug)]
pub struct GreetedClient {
    /// Bytes that have come and belong to the host.
    buffer: Vec<u8>,
    /// Index in `kept` of the first frame that has not been looked at.
    parsed: usize,
    request: RequestParser,
    is_acknowledged: bool,
    /// Mistake of the client, once it has made one.
    broken: Option<ProtocolError>,
    pings: u32,
    /// Bytes to send to the client now.
    output: Vec<u8>,
    bytes_sent: u32,
    bytes_received: u64,
}

impl Default for GreetedClient {
    fn default() -> Self {
        let mut answer = Vec::new();
        frame::write(&mut answer, frame_type::SETTINGS, 0, 0, &[]);
        Self {
            buffer: Vec::new(),
            parsed: PREFACE.len(),
            request: RequestParser::default(),
            is_acknowledged: false,
            broken: None,
            pings: 0,
            output: answer,
            bytes_sent: 0,
            bytes_received: 0,
        }
    }
}

impl GreetedClient {
    /// Takes the next bytes of the client's stream, which begins with the preface.
    ///
    /// # Errors
    ///
    /// The client breaks the protocol and must be refused.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), PeekParseError> {
        self.bytes_received += bytes.len() as u64;
        self.buffer.extend_from_slice(bytes);
        while !self.is_complete() {
            match self.next_frame() {
                Ok(true) => {}
                Ok(false) => break,
                Err(broken) => {
                    self.broken = Some(broken);
                    return Err(broken.error);
                }
            }
        }
        let most = if self.request.client_request.is_some() {
            MAX_BUFFERED_BYTES
        } else {
            MAX_HEAD_BYTES
        };
        if !self.is_complete() && self.buffer.len() >= most {
            return Err(PeekParseError::TooLarge);
        }
        Ok(())
    }

    /// Looks at the next frame; false where the frame is not whole.
    fn next_frame(&mut self) -> Result<bool, ProtocolError> {
        let (header, payload) = match frame::first_frame(self.buffer.get(self.parsed..).unwrap_or_default()) {
            FirstFrame::Incomplete => return Ok(false),
            FirstFrame::Partial(header) => return check_frame(&mut self.request, &header).map(|()| false),
            FirstFrame::Whole(header, payload) => (header, payload),
        };
        check_frame(&mut self.request, &header)?;
        let end = self.parsed + frame::HEADER + header.len;
        if is_acknowledgement(&header) && !self.is_acknowledged {
            self.is_acknowledged = true;
            self.buffer.drain(self.parsed..end);
        } else if is_ping(&header) && self.request.may_await_settings() && self.pings < MAX_PINGS {
            // A client may wait for the answer to its PING before it sends a request.
            self.pings += 1;
            frame::write(&mut self.output, frame_type::PING, flag::ACK, 0, payload);
            self.buffer.drain(self.parsed..end);
        } else {
            if self.request.client_request.is_none() {
                self.request.push_frame(&header, payload)?;
            }
            self.parsed = end;
        }
        Ok(true)
    }

    /// Takes out the bytes to send to the client now.
    pub fn take_output(&mut self) -> Vec<u8> {
        self.bytes_sent += self.output.len() as u32;
        std::mem::take(&mut self.output)
    }

    /// Whether the connection can be given to a host: the client's request is known, and its acknowledgement has come.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.is_acknowledged && self.request.client_request.is_some()
    }

    /// Name that the client asks for; `None` while it is not known.
    #[must_use]
    pub const fn client_request(&self) -> Option<&ClientRequest> {
        self.request.client_request.as_ref()
    }

    /// Bytes that refuse the client.
    #[must_use]
    pub fn refusal(&self, refusal: &H2Refusal<'_>) -> Vec<u8> {
        let mut out = self.output.clone();
        refusal.append(&mut out, &self.request, self.broken);
        out
    }

    /// Traffic before a host has the connection: the client's stream for the host, the number of bytes taken off that
    /// stream, and the number of bytes sent to the client.
    #[must_use]
    pub fn handoff(&self) -> (&[u8], u64, u32) {
        (&self.buffer, self.bytes_received, self.bytes_sent)
    }
}

fn is_acknowledgement(header: &Header) -> bool {
    header.frame_type == frame_type::SETTINGS && header.has(flag::ACK)
}

fn is_ping(header: &Header) -> bool {
    header.frame_type == frame_type::PING && !header.has(flag::ACK) && (header.len, header.stream) == (8, 0)
}

/// Checks a frame's header, whose payload need not be there.
fn check_frame(request: &mut RequestParser, header: &Header) -> Result<(), ProtocolError> {
    if request.client_request.is_none() {
        request.check_header(header)?;
    }
    if header.len > MAX_PAYLOAD {
        return Err(ProtocolError::connection(
            code::FRAME_SIZE_ERROR,
            "a frame that is too large",
        ));
    }
    if is_acknowledgement(header) && header.len > 0 {
        return Err(ProtocolError::connection(
            code::FRAME_SIZE_ERROR,
            "an acknowledgement that has SETTINGS of its own",
        ));
    }
    if is_acknowledgement(header) && header.stream > 0 {
        return Err(ProtocolError::connection(code::PROTOCOL_ERROR, "SETTINGS of a stream"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{REQUEST, SETTINGS, message};
    use super::*;
    use crate::wire::hostname::Hostname;

    type Frame = (u8, u8, u32, &'static [u8]);

    const ACK: Frame = (frame_type::SETTINGS, flag::ACK, 0, b"");
    const HEADERS: Frame = (frame_type::HEADERS, flag::END_HEADERS, 1, REQUEST);
    const PING: Frame = (frame_type::PING, 0, 0, b"12345678");
    const WINDOW_UPDATE: Frame = (8, 0, 0, b"\0\0\0\x09");
    const PRIORITY: Frame = (2, 0, 3, b"\0\0\0\0\x10");
    const DATA: Frame = (
        frame_type::DATA,
        0,
        1,
        b"some of the body, and the bytes of an ACK: \0\0\0\x04\x01\0\0\0\0",
    );
    const SOME_SETTINGS: Frame = (frame_type::SETTINGS, 0, 0, b"\0\x03\0\0\0\x64");

    fn bytes(frames: &[Frame]) -> Vec<u8> {
        message(frames)[PREFACE.len()..].to_vec()
    }

    /// Bytes sent to a client, and bytes of its stream for the host.
    type Passed = (Vec<u8>, Vec<u8>);

    /// Feeds a client's stream in pieces that end at `cuts`. Bytes still in the socket go to the host too. `None`: the
    /// stream is not complete.
    fn hear(whole: &[u8], cuts: &[usize]) -> Result<Option<Passed>, PeekParseError> {
        let (mut greeted, mut answers, mut from) = (GreetedClient::default(), Vec::new(), 0);
        for to in cuts
            .iter()
            .copied()
            .chain([whole.len()])
            .filter(|to| *to <= whole.len())
        {
            greeted.receive(&whole[from..to.max(from)])?;
            answers.extend(greeted.take_output());
            from = to.max(from);
            if greeted.is_complete() {
                assert_eq!(
                    greeted.client_request().unwrap().hostname,
                    Some(Hostname::parse(b"a.test").unwrap())
                );
                let (kept, taken, said) = greeted.handoff();
                assert_eq!((taken, said), (from as u64, answers.len() as u32));
                return Ok(Some((answers, [kept, &whole[from..]].concat())));
            }
        }
        Ok(None)
    }

    fn check(frames: &[Frame], expected: &[Frame], answers: &[Frame]) {
        let whole = message(frames);
        for cuts in [vec![], (1..whole.len()).collect::<Vec<_>>(), vec![PREFACE.len() + 9]] {
            let (said, stream) = hear(&whole, &cuts).unwrap().unwrap();
            assert_eq!(stream, message(expected), "{frames:?}");
            assert_eq!(said, bytes(answers), "{frames:?}");
        }
    }

    #[test]
    fn exactly_one_settings_ack_is_removed_before_or_after_headers() {
        check(&[SETTINGS, ACK, HEADERS], &[SETTINGS, HEADERS], &[SETTINGS]);
        check(&[SETTINGS, HEADERS, ACK], &[SETTINGS, HEADERS], &[SETTINGS]);
        check(
            &[SETTINGS, HEADERS, DATA, ACK, DATA],
            &[SETTINGS, HEADERS, DATA, DATA],
            &[SETTINGS],
        );
        check(&[SETTINGS, ACK, ACK, HEADERS], &[SETTINGS, ACK, HEADERS], &[SETTINGS]);
        check(
            &[SETTINGS, SOME_SETTINGS, WINDOW_UPDATE, ACK, PRIORITY, HEADERS],
            &[SETTINGS, SOME_SETTINGS, WINDOW_UPDATE, PRIORITY, HEADERS],
            &[SETTINGS],
        );
    }

    #[test]
    fn a_ping_before_the_request_is_answered_and_a_later_one_passed() {
        let answer: Frame = (frame_type::PING, flag::ACK, 0, b"12345678");
        check(
            &[SETTINGS, PING, ACK, HEADERS],
            &[SETTINGS, HEADERS],
            &[SETTINGS, answer],
        );
        check(&[SETTINGS, HEADERS, PING, ACK], &[SETTINGS, HEADERS, PING], &[SETTINGS]);
        let many = vec![PING; MAX_PINGS as usize + 2];
        let frames = [&[SETTINGS][..], &many, &[ACK, HEADERS]].concat();
        let answers = [&[SETTINGS][..], &vec![answer; MAX_PINGS as usize]].concat();
        check(&frames, &[SETTINGS, PING, PING, HEADERS], &answers);
    }

    #[test]
    fn a_misplaced_or_malformed_settings_ack_is_an_error() {
        for (frame, code) in [
            (
                (frame_type::SETTINGS, flag::ACK, 0, &b"123456"[..]),
                code::FRAME_SIZE_ERROR,
            ),
            ((frame_type::SETTINGS, flag::ACK, 3, b""), code::PROTOCOL_ERROR),
        ] {
            for frames in [&[SETTINGS, frame, HEADERS][..], &[SETTINGS, HEADERS, frame]] {
                let mut greeted = GreetedClient::default();
                assert!(matches!(
                    greeted.receive(&message(frames)),
                    Err(PeekParseError::Malformed(_))
                ));
                assert_eq!(greeted.broken.unwrap().code, code);
            }
        }
        assert!(
            hear(&message(&[ACK, HEADERS]), &[]).is_err(),
            "the first SETTINGS are no acknowledgement"
        );
        let in_a_block: &[Frame] = &[SETTINGS, (frame_type::HEADERS, 0, 1, b"\x82"), ACK];
        assert!(hear(&message(in_a_block), &[]).is_err());
        assert!(hear(&message(&[SETTINGS, HEADERS, PING, DATA]), &[]).unwrap().is_none());
    }

    #[test]
    fn a_client_that_does_not_acknowledge_is_not_kept_for_ever() {
        let mut greeted = GreetedClient::default();
        greeted.receive(&message(&[SETTINGS, HEADERS])).unwrap();
        let mut data = bytes(&[(frame_type::DATA, 0, 1, &[7; MAX_PAYLOAD])]);
        for _ in 0..4 {
            greeted.receive(&data).unwrap();
        }
        assert!((0..8).any(|_| greeted.receive(&data) == Err(PeekParseError::TooLarge)));
        data.clear();
        let mut greeted = GreetedClient::default();
        greeted.receive(&message(&[SETTINGS])).unwrap();
        let updates = bytes(&[WINDOW_UPDATE; 100]);
        assert!(
            (0..MAX_HEAD_BYTES / updates.len() + 1).any(|_| greeted.receive(&updates) == Err(PeekParseError::TooLarge))
        );
    }

    fn any_frame() -> impl Strategy<Value = Frame> {
        prop::sample::select(vec![
            WINDOW_UPDATE,
            PRIORITY,
            SOME_SETTINGS,
            PING,
            (0xee, 0xff, 9, b"unknown"),
        ])
    }

    proptest! {
        /// Nothing is lost, however a client's stream is cut and wherever the acknowledgement is: the host gets
        /// everything except that acknowledgement and the answered PINGs.
        #[test]
        fn nothing_else_is_lost(
            before in prop::collection::vec(any_frame(), 0..6),
            after in prop::collection::vec(prop_oneof![any_frame(), Just(DATA), Just(ACK)], 0..6),
            at in 0usize..14,
            cuts in prop::collection::btree_set(0usize..400, 0..12),
        ) {
            let mut frames = [&[SETTINGS][..], &before, &[HEADERS], &after].concat();
            frames.insert((1 + at).min(frames.len()), ACK);
            let request = frames.iter().position(|frame| *frame == HEADERS).unwrap();
            let pings = before.iter().filter(|frame| **frame == PING).count();
            let mut expected = frames.clone();
            expected.remove(frames.iter().position(|frame| *frame == ACK).unwrap());
            let mut seen = 0;
            expected.retain(|frame| {
                seen += usize::from(*frame == PING);
                *frame != PING || seen > pings
            });
            prop_assert!(request > 0);
            let cuts: Vec<usize> = cuts.into_iter().collect();
            let (said, stream) = hear(&message(&frames), &cuts).unwrap().unwrap();
            prop_assert_eq!(stream, message(&expected));
            prop_assert_eq!(said.len(), 9 + 17 * pings);
        }
    }
}

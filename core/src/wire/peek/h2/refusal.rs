//! Refusal of an HTTP/2 client: a whole response on the stream of its first request, then the end of the connection.

use super::frame::{code, flag, frame_type, write};
use super::request::{ProtocolError, RequestParser};
use super::scan;
use crate::wire::peek::PeekParseError;

/// Response and error code that refuse a client.
#[derive(Clone, Copy, Debug)]
pub struct H2Refusal<'a> {
    /// Status code of the response.
    pub status: u16,
    /// Reason as a sentence.
    pub text: &'a str,
    /// Error code of the connection, one of [`code`], where the client's frames are in order.
    pub code: u32,
}

impl H2Refusal<'_> {
    /// Bytes that refuse a client that has sent `bytes` and has been sent nothing yet.
    #[must_use]
    pub fn for_ungreeted(&self, bytes: &[u8]) -> Vec<u8> {
        let mut head = RequestParser::default();
        let broken = scan(&mut head, bytes).err();
        let mut out = Vec::new();
        write(&mut out, frame_type::SETTINGS, 0, 0, &[]);
        self.append(&mut out, &head, broken);
        out
    }

    /// Appends everything that follows the balancer's SETTINGS.
    pub(super) fn append(&self, out: &mut Vec<u8>, request: &RequestParser, broken: Option<ProtocolError>) {
        //= https://www.rfc-editor.org/rfc/rfc9113#section-6.5.3
        //# the recipient MUST immediately emit a SETTINGS frame with the ACK flag set
        for _ in 0..request.settings {
            write(out, frame_type::SETTINGS, flag::ACK, 0, &[]);
        }
        let broken = broken.filter(|broken| broken.code != code::NO_ERROR);
        let answered = request.stream.filter(|_| broken.is_none());
        if let Some(stream) = answered {
            self.respond(out, stream, request.is_head);
        }
        let (code, why) = broken.map_or((self.code, ""), |broken| match broken.error {
            PeekParseError::Malformed(what) => (broken.code, what),
            PeekParseError::TooLarge | PeekParseError::WrongProtocol | PeekParseError::PlainHttp => (broken.code, ""),
        });
        let mut end = answered.unwrap_or_default().to_be_bytes().to_vec();
        end.extend_from_slice(&code.to_be_bytes());
        end.extend_from_slice(why.as_bytes());
        write(out, frame_type::GOAWAY, 0, 0, &end);
    }

    /// Appends a whole response. RST_STREAM does not stop an unfinished request: curl 7.88 would throw the response
    /// away, though it must not (RFC 9113, section 8.1).
    fn respond(&self, out: &mut Vec<u8>, stream: u32, is_head: bool) {
        let (status, body) = (self.status.to_string(), format!("{}\n", self.text));
        let length = body.len().to_string();
        let fields = [
            (":status", status.as_str()),
            ("content-type", "text/plain; charset=utf-8"),
            ("content-length", &length),
            ("cache-control", "no-store"),
        ];
        // An empty table is allowed by any SETTINGS of the client, but must be announced (RFC 7541, section 4.2).
        let mut block = vec![0x20];
        // The static table has all these names, so that nothing is put into the dynamic one.
        let encoded =
            loona_hpack::Encoder::new().encode(fields.map(|(name, value)| (name.as_bytes(), value.as_bytes())));
        block.extend_from_slice(&encoded);
        if is_head {
            write(
                out,
                frame_type::HEADERS,
                flag::END_HEADERS | flag::END_STREAM,
                stream,
                &block,
            );
        } else {
            write(out, frame_type::HEADERS, flag::END_HEADERS, stream, &block);
            write(out, frame_type::DATA, flag::END_STREAM, stream, body.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{REQUEST, SETTINGS, message};
    use super::super::{GreetedClient, PREFACE, frame};
    use super::*;

    const NOT_FOUND: H2Refusal<'_> = H2Refusal {
        status: 404,
        text: "Nothing here.",
        code: code::NO_ERROR,
    };

    /// Kind, flags, stream and payload of each frame.
    fn frames(mut bytes: &[u8]) -> Vec<(u8, u8, u32, Vec<u8>)> {
        let mut frames = Vec::new();
        while let frame::FirstFrame::Whole(header, payload) = frame::first_frame(bytes) {
            frames.push((header.frame_type, header.flags, header.stream, payload.to_vec()));
            bytes = &bytes[frame::HEADER + header.len..];
        }
        assert!(bytes.is_empty(), "left over: {bytes:?}");
        frames
    }

    fn goaway(stream: u8, code: u8) -> (u8, u8, u32, Vec<u8>) {
        (frame_type::GOAWAY, 0, 0, vec![0, 0, 0, stream, 0, 0, 0, code])
    }

    fn check_response(frames: &[(u8, u8, u32, Vec<u8>)], stream: u32) {
        assert_eq!(
            (frames[0].0, frames[0].1, frames[0].2),
            (frame_type::HEADERS, flag::END_HEADERS, stream)
        );
        let fields = loona_hpack::Decoder::new().decode(&frames[0].3).unwrap();
        assert_eq!(fields[0], (b":status".to_vec(), b"404".to_vec()));
        assert!(fields.contains(&(b"content-length".to_vec(), b"14".to_vec())));
        assert_eq!(
            frames[1],
            (frame_type::DATA, flag::END_STREAM, stream, b"Nothing here.\n".to_vec())
        );
    }

    #[test]
    fn a_refused_request_gets_a_response_on_its_stream_and_goaway() {
        let ended = flag::END_HEADERS | flag::END_STREAM;
        let answer = frames(&NOT_FOUND.for_ungreeted(&message(&[
            SETTINGS,
            SETTINGS,
            (frame_type::HEADERS, ended, 5, REQUEST),
        ])));
        assert_eq!(answer[0], (frame_type::SETTINGS, 0, 0, vec![]));
        for acknowledgement in &answer[1..3] {
            assert_eq!(*acknowledgement, (frame_type::SETTINGS, flag::ACK, 0, vec![]));
        }
        check_response(&answer[3..], 5);
        assert_eq!(answer[5..], [goaway(5, 0)]);
    }

    #[test]
    fn an_unfinished_request_is_refused_and_a_head_gets_no_body() {
        let posted = message(&[SETTINGS, (frame_type::HEADERS, flag::END_HEADERS, 1, REQUEST)]);
        let answer = frames(&NOT_FOUND.for_ungreeted(&posted));
        check_response(&answer[2..], 1);
        assert_eq!(answer[4..], [goaway(1, 0)]);
        let ended = flag::END_HEADERS | flag::END_STREAM;
        let head = message(&[
            SETTINGS,
            (frame_type::HEADERS, ended, 1, b"\x02\x04HEAD\x86\x84\x41\x06a.test"),
        ]);
        let answer = frames(&NOT_FOUND.for_ungreeted(&head));
        assert_eq!((answer[2].0, answer[2].1), (frame_type::HEADERS, ended));
        assert_eq!(answer[3..], [goaway(1, 0)]);
    }

    #[test]
    fn a_refusal_sends_no_second_settings_to_a_greeted_client() {
        let mut greeted = GreetedClient::default();
        let ended = flag::END_HEADERS | flag::END_STREAM;
        greeted.receive(&message(&[SETTINGS])).unwrap();
        assert_eq!(frames(&greeted.take_output()), [(frame_type::SETTINGS, 0, 0, vec![])]);
        assert_eq!(
            frames(&greeted.refusal(&NOT_FOUND)),
            [(frame_type::SETTINGS, flag::ACK, 0, vec![]), goaway(0, 0)],
            "nothing has been asked"
        );
        greeted
            .receive(&message(&[(frame_type::HEADERS, ended, 1, REQUEST)])[PREFACE.len()..])
            .unwrap();
        let answer = frames(&greeted.refusal(&NOT_FOUND));
        check_response(&answer[1..], 1);
        assert_eq!(answer[3..], [goaway(1, 0)]);
    }

    #[test]
    fn frames_out_of_order_end_the_connection_with_their_code() {
        let headers = flag::END_HEADERS;
        for (frames_in, code) in [
            (&[(frame_type::HEADERS, headers, 1, REQUEST)][..], code::PROTOCOL_ERROR),
            (
                &[SETTINGS, (frame_type::HEADERS, headers, 1, b"\xff\xff\xff\xff")],
                code::COMPRESSION_ERROR,
            ),
            (
                &[SETTINGS, (frame_type::CONTINUATION, headers, 1, REQUEST)],
                code::PROTOCOL_ERROR,
            ),
        ] {
            let answer = frames(&NOT_FOUND.for_ungreeted(&message(frames_in)));
            let (last, before) = answer.split_last().unwrap();
            assert_eq!(
                (last.0, &last.3[..8]),
                (frame_type::GOAWAY, &[0, 0, 0, 0, 0, 0, 0, code as u8][..])
            );
            assert!(last.3.len() > 8, "it is said what was wrong");
            assert!(before.iter().all(|frame| frame.0 == frame_type::SETTINGS), "{before:?}");
        }
        let mut large = message(&[SETTINGS]);
        large.extend([0, 0x40, 1, 0, 0, 0, 0, 0, 1]);
        let answer = frames(&NOT_FOUND.for_ungreeted(&large));
        assert_eq!(answer.last(), Some(&goaway(0, code::FRAME_SIZE_ERROR as u8)));
        // A request that alone is wrong gets an answer.
        let twice = message(&[SETTINGS, (frame_type::HEADERS, headers, 1, b"\x41\x01a\x41\x01a")]);
        let answer = frames(&NOT_FOUND.for_ungreeted(&twice));
        check_response(&answer[2..], 1);
    }

    #[test]
    fn part_of_a_preface_is_answered_too() {
        assert_eq!(
            frames(&NOT_FOUND.for_ungreeted(&PREFACE[..10])),
            [(frame_type::SETTINGS, 0, 0, vec![]), goaway(0, 0)]
        );
    }
}

//! The host's side of an exchange: the answer on its way to the client, and bytes that wait for the host.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use h2::Reason;
use signalbox_core::routing::last_request::LastRequestObstacle;
use signalbox_core::wire::http::authentication::authenticates_connection;
use signalbox_core::wire::http1::chunked::NO_TRAILERS;
use signalbox_core::wire::http1::edit::{self, FieldEdit, FieldName, ResponseRewrite};
use signalbox_core::wire::http1::framing::{self, AnswerKind, BodyLength};
use signalbox_core::wire::http1::grammar::elements;
use signalbox_core::wire::http1::head::{ResponseHead, Version};
use signalbox_core::wire::http1::limits::MessageLimits;
use signalbox_core::wire::http1::method::Method;
use signalbox_core::wire::http1::parse::{self, HeadArrival};
use signalbox_core::wire::http1::repair;
use signalbox_core::wire::http1::turn::{AnswerAction, AnswerFacts, NextStep, Turn, TurnEvent};
use tokio::io::ReadBuf;

use super::body::Body;
use super::carry::{MAX_READS_IN_A_ROW, Pumped};
use super::websocket;
use crate::datapath::http::leg::Leg;
use crate::datapath::http::leg::buffered::BufferedLeg;
use crate::datapath::http::leg::http2;
use crate::datapath::scratch::with_scratch;
use crate::state::ClusterState;
use crate::state::outcome::Ineligible;

/// Minimum length of an answer whose rest is cut: the pause costs as much time as some MiB on a fast network.
const MIN_LONG_ANSWER_BYTES: u64 = 8 << 20;

/// Fields that announce chunks in an answer, which an HTTP/1.0 client cannot read.
const CHUNK_FIELDS: [FieldName; 2] = [FieldName::constant("Transfer-Encoding"), FieldName::constant("Trailer")];

/// Changes of an answer's fields for a client's HTTP version.
pub(in crate::datapath::http) fn version_edits(version: Version) -> impl Iterator<Item = FieldEdit> {
    let removed = CHUNK_FIELDS.into_iter().filter(move |_| version == Version::Http10);
    removed.map(FieldEdit::Remove)
}

/// Facts about the request that are needed to read its answer.
pub(in crate::datapath::http) struct Asked {
    pub(in crate::datapath::http) method: Method,
    /// Whether the client takes trailers.
    pub(in crate::datapath::http) takes_trailers: bool,
    pub(in crate::datapath::http) limits: MessageLimits,
    /// Changes of the answer's fields, the same for every host.
    pub(in crate::datapath::http) fields: Vec<FieldEdit>,
    /// Expected answer of the host to the WebSocket key, if the client asked for a WebSocket in HTTP/2.
    pub(in crate::datapath::http) websocket_accept: Option<String>,
    /// Protocols offered to the host in place of HTTP.
    pub(in crate::datapath::http) upgrades: Vec<Box<[u8]>>,
}

impl Asked {
    /// Whether an answer switches to a protocol that was not among those offered to the host.
    fn is_other_protocol(&self, head: &ResponseHead, bytes: &[u8]) -> bool {
        let is_offered = |protocol: &[u8]| {
            self.upgrades
                .iter()
                .any(|offered| offered.eq_ignore_ascii_case(protocol))
        };
        let mut chosen = head.fields.values(bytes, "upgrade").flat_map(elements);
        head.status == 101 && !self.upgrades.is_empty() && !chosen.all(is_offered)
    }
}

/// The host's side of an exchange.
pub(in crate::datapath::http) struct HostSide {
    /// Bytes that were read and are not used yet are of an incomplete head; after a 101, the first bytes of the tunnel.
    pub(in crate::datapath::http) leg: BufferedLeg,
    /// Status code of the answer, once its head has been passed on.
    pub(in crate::datapath::http) status: Option<u16>,
    /// Whether the connection belongs to this client alone, because the answer asks it to authenticate the connection.
    pub(in crate::datapath::http) is_personal: bool,
    /// The host's cluster, if an answer is repaired that breaks rules which other software ignores.
    pub(in crate::datapath::http) repairs: Option<Arc<ClusterState>>,
    /// Whether the answer has been repaired.
    is_repaired: bool,
    /// Changes of the answer's fields.
    fields: Vec<FieldEdit>,
    arrival: HeadArrival,
    /// `None` until the final head has arrived.
    body: Option<Body>,
    /// Whether the rest of a long answer may be cut, or why not. `None` if no cut is wanted.
    pub(in crate::datapath::http) long_cut: Option<Result<(), Ineligible>>,
    /// Whether the answer is so long that its rest is worth a cut.
    pub(in crate::datapath::http) is_long: bool,
    /// Whether the host refused the stream (REFUSED_STREAM), rather than ending its connection.
    pub(in crate::datapath::http) has_refused_stream: bool,
}

impl HostSide {
    pub(in crate::datapath::http) fn new(stream: Leg, fields: Vec<FieldEdit>) -> Self {
        Self {
            leg: BufferedLeg::new(stream, Vec::new()),
            fields,
            status: None,
            is_personal: false,
            repairs: None,
            is_repaired: false,
            arrival: HeadArrival::default(),
            body: None,
            long_cut: None,
            is_long: false,
            has_refused_stream: false,
        }
    }

    /// Number of bytes of the answer still to come from the host, if its length is known.
    pub(in crate::datapath::http) const fn left(&self) -> Option<u64> {
        match &self.body {
            Some(Body::Known(left)) => Some(*left),
            _ => None,
        }
    }

    /// Whether the answer has begun and has no known length.
    pub(super) const fn is_open_ended(&self) -> bool {
        matches!(self.body, Some(Body::Chunked(_) | Body::UntilClose))
    }

    /// Passes the answer on as far as possible.
    pub(super) fn pump(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut BufferedLeg,
        turn: &mut Turn,
        asked: &Asked,
    ) -> Pumped {
        for _ in 0..MAX_READS_IN_A_ROW {
            match client.flush(cx) {
                Ok(true) => {}
                Ok(false) => return Pumped::Waiting,
                Err(_) => {
                    turn.on(TurnEvent::ClientFailed);
                    return Pumped::Waiting;
                }
            }
            if self.body.as_ref().is_some_and(Body::is_ended) {
                turn.on(TurnEvent::AnswerEnded);
            }
            if !matches!(turn.next(), NextStep::Exchange { .. }) || !self.read(cx, client, turn, asked) {
                return Pumped::Waiting;
            }
        }
        Pumped::Yielded
    }

    /// Reads once. Returns false if there is nothing to read or the exchange ends.
    fn read(&mut self, cx: &mut Context<'_>, client: &mut BufferedLeg, turn: &mut Turn, asked: &Asked) -> bool {
        if let Some(is_read) = self.splice(cx, client, turn) {
            return is_read;
        }
        with_scratch(|scratch| {
            let mut buf = ReadBuf::new(scratch);
            let event = match self.leg.stream.poll_read(cx, &mut buf) {
                Poll::Pending => return false,
                Poll::Ready(Err(error)) => self.failed(&error, client),
                Poll::Ready(Ok(())) if buf.filled().is_empty() => TurnEvent::HostClosed {
                    is_clean: !self.leg.has_stopped(),
                },
                Poll::Ready(Ok(())) => {
                    self.take(buf.filled(), client, turn, asked);
                    return true;
                }
            };
            turn.on(event);
            false
        })
    }

    /// Reads once as [`Self::read`] does, but into a pipe. `None` if the bytes must be parsed.
    fn splice(&mut self, cx: &mut Context<'_>, client: &mut BufferedLeg, turn: &mut Turn) -> Option<bool> {
        let most = self.body.as_ref()?.unseen()?;
        let event = match client.poll_splice(cx, &self.leg.stream, most)? {
            Poll::Pending => return Some(false),
            Poll::Ready(Err(_)) => TurnEvent::HostFailed,
            Poll::Ready(Ok(0)) => TurnEvent::HostClosed {
                is_clean: !self.leg.has_stopped(),
            },
            Poll::Ready(Ok(n)) => {
                self.body.as_mut()?.count_unseen(n as u64);
                return Some(true);
            }
        };
        turn.on(event);
        Some(false)
    }

    /// Event for an error of the host's connection or stream.
    fn failed(&mut self, error: &io::Error, client: &mut BufferedLeg) -> TurnEvent {
        let reason = http2::reset_reason(error);
        self.has_refused_stream = reason == Some(Reason::REFUSED_STREAM);
        if let (Some(reason), Leg::Stream(stream)) = (reason, &mut client.stream) {
            stream.set_reset_reason(reason);
        }
        match error.kind() {
            _ if !self.leg.stream.is_stream() => TurnEvent::HostFailed,
            _ if http2::is_refused(error) => TurnEvent::HostRefused,
            io::ErrorKind::InvalidData => TurnEvent::HostMalformed,
            // HTTP/2 cannot express the request.
            io::ErrorKind::InvalidInput => TurnEvent::ClientMalformed,
            _ => TurnEvent::HostFailed,
        }
    }

    fn take(&mut self, bytes: &[u8], client: &mut BufferedLeg, turn: &mut Turn, asked: &Asked) {
        if self.body.is_some() {
            self.pass(bytes, client, turn, asked);
        } else if self.leg.ahead.is_empty() {
            self.heads(bytes, client, turn, asked);
        } else {
            let mut all = std::mem::take(&mut self.leg.ahead);
            all.extend_from_slice(bytes);
            if self.arrival.is_due(&all, &asked.limits) {
                self.heads(&all, client, turn, asked);
            } else {
                self.leg.ahead = all;
            }
        }
    }

    /// Passes on heads: those of interim answers, and the final one.
    fn heads(&mut self, mut bytes: &[u8], client: &mut BufferedLeg, turn: &mut Turn, asked: &Asked) {
        while !bytes.is_empty() {
            let (text, used) = self.next_text(bytes, &asked.limits);
            let parsed = parse::response(&text, &asked.limits);
            let Ok(Some(head)) = parsed else {
                turn.on(match parsed {
                    Ok(_) => TurnEvent::AnswerBytes,
                    Err(_) => TurnEvent::HostMalformed,
                });
                self.leg.ahead = bytes.to_vec();
                return;
            };
            let Ok(kind) = framing::answer(&head, &text, asked.method) else {
                turn.on(TurnEvent::HostMalformed);
                return;
            };
            let expected = asked.websocket_accept.as_deref();
            let is_no_websocket = expected.is_some_and(|expected| !websocket::is_right(&head, &text, expected));
            if is_no_websocket || asked.is_other_protocol(&head, &text) {
                turn.on(TurnEvent::HostMalformed);
                return;
            }
            if used.is_some_and(|used| *text != bytes[..used]) {
                self.note_repair();
            }
            self.note_length(kind, client, turn);
            match turn.answer_head(AnswerFacts::new(&head, kind)) {
                AnswerAction::Refuse => return,
                AnswerAction::Drop => {}
                AnswerAction::Pass(connection) => {
                    let is_interim = matches!(kind, AnswerKind::Interim);
                    let fields = if is_interim { &[] } else { &self.fields[..] };
                    let edited = edit::response(&head, &text, &ResponseRewrite { fields, connection });
                    edited.slices(&text).for_each(|slice| client.outbox.push(slice));
                }
            }
            self.is_personal |= head
                .fields
                .values(&text, "www-authenticate")
                .any(authenticates_connection);
            bytes = &bytes[used.unwrap_or_else(|| head.range.end())..];
            self.arrival = HeadArrival::default();
            match kind {
                AnswerKind::Interim => {}
                AnswerKind::Final(length) => {
                    self.status = Some(head.status);
                    self.body = Some(Body::of_answer(length, &asked.limits, self.repairs.is_some()));
                    return self.pass(bytes, client, turn, asked);
                }
                AnswerKind::SwitchingProtocols | AnswerKind::Tunnel => {
                    self.status = Some(head.status);
                    self.leg.ahead = bytes.to_vec();
                    return;
                }
            }
        }
    }

    /// Text of the next head at the start of some bytes. If it was repaired, also how many of the bytes it replaces.
    fn next_text<'b>(&self, bytes: &'b [u8], limits: &MessageLimits) -> (Cow<'b, [u8]>, Option<usize>) {
        match self.repairs.as_ref().map(|_| repair::answer_head(bytes)) {
            Some(Some((text, used))) => (text.into(), Some(used)),
            // The line to repair may not have arrived yet.
            Some(None) if bytes.len() < limits.head_bytes => (Cow::default(), None),
            _ => (bytes.into(), None),
        }
    }

    /// Decides whether the rest of the answer is to be cut. If so, the client is told that its connection ends with
    /// this answer: a cut flow carries no further request.
    fn note_length(&mut self, kind: AnswerKind, client: &BufferedLeg, turn: &mut Turn) {
        let Some(long_cut) = &mut self.long_cut else { return };
        if !is_long(kind) {
            return;
        }
        self.is_long = true;
        if !turn.is_request_ended() {
            *long_cut = Err(Ineligible::LastRequest(LastRequestObstacle::BodyOutstanding));
        } else if let (Ok(()), Some(why)) = (&*long_cut, client.said_more()) {
            *long_cut = Err(Ineligible::LastRequest(why));
        }
        if long_cut.is_ok() {
            turn.close_client();
        }
    }

    /// Counts the answer as repaired, once.
    fn note_repair(&mut self) {
        if let Some(cluster) = self.repairs.as_ref().filter(|_| !self.is_repaired) {
            cluster.repaired_answers.inc();
            self.is_repaired = true;
        }
    }

    /// Passes bytes of the body on.
    fn pass(&mut self, mut bytes: &[u8], client: &mut BufferedLeg, turn: &mut Turn, asked: &Asked) {
        if turn.takes_chunks_apart() {
            return self.pass_apart(bytes, client, turn);
        }
        while let Some(used) = self.pass_piece(bytes, client, turn, asked) {
            bytes = &bytes[used..];
            if bytes.is_empty() {
                return;
            }
        }
    }

    /// Passes the next bytes of the body on. Returns how many belong to it if it goes on after them.
    fn pass_piece(&mut self, bytes: &[u8], client: &mut BufferedLeg, turn: &mut Turn, asked: &Asked) -> Option<usize> {
        let body = self.body.as_mut()?;
        let Ok(piece) = body.take(bytes) else {
            turn.on(TurnEvent::HostMalformed);
            return None;
        };
        let is_ended = body.is_ended();
        if is_ended && piece.used < bytes.len() {
            turn.on(TurnEvent::HostExtraBytes);
        }
        if piece.is_repaired {
            self.note_repair();
        }
        if is_ended && self.pass_trailers(&mut client.stream).is_err() {
            turn.on(TurnEvent::HostMalformed);
            return None;
        }
        if client.send(&bytes[..piece.pass]).is_err() {
            turn.on(TurnEvent::ClientFailed);
        }
        if let Some(trailers) = piece.trailers {
            let wanted: &[u8] = if asked.takes_trailers { &trailers } else { NO_TRAILERS };
            client.outbox.push(wanted);
        }
        (!is_ended).then_some(piece.used)
    }

    /// Passes on the data of a chunked body.
    fn pass_apart(&mut self, bytes: &[u8], client: &mut BufferedLeg, turn: &mut Turn) {
        let Some(body) = &mut self.body else { return };
        let mut data = Vec::with_capacity(bytes.len());
        let Ok(piece) = body.take_apart(bytes, &mut data) else {
            turn.on(TurnEvent::HostMalformed);
            return;
        };
        if piece.used < bytes.len() {
            turn.on(TurnEvent::HostExtraBytes);
        }
        if piece.is_repaired {
            self.note_repair();
        }
        if client.send(&data).is_err() {
            turn.on(TurnEvent::ClientFailed);
        }
    }

    /// Passes on the trailers after a body of known length. Only HTTP/2 allows them, so both sides must speak it.
    fn pass_trailers(&mut self, client: &mut Leg) -> io::Result<()> {
        if let (Leg::HostStream(host), Leg::Stream(client)) = (&mut self.leg.stream, client)
            && let Some(trailers) = host.take_trailers()?
        {
            client.set_trailers(trailers);
        }
        Ok(())
    }
}

/// Whether an answer is long enough that cutting its rest is worthwhile.
const fn is_long(kind: AnswerKind) -> bool {
    matches!(kind, AnswerKind::Final(BodyLength::Known(bytes)) if bytes >= MIN_LONG_ANSWER_BYTES)
}

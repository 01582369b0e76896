//! The course of one exchange, a request and its answer, on a client's connection and a host's.
//!
//! A datapath reports what happens as [`TurnEvent`]s and asks with [`Turn::next`] what to do. One exchange is in flight
//! on a client's connection: the next request is not read before this one has ended (RFC 9112, section 9.3.2).
//!
//! ```text
//! Connect -> Exchange -> Finished
//!    ^          |   \-> Tunnel -> Finished
//!    \- retry --/
//! ```

mod ending;
mod event;
mod facts;
mod fault;

pub use ending::{ClientAfter, HostAfter, TurnEnding};
pub use event::{AnswerAction, NextStep, TurnEvent};
pub use facts::{AnswerFacts, RequestFacts, TurnPolicy};
pub use fault::{FaultSide, TurnFault};

use super::edit::ConnectionField;
use super::framing::{AnswerKind, BodyLength};
use super::head::Version;
use super::method::Method;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestState {
    /// Nothing of the request can have reached the host.
    Unsent,
    /// The request is being sent, with the number of bytes of its body sent so far.
    Sending(u64),
    /// The host takes no more of the request.
    Stopped(u64),
    Ended(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerState {
    Nothing,
    /// Something has come, but no final head.
    Something,
    Passing(BodyLength),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connecting,
    Exchanging,
    Tunnelling,
    Finished(TurnEnding),
}

/// State of an exchange: a request and its answer.
#[derive(Clone, Debug)]
pub struct Turn {
    facts: RequestFacts,
    policy: TurnPolicy,
    stage: Stage,
    request: RequestState,
    answer: AnswerState,
    retries: u8,
    refusals: u8,
    keeps_client: bool,
    keeps_host: bool,
    /// Whether the host can report that it has not processed a request.
    host_may_refuse: bool,
    /// Whether nothing of the request is left in the client's connection.
    is_request_read: bool,
}

impl Turn {
    /// Turn of a request whose head has been read.
    #[must_use]
    pub const fn new(facts: RequestFacts, policy: TurnPolicy) -> Self {
        Self {
            facts,
            policy,
            stage: Stage::Connecting,
            request: RequestState::Unsent,
            answer: AnswerState::Nothing,
            retries: 0,
            refusals: 0,
            keeps_client: policy.keeps_client && facts.is_persistent,
            keeps_host: policy.keeps_host && !facts.is_upgrade && !matches!(facts.method, Method::Connect),
            host_may_refuse: false,
            is_request_read: !facts.has_body(),
        }
    }

    /// Step to take now.
    #[must_use]
    pub const fn next(&self) -> NextStep {
        match self.stage {
            Stage::Connecting => NextStep::Connect {
                // An upgraded connection is never a kept one, and a kept one that failed is not the only stale one.
                may_reuse: self.keeps_host && self.retries == 0 && !self.must_not_be_lost(),
            },
            Stage::Exchanging => NextStep::Exchange {
                passes_request: matches!(self.request, RequestState::Unsent | RequestState::Sending(_)),
            },
            Stage::Tunnelling => NextStep::Tunnel,
            Stage::Finished(ending) => NextStep::Finished(ending),
        }
    }

    /// Whether nobody could send the request again after a host has closed a kept connection: its client has just
    /// connected, so it would not retry, and a request that changes something is not repeated here. HAProxy's
    /// `http-reuse safe` has this rule for all methods.
    const fn must_not_be_lost(&self) -> bool {
        self.policy.is_first && !self.facts.method.is_idempotent()
    }

    /// Connection field of the head that is sent to the host.
    #[must_use]
    pub const fn request_connection(&self) -> ConnectionField {
        match (self.facts.is_upgrade, self.keeps_host, self.facts.version) {
            (true, ..) => ConnectionField::Upgrade,
            (false, false, _) => ConnectionField::Close,
            (false, true, Version::Http10) => ConnectionField::KeepAlive,
            (false, true, Version::Http11) => ConnectionField::Omitted,
        }
    }

    /// Whether the sent part of the request must still be kept for another attempt.
    #[must_use]
    pub fn keeps_replay(&self) -> bool {
        !matches!(self.stage, Stage::Finished(_)) && (self.may_retry() || (self.host_may_refuse && self.may_resend()))
    }

    /// Whether the final answer has begun: nothing else can be sent to the client.
    #[must_use]
    pub const fn has_answered(&self) -> bool {
        matches!(self.answer, AnswerState::Passing(_))
    }

    /// Whether the chunks of the answer are taken apart: the client cannot read them, and the end of its connection ends
    /// the answer.
    #[must_use]
    pub const fn takes_chunks_apart(&self) -> bool {
        matches!(self.answer, AnswerState::Passing(BodyLength::Chunked))
            && matches!(self.facts.version, Version::Http10)
    }

    /// Whether the whole request has been sent to the host.
    #[must_use]
    pub const fn is_request_ended(&self) -> bool {
        matches!(self.request, RequestState::Ended(_))
    }

    /// Closes the client's connection after the answer, whose head has not been passed on yet.
    pub const fn close_client(&mut self) {
        self.keeps_client = false;
    }

    /// Takes the whole head of an answer, and returns what to do with it.
    pub fn answer_head(&mut self, answer: AnswerFacts) -> AnswerAction {
        if self.stage != Stage::Exchanging || self.has_answered() {
            return AnswerAction::Refuse;
        }
        if self.request == RequestState::Unsent {
            self.on(TurnEvent::AnswerBytes);
            return AnswerAction::Refuse;
        }
        self.answer = AnswerState::Something;
        match answer.kind {
            AnswerKind::Interim if self.facts.version == Version::Http10 => AnswerAction::Drop,
            AnswerKind::Interim => AnswerAction::Pass(ConnectionField::Omitted),
            AnswerKind::SwitchingProtocols => self.tunnel(self.facts.is_upgrade, ConnectionField::Upgrade),
            AnswerKind::Tunnel => self.tunnel(self.facts.method == Method::Connect, ConnectionField::Omitted),
            AnswerKind::Final(length) => self.final_head(length, answer.is_persistent),
        }
    }

    /// Takes an event, and returns the step to take now. Events that come too late change nothing.
    pub fn on(&mut self, event: TurnEvent) -> NextStep {
        match self.stage {
            Stage::Finished(_) => {}
            Stage::Tunnelling => self.in_tunnel(event),
            Stage::Connecting | Stage::Exchanging => self.before_end(event),
        }
        self.next()
    }

    fn before_end(&mut self, event: TurnEvent) {
        match event {
            TurnEvent::HostConnected => {
                self.stage = Stage::Exchanging;
                self.host_may_refuse = false;
            }
            TurnEvent::HostMayRefuse => self.host_may_refuse = true,
            TurnEvent::ConnectFailed => self.fail(TurnFault::HostUnreachable),
            TurnEvent::Drain => {
                // A client that has received nothing else expects that its connection is kept.
                self.keeps_client &= self.has_answered();
                self.keeps_host = false;
            }
            TurnEvent::RequestBegun => self.sent(0),
            TurnEvent::RequestBody(bytes) => self.sent(bytes),
            TurnEvent::RequestEnded => self.request_ended(),
            // Bytes that come before the request went out answer something else.
            TurnEvent::AnswerBytes if self.request == RequestState::Unsent => {
                self.lose_host(TurnFault::AnswerMalformed);
            }
            TurnEvent::AnswerBytes if !self.has_answered() => self.answer = AnswerState::Something,
            TurnEvent::AnswerBytes | TurnEvent::TunnelEnded => {}
            TurnEvent::AnswerEnded => self.answer_ended(),
            TurnEvent::HostExtraBytes => self.keeps_host = false,
            TurnEvent::HostStopped => self.stopped(),
            TurnEvent::HostClosed { is_clean } => self.host_closed(is_clean),
            TurnEvent::HostFailed => self.host_failed(),
            TurnEvent::HostRefused if self.host_may_refuse && self.may_resend() => {
                self.refusals += 1;
                self.begin_again();
            }
            TurnEvent::HostRefused => self.host_failed(),
            TurnEvent::HostMalformed => self.fail(TurnFault::AnswerMalformed),
            TurnEvent::HostTimedOut => self.fail(TurnFault::AnswerTimeout),
            TurnEvent::ClientClosed if self.is_request_read => self.keeps_client = false,
            // The rest of the answer is worth passing on to a client that does not wait for the host to read.
            TurnEvent::ClientClosed | TurnEvent::ClientTimedOut if self.has_answered() => self.stopped(),
            TurnEvent::ClientClosed => self.fail(TurnFault::RequestCutOff),
            TurnEvent::ClientFailed => self.fail(TurnFault::ClientGone),
            TurnEvent::ClientMalformed => self.fail(TurnFault::RequestMalformed),
            TurnEvent::ClientTimedOut => self.fail(TurnFault::RequestTimeout),
        }
    }

    fn in_tunnel(&mut self, event: TurnEvent) {
        match event {
            TurnEvent::TunnelEnded => self.finish(TurnEnding::closed()),
            TurnEvent::ClientFailed => self.finish(TurnEnding::aborted(TurnFault::ClientGone)),
            TurnEvent::HostFailed => self.finish(TurnEnding::aborted(TurnFault::AnswerCutOff)),
            _ => {}
        }
    }

    fn sent(&mut self, bytes: u64) {
        self.request = match self.request {
            RequestState::Unsent => RequestState::Sending(bytes),
            RequestState::Sending(before) => RequestState::Sending(before.saturating_add(bytes)),
            state => state,
        };
    }

    fn request_ended(&mut self) {
        if let RequestState::Unsent | RequestState::Sending(_) = self.request {
            self.request = RequestState::Ended(self.body_sent());
        }
        self.is_request_read = true;
    }

    fn stopped(&mut self) {
        if let RequestState::Unsent | RequestState::Sending(_) = self.request {
            self.request = RequestState::Stopped(self.body_sent());
            self.keeps_client &= self.is_request_read;
        }
        self.keeps_host = false;
    }

    const fn body_sent(&self) -> u64 {
        match self.request {
            RequestState::Unsent => 0,
            RequestState::Sending(bytes) | RequestState::Stopped(bytes) | RequestState::Ended(bytes) => bytes,
        }
    }

    fn final_head(&mut self, length: BodyLength, is_persistent: bool) -> AnswerAction {
        self.answer = AnswerState::Passing(length);
        // A host that answers early may read the rest of the body as a request, so its connection is not shared.
        let is_request_sent = matches!(self.request, RequestState::Ended(_));
        self.keeps_host &= is_persistent && is_request_sent && length != BodyLength::UntilClose;
        // An early answer: it is unknown how much of the body the client still sends, above all if it waits for a 100
        // (RFC 9110, section 10.1.1).
        let ends_by_close = length == BodyLength::UntilClose || self.takes_chunks_apart();
        self.keeps_client &= self.is_request_read && !ends_by_close;
        AnswerAction::Pass(match (self.keeps_client, self.facts.version) {
            (false, _) => ConnectionField::Close,
            (true, Version::Http10) => ConnectionField::KeepAlive,
            (true, Version::Http11) => ConnectionField::Omitted,
        })
    }

    fn tunnel(&mut self, was_asked: bool, connection: ConnectionField) -> AnswerAction {
        if !was_asked || !matches!(self.request, RequestState::Ended(_)) {
            return self.refuse(TurnFault::TunnelNotAsked);
        }
        self.stage = Stage::Tunnelling;
        AnswerAction::Pass(connection)
    }

    fn refuse(&mut self, fault: TurnFault) -> AnswerAction {
        self.fail(fault);
        AnswerAction::Refuse
    }

    fn answer_ended(&mut self) {
        if !self.has_answered() {
            return;
        }
        self.finish(TurnEnding {
            answer: None,
            client: self.client_after(),
            host: if self.keeps_host {
                HostAfter::Reuse
            } else {
                HostAfter::Close
            },
            fault: None,
        });
    }

    const fn client_after(&self) -> ClientAfter {
        match (self.is_request_read, self.keeps_client) {
            (true, true) => ClientAfter::Keep,
            (true, false) => ClientAfter::Close,
            (false, _) => ClientAfter::Linger,
        }
    }

    fn host_closed(&mut self, is_clean: bool) {
        match self.answer {
            AnswerState::Passing(BodyLength::UntilClose) if is_clean => self.answer_ended(),
            _ => self.host_failed(),
        }
    }

    fn host_failed(&mut self) {
        if self.has_answered() {
            self.fail(TurnFault::AnswerCutOff);
        } else {
            self.lose_host(TurnFault::NoAnswer);
        }
    }

    /// Tries another connection where that is safe.
    fn lose_host(&mut self, fault: TurnFault) {
        if self.stage == Stage::Connecting {
            return;
        }
        if self.may_retry() {
            self.retries += 1;
            self.begin_again();
        } else {
            self.fail(fault);
        }
    }

    fn begin_again(&mut self) {
        self.stage = Stage::Connecting;
        self.request = RequestState::Unsent;
    }

    /// Whether a request that the host has not processed may be sent again: the client has seen no answer, and the sent
    /// part of the body was kept.
    fn may_resend(&self) -> bool {
        let is_kept = self.body_sent() <= self.policy.replay_bytes;
        self.stage == Stage::Exchanging
            && self.refusals < self.policy.refusals
            && self.answer == AnswerState::Nothing
            && is_kept
    }

    /// Whether the request may be sent again (RFC 9110, section 9.2.2): nothing was received, and nothing sent or only
    /// parts that may be repeated.
    fn may_retry(&self) -> bool {
        let is_unsent = self.request == RequestState::Unsent;
        let is_repeatable = self.facts.method.is_idempotent() && self.body_sent() <= self.policy.replay_bytes;
        self.retries < self.policy.retries && self.answer == AnswerState::Nothing && (is_unsent || is_repeatable)
    }

    fn fail(&mut self, fault: TurnFault) {
        if self.has_answered() || fault == TurnFault::ClientGone {
            return self.finish(TurnEnding::aborted(fault));
        }
        // An HTTP/1.0 client would have to be told that its connection is kept, only because of an error.
        self.keeps_client &= fault.side() == FaultSide::Host && self.facts.version == Version::Http11;
        self.finish(TurnEnding {
            answer: Some(fault.status()),
            client: self.client_after(),
            host: HostAfter::Close,
            fault: Some(fault),
        });
    }

    fn finish(&mut self, ending: TurnEnding) {
        self.stage = Stage::Finished(ending);
    }
}

#[cfg(test)]
mod tests;

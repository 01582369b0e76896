//! Conversations between a client (C), the balancer and a host (H).

use super::*;
use ClientAfter::{Abort, Close, Keep, Linger};

const GET: RequestFacts = RequestFacts {
    method: Method::Get,
    version: Version::Http11,
    is_persistent: true,
    body: BodyLength::None,
    is_upgrade: false,
};

const POST: RequestFacts = RequestFacts {
    method: Method::Post,
    body: BodyLength::Known(100),
    ..GET
};

const CLOSED: TurnEvent = TurnEvent::HostClosed { is_clean: true };

struct Conversation(Turn);

impl Conversation {
    /// A request whose client and policy are those of the rules.
    fn of(facts: RequestFacts) -> Self {
        Self(Turn::new(facts, TurnPolicy::default()))
    }

    /// A request that a host is being sent.
    fn begun(facts: RequestFacts) -> Self {
        Self::of(facts).then(&[TurnEvent::HostConnected, TurnEvent::RequestBegun])
    }

    /// A request that a host has got.
    fn asked(facts: RequestFacts) -> Self {
        Self::begun(facts).then(&[TurnEvent::RequestEnded])
    }

    fn then(mut self, events: &[TurnEvent]) -> Self {
        for event in events {
            self.0.on(*event);
        }
        self
    }

    /// H sends the head of an answer, and keeps its connection.
    fn head(mut self, kind: AnswerKind, expected: AnswerAction) -> Self {
        let facts = AnswerFacts {
            kind,
            is_persistent: true,
        };
        assert_eq!(self.0.answer_head(facts), expected);
        self
    }

    fn ok(self, length: BodyLength, connection: ConnectionField) -> Self {
        self.head(AnswerKind::Final(length), AnswerAction::Pass(connection))
    }

    #[track_caller]
    fn does(self, step: NextStep) -> Self {
        assert_eq!(self.0.next(), step);
        self
    }

    #[track_caller]
    fn retries(self) -> Self {
        self.does(NextStep::Connect { may_reuse: false })
    }

    #[track_caller]
    fn ends(self, answer: Option<u16>, client: ClientAfter, host: HostAfter) -> Option<TurnFault> {
        match self.0.next() {
            NextStep::Finished(ending) => {
                assert_eq!((ending.answer, ending.client, ending.host), (answer, client, host));
                ending.fault
            }
            step => panic!("not over: {step:?}"),
        }
    }
}

use AnswerKind::{Final, Interim, SwitchingProtocols};
use BodyLength::{Chunked, Known, UntilClose};
use ConnectionField::{KeepAlive, Omitted, Upgrade};
use HostAfter::Reuse;

const TEN: BodyLength = Known(10);

#[test]
fn a_request_and_its_answer_keep_both_connections() {
    let end = Conversation::of(GET)
        .does(NextStep::Connect { may_reuse: true })
        .then(&[TurnEvent::HostConnected])
        .does(NextStep::Exchange { passes_request: true })
        .then(&[TurnEvent::RequestBegun, TurnEvent::RequestEnded])
        .does(NextStep::Exchange { passes_request: false })
        .ok(TEN, Omitted)
        .then(&[TurnEvent::AnswerEnded])
        .ends(None, Keep, Reuse);
    assert_eq!(end, None);
}

#[test]
fn either_side_may_ask_for_the_end() {
    let last = RequestFacts {
        is_persistent: false,
        ..GET
    };
    let end = Conversation::asked(last).ok(TEN, ConnectionField::Close);
    end.then(&[TurnEvent::AnswerEnded]).ends(None, Close, Reuse);

    let mut turn = Conversation::asked(GET).0;
    let action = turn.answer_head(AnswerFacts {
        kind: Final(TEN),
        is_persistent: false,
    });
    assert_eq!(action, AnswerAction::Pass(Omitted));
    Conversation(turn)
        .then(&[TurnEvent::AnswerEnded])
        .ends(None, Keep, HostAfter::Close);
}

#[test]
fn a_client_of_http_1_0_is_told_that_its_connection_is_kept() {
    let old = RequestFacts {
        version: Version::Http10,
        ..GET
    };
    assert_eq!(Turn::new(old, TurnPolicy::default()).request_connection(), KeepAlive);
    let end = Conversation::asked(old)
        .ok(TEN, KeepAlive)
        .then(&[TurnEvent::AnswerEnded]);
    end.ends(None, Keep, Reuse);
}

#[test]
fn a_client_of_http_1_0_gets_chunks_taken_apart() {
    let old = RequestFacts {
        version: Version::Http10,
        ..GET
    };
    // An interim answer means nothing to it.
    let asked = || Conversation::asked(old).head(Interim, AnswerAction::Drop);
    let answered = || {
        let answered = asked().ok(Chunked, ConnectionField::Close);
        assert!(answered.0.takes_chunks_apart());
        answered
    };
    answered().then(&[TurnEvent::AnswerEnded]).ends(None, Close, Reuse);
    // The end of the connection would pass for the end of the answer.
    let fault = answered().then(&[CLOSED]).ends(None, Abort, HostAfter::Close);
    assert_eq!(fault, Some(TurnFault::AnswerCutOff));
    assert!(!asked().ok(TEN, KeepAlive).0.takes_chunks_apart());
    assert!(!Conversation::asked(GET).ok(Chunked, Omitted).0.takes_chunks_apart());
}

#[test]
fn a_continue_is_passed_and_the_body_follows() {
    let end = Conversation::begun(POST)
        .head(Interim, AnswerAction::Pass(Omitted))
        .does(NextStep::Exchange { passes_request: true })
        .then(&[TurnEvent::RequestBody(100), TurnEvent::RequestEnded])
        .head(Interim, AnswerAction::Pass(Omitted))
        .ok(TEN, Omitted);
    end.then(&[TurnEvent::AnswerEnded]).ends(None, Keep, Reuse);
}

#[test]
fn an_answer_before_the_body_has_ended_is_the_connections_last() {
    // The host refuses the upload: both connections hold an unknown rest of it.
    let early = || {
        Conversation::begun(POST)
            .then(&[TurnEvent::RequestBody(50)])
            .ok(TEN, ConnectionField::Close)
    };
    early()
        .then(&[TurnEvent::AnswerEnded])
        .ends(None, Linger, HostAfter::Close);
    // The body ends while the answer is passed: the host may have taken it for a request.
    let end = early().then(&[
        TurnEvent::RequestBody(50),
        TurnEvent::RequestEnded,
        TurnEvent::AnswerEnded,
    ]);
    end.ends(None, Close, HostAfter::Close);
    // The host reads no more, and its answer still comes whole.
    let end = early()
        .then(&[TurnEvent::HostStopped])
        .does(NextStep::Exchange { passes_request: false });
    end.then(&[TurnEvent::AnswerEnded]).ends(None, Linger, HostAfter::Close);
    // The client ends its sending side in the middle of the body and reads on.
    for event in [TurnEvent::ClientClosed, TurnEvent::ClientTimedOut] {
        let end = early()
            .then(&[event])
            .does(NextStep::Exchange { passes_request: false });
        end.then(&[TurnEvent::AnswerEnded]).ends(None, Linger, HostAfter::Close);
    }
}

#[test]
fn a_host_that_stops_reading_may_still_answer() {
    let stopped = || Conversation::begun(POST).then(&[TurnEvent::RequestBody(50), TurnEvent::HostStopped]);
    let end = stopped()
        .ok(TEN, ConnectionField::Close)
        .then(&[TurnEvent::AnswerEnded]);
    end.ends(None, Linger, HostAfter::Close);
    let fault = stopped().then(&[CLOSED]).ends(Some(502), Linger, HostAfter::Close);
    assert_eq!(fault, Some(TurnFault::NoAnswer));
}

#[test]
fn an_upgrade_that_is_accepted_becomes_a_tunnel() {
    let websocket = RequestFacts {
        is_upgrade: true,
        ..GET
    };
    let conversation = Conversation::of(websocket).does(NextStep::Connect { may_reuse: false });
    assert_eq!(conversation.0.request_connection(), Upgrade);
    let end = Conversation::asked(websocket)
        .head(SwitchingProtocols, AnswerAction::Pass(Upgrade))
        .does(NextStep::Tunnel)
        .then(&[CLOSED])
        .does(NextStep::Tunnel)
        .then(&[TurnEvent::TunnelEnded]);
    end.ends(None, Close, HostAfter::Close);
}

#[test]
fn a_refused_upgrade_is_an_exchange_and_closes_the_connection() {
    let websocket = RequestFacts {
        is_upgrade: true,
        ..GET
    };
    let end = Conversation::asked(websocket)
        .ok(TEN, Omitted)
        .then(&[TurnEvent::AnswerEnded]);
    end.ends(None, Keep, HostAfter::Close);
}

#[test]
fn a_101_answer_that_was_not_asked_for_is_refused_with_502() {
    let fault = |conversation: Conversation| {
        let refused = conversation.head(SwitchingProtocols, AnswerAction::Refuse);
        match refused.0.next() {
            NextStep::Finished(TurnEnding {
                answer, host, fault, ..
            }) => {
                assert_eq!((answer, host), (Some(502), HostAfter::Close));
                fault
            }
            step => panic!("not over: {step:?}"),
        }
    };
    assert_eq!(fault(Conversation::asked(GET)), Some(TurnFault::TunnelNotAsked));
    // With a body that is on its way the tunnel would begin in its middle.
    let with_body = RequestFacts {
        is_upgrade: true,
        ..POST
    };
    assert_eq!(fault(Conversation::begun(with_body)), Some(TurnFault::TunnelNotAsked));
}

#[test]
fn connect_becomes_a_tunnel_at_2xx() {
    let connect = RequestFacts {
        method: Method::Connect,
        ..GET
    };
    let tunnel = Conversation::asked(connect).head(AnswerKind::Tunnel, AnswerAction::Pass(Omitted));
    tunnel.does(NextStep::Tunnel);
    Conversation::asked(GET).head(AnswerKind::Tunnel, AnswerAction::Refuse);
}

#[test]
fn an_answer_until_close_ends_both_connections() {
    let answer = || Conversation::asked(GET).ok(UntilClose, ConnectionField::Close);
    answer().then(&[CLOSED]).ends(None, Close, HostAfter::Close);
    // TLS without close_notify: anyone can have cut it off.
    let cut = answer().then(&[TurnEvent::HostClosed { is_clean: false }]);
    assert_eq!(cut.ends(None, Abort, HostAfter::Close), Some(TurnFault::AnswerCutOff));
    let broken = answer().then(&[TurnEvent::HostFailed]);
    assert_eq!(
        broken.ends(None, Abort, HostAfter::Close),
        Some(TurnFault::AnswerCutOff)
    );
}

#[test]
fn an_answer_that_is_cut_off_is_seen_to_be() {
    for length in [TEN, Chunked] {
        let cut = Conversation::asked(GET).ok(length, Omitted).then(&[CLOSED]);
        assert_eq!(cut.ends(None, Abort, HostAfter::Close), Some(TurnFault::AnswerCutOff));
    }
    let partial_head = Conversation::asked(GET).then(&[TurnEvent::AnswerBytes, CLOSED]);
    assert_eq!(
        partial_head.ends(Some(502), Keep, HostAfter::Close),
        Some(TurnFault::NoAnswer)
    );
}

#[test]
fn an_answer_before_the_request_is_not_its_answer() {
    let stale = Conversation::of(POST).then(&[TurnEvent::HostConnected]);
    stale.head(Final(TEN), AnswerAction::Refuse).retries();
    let stale = Conversation::of(POST).then(&[TurnEvent::HostConnected, TurnEvent::AnswerBytes]);
    stale.retries();
}

#[test]
fn a_failed_exchange_gets_the_status_and_fault_of_its_cause() {
    let none = HostAfter::Close;
    for (event, facts, status, client, fault) in [
        (
            TurnEvent::ClientClosed,
            POST,
            Some(400),
            Linger,
            TurnFault::RequestCutOff,
        ),
        (TurnEvent::ClientFailed, GET, None, Abort, TurnFault::ClientGone),
        (
            TurnEvent::ClientMalformed,
            POST,
            Some(400),
            Linger,
            TurnFault::RequestMalformed,
        ),
        (
            TurnEvent::ClientTimedOut,
            POST,
            Some(408),
            Linger,
            TurnFault::RequestTimeout,
        ),
        (
            TurnEvent::ConnectFailed,
            GET,
            Some(503),
            Keep,
            TurnFault::HostUnreachable,
        ),
        (
            TurnEvent::ConnectFailed,
            POST,
            Some(503),
            Linger,
            TurnFault::HostUnreachable,
        ),
        (
            TurnEvent::HostMalformed,
            GET,
            Some(502),
            Keep,
            TurnFault::AnswerMalformed,
        ),
        (TurnEvent::HostTimedOut, GET, Some(504), Keep, TurnFault::AnswerTimeout),
    ] {
        let found = Conversation::begun(facts).then(&[event]).ends(status, client, none);
        assert_eq!(found, Some(fault), "{event:?}");
    }
    assert_eq!(TurnFault::RequestTimeout.side(), FaultSide::Client);
    assert_eq!(TurnFault::NoAnswer.side(), FaultSide::Host);
}

#[test]
fn once_an_answer_has_begun_there_is_no_second_head() {
    for event in [
        TurnEvent::HostMalformed,
        TurnEvent::HostTimedOut,
        TurnEvent::ClientMalformed,
    ] {
        let end = Conversation::asked(GET).ok(TEN, Omitted).then(&[event]);
        assert!(end.ends(None, Abort, HostAfter::Close).is_some(), "{event:?}");
    }
    Conversation::asked(GET)
        .ok(TEN, Omitted)
        .head(Final(TEN), AnswerAction::Refuse);
}

#[test]
fn a_client_that_has_said_all_is_answered_and_then_closed() {
    let end = Conversation::asked(GET)
        .then(&[TurnEvent::ClientClosed])
        .ok(TEN, ConnectionField::Close);
    end.then(&[TurnEvent::AnswerEnded]).ends(None, Close, Reuse);
}

#[test]
fn bytes_behind_an_answer_close_the_hosts_connection() {
    let end = Conversation::asked(GET).ok(TEN, Omitted);
    end.then(&[TurnEvent::HostExtraBytes, TurnEvent::AnswerEnded])
        .ends(None, Keep, HostAfter::Close);
}

#[test]
fn draining_ends_connections_with_the_next_answer() {
    let end = Conversation::asked(GET)
        .then(&[TurnEvent::Drain])
        .ok(TEN, ConnectionField::Close);
    end.then(&[TurnEvent::AnswerEnded]).ends(None, Close, HostAfter::Close);
    // The client was told that its connection is kept, and may have sent the next request.
    let end = Conversation::asked(GET)
        .ok(TEN, Omitted)
        .then(&[TurnEvent::Drain, TurnEvent::AnswerEnded]);
    end.ends(None, Keep, HostAfter::Close);
}

#[test]
fn a_policy_without_kept_connections_says_so_to_both() {
    let policy = TurnPolicy {
        keeps_client: false,
        keeps_host: false,
        ..TurnPolicy::default()
    };
    let conversation = Conversation(Turn::new(GET, policy)).does(NextStep::Connect { may_reuse: false });
    assert_eq!(conversation.0.request_connection(), ConnectionField::Close);
    let events = [
        TurnEvent::HostConnected,
        TurnEvent::RequestBegun,
        TurnEvent::RequestEnded,
    ];
    let end = conversation
        .then(&events)
        .ok(TEN, ConnectionField::Close)
        .then(&[TurnEvent::AnswerEnded]);
    end.ends(None, Close, HostAfter::Close);
}

mod any_order;
mod retries;

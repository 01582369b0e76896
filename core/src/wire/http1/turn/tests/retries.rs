//! Requests that are sent again over another connection.

use super::*;

#[test]
fn a_safe_request_is_sent_again_once_if_nothing_came_back() {
    for event in [CLOSED, TurnEvent::HostFailed] {
        let again = Conversation::asked(GET).then(&[event]).retries();
        let again = again.then(&[
            TurnEvent::HostConnected,
            TurnEvent::RequestBegun,
            TurnEvent::RequestEnded,
        ]);
        let fault = again.then(&[event]).ends(Some(502), Keep, HostAfter::Close);
        assert_eq!(fault, Some(TurnFault::NoAnswer));
    }
    // After a 103 the host has begun to answer.
    let hinted = Conversation::asked(GET)
        .head(Interim, AnswerAction::Pass(Omitted))
        .then(&[CLOSED]);
    hinted.ends(Some(502), Keep, HostAfter::Close);
}

#[test]
fn an_unsafe_request_is_repeated_only_if_it_was_not_sent() {
    let put = RequestFacts {
        method: Method::Put,
        ..POST
    };
    let lost = |facts, events: &[TurnEvent]| {
        let conversation = Conversation::of(facts).then(&[TurnEvent::HostConnected]).then(events);
        assert_eq!(
            conversation.0.keeps_replay(),
            matches!(conversation.then(&[CLOSED]).0.next(), NextStep::Connect { .. })
        );
        let conversation = Conversation::of(facts)
            .then(&[TurnEvent::HostConnected])
            .then(events)
            .then(&[CLOSED]);
        matches!(conversation.0.next(), NextStep::Connect { .. })
    };
    let body = TurnEvent::RequestBody;
    assert!(lost(POST, &[]));
    assert!(!lost(POST, &[TurnEvent::RequestBegun]));
    assert!(lost(put, &[TurnEvent::RequestBegun]));
    assert!(lost(put, &[TurnEvent::RequestBegun, body(16 * 1024)]));
    assert!(!lost(put, &[TurnEvent::RequestBegun, body(16 * 1024), body(1)]));
}

#[test]
fn an_unrepeatable_first_request_gets_a_new_host_connection() {
    let first = TurnPolicy {
        is_first: true,
        ..TurnPolicy::default()
    };
    for (facts, policy, may_reuse) in [
        (POST, first, false),
        (GET, first, true),
        (POST, TurnPolicy::default(), true),
    ] {
        let turn = Turn::new(facts, policy);
        assert_eq!(turn.next(), NextStep::Connect { may_reuse }, "{facts:?}");
        assert_eq!(turn.request_connection(), Omitted);
    }
}

#[test]
fn a_request_the_host_refused_is_repeated_whatever_its_method() {
    let begun = || Conversation::begun(POST).then(&[TurnEvent::HostMayRefuse]);
    assert!(begun().0.keeps_replay());
    let again = NextStep::Connect { may_reuse: true };
    begun().then(&[TurnEvent::HostRefused]).does(again);
    begun()
        .then(&[
            TurnEvent::RequestBody(100),
            TurnEvent::RequestEnded,
            TurnEvent::HostRefused,
        ])
        .does(again);
    // The request was stopped first, since the host took no bytes: no connection is kept after it.
    begun()
        .then(&[TurnEvent::HostStopped, TurnEvent::HostRefused])
        .retries();
    // A few times only.
    let refused = [
        TurnEvent::RequestEnded,
        TurnEvent::HostRefused,
        TurnEvent::HostConnected,
        TurnEvent::HostMayRefuse,
        TurnEvent::RequestBegun,
    ];
    let often = (0..5).fold(begun(), |conversation, _| conversation.then(&refused));
    often
        .then(&[TurnEvent::RequestEnded, TurnEvent::HostRefused])
        .ends(Some(502), Keep, HostAfter::Close);
    // A body of which more was sent than is kept, and a client that knows of an answer.
    let long = begun().then(&[TurnEvent::RequestBody(16 * 1024 + 1)]);
    assert!(!long.0.keeps_replay());
    long.then(&[TurnEvent::HostRefused])
        .ends(Some(502), Linger, HostAfter::Close);
    let hinted = begun().head(Interim, AnswerAction::Pass(Omitted));
    hinted
        .then(&[TurnEvent::HostRefused])
        .ends(Some(502), Linger, HostAfter::Close);
    // A connection of HTTP/1 has no such word.
    let plain = Conversation::begun(POST).then(&[TurnEvent::HostRefused]);
    plain.ends(Some(502), Linger, HostAfter::Close);
}

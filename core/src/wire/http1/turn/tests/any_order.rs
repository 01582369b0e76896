//! Events in any order.

use proptest::prelude::*;

use super::*;

fn event() -> impl Strategy<Value = Result<TurnEvent, AnswerFacts>> {
    let events = prop::sample::select(vec![
        TurnEvent::AnswerBytes,
        TurnEvent::AnswerEnded,
        TurnEvent::ClientClosed,
        TurnEvent::ClientTimedOut,
        TurnEvent::Drain,
        TurnEvent::HostConnected,
        TurnEvent::HostMayRefuse,
        TurnEvent::HostRefused,
        TurnEvent::HostExtraBytes,
        CLOSED,
        TurnEvent::HostFailed,
        TurnEvent::HostStopped,
        TurnEvent::RequestBegun,
        TurnEvent::RequestBody(10_000),
        TurnEvent::RequestEnded,
        TurnEvent::TunnelEnded,
    ]);
    let kinds = prop::sample::select(vec![
        Interim,
        SwitchingProtocols,
        AnswerKind::Tunnel,
        Final(TEN),
        Final(Chunked),
        Final(UntilClose),
    ]);
    let heads = (kinds, any::<bool>()).prop_map(|(kind, is_persistent)| AnswerFacts { kind, is_persistent });
    prop_oneof![3 => events.prop_map(Ok), 1 => heads.prop_map(Err)]
}

proptest! {
    /// Any events in any order: a kept connection is at a message's boundary, and there is one final answer.
    #[test]
    fn kept_connections_are_at_a_boundary(events in prop::collection::vec(event(), 0..20), is_post: bool, is_upgrade: bool) {
        let facts = RequestFacts { is_upgrade, ..if is_post { POST } else { GET } };
        let mut turn = Turn::new(facts, TurnPolicy::default());
        let (mut is_read, mut is_sent, mut finals, mut connects) = (!is_post, false, 0, 0);
        for event in events {
            if let NextStep::Finished(_) | NextStep::Tunnel = turn.next() {
                break;
            }
            let was_connecting = matches!(turn.next(), NextStep::Connect { .. });
            match event {
                Ok(event) => {
                    is_read |= event == TurnEvent::RequestEnded;
                    is_sent |= event == TurnEvent::RequestEnded;
                    turn.on(event);
                }
                Err(head) => {
                    let is_passed = matches!(turn.answer_head(head), AnswerAction::Pass(_));
                    finals += u32::from(is_passed && head.kind != Interim);
                }
            }
            if !was_connecting && matches!(turn.next(), NextStep::Connect { .. }) {
                connects += 1;
                is_sent = false;
            }
        }
        prop_assert!(connects <= TurnPolicy::default().retries + TurnPolicy::default().refusals);
        if let NextStep::Finished(ending) = turn.next() {
            prop_assert!(ending.client != Keep || is_read);
            prop_assert!(ending.host != Reuse || (is_sent && finals == 1 && !is_upgrade));
            prop_assert!(finals + u32::from(ending.answer.is_some()) <= 1);
        }
    }
}

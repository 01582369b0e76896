//! The course of an exchange: in whatever order events come, connections are kept at a message's boundary only, and the
//! client gets one final answer. Bytes: the request, the policy, then one event each.
#![no_main]

use libfuzzer_sys::fuzz_target;
use signalbox_core::wire::http1::framing::{AnswerKind, BodyLength};
use signalbox_core::wire::http1::head::Version;
use signalbox_core::wire::http1::method::Method;
use signalbox_core::wire::http1::turn::{
    AnswerAction, AnswerFacts, ClientAfter, HostAfter, NextStep, RequestFacts, Turn, TurnEvent, TurnPolicy,
};

const EVENTS: [TurnEvent; 22] = [
    TurnEvent::AnswerBytes,
    TurnEvent::AnswerEnded,
    TurnEvent::ClientClosed,
    TurnEvent::ClientFailed,
    TurnEvent::ClientMalformed,
    TurnEvent::ClientTimedOut,
    TurnEvent::ConnectFailed,
    TurnEvent::Drain,
    TurnEvent::HostClosed { is_clean: true },
    TurnEvent::HostClosed { is_clean: false },
    TurnEvent::HostConnected,
    TurnEvent::HostExtraBytes,
    TurnEvent::HostFailed,
    TurnEvent::HostMalformed,
    TurnEvent::HostMayRefuse,
    TurnEvent::HostRefused,
    TurnEvent::HostStopped,
    TurnEvent::HostTimedOut,
    TurnEvent::RequestBegun,
    TurnEvent::RequestBody(9000),
    TurnEvent::RequestEnded,
    TurnEvent::TunnelEnded,
];

const KINDS: [AnswerKind; 7] = [
    AnswerKind::Interim,
    AnswerKind::SwitchingProtocols,
    AnswerKind::Tunnel,
    AnswerKind::Final(BodyLength::None),
    AnswerKind::Final(BodyLength::Known(9)),
    AnswerKind::Final(BodyLength::Chunked),
    AnswerKind::Final(BodyLength::UntilClose),
];

const METHODS: [Method; 4] = [Method::Get, Method::Post, Method::Put, Method::Connect];

fuzz_target!(|bytes: &[u8]| {
    let [request, policy, events @ ..] = bytes else {
        return;
    };
    let has = |byte: &u8, bit: u8| byte & (1 << bit) != 0;
    let facts = RequestFacts {
        method: METHODS[usize::from(request & 3)],
        version: if has(request, 2) {
            Version::Http11
        } else {
            Version::Http10
        },
        is_persistent: has(request, 3),
        body: if has(request, 4) {
            BodyLength::Chunked
        } else {
            BodyLength::None
        },
        is_upgrade: has(request, 5),
    };
    let policy = TurnPolicy {
        retries: policy & 3,
        keeps_client: has(policy, 2),
        keeps_host: has(policy, 3),
        ..TurnPolicy::default()
    };
    let mut turn = Turn::new(facts, policy);
    let (mut is_read, mut is_sent, mut finals, mut connects) = (!has(request, 4), false, 0, 0);
    for byte in events {
        let before = turn.next();
        if matches!(before, NextStep::Finished(_) | NextStep::Tunnel) {
            break;
        }
        if let Some(event) = EVENTS.get(usize::from(byte & 31)) {
            is_read |= *event == TurnEvent::RequestEnded;
            is_sent |= *event == TurnEvent::RequestEnded;
            assert_eq!(turn.on(*event), turn.next());
        } else {
            let kind = KINDS[usize::from(byte >> 5) % KINDS.len()];
            let action = turn.answer_head(AnswerFacts {
                kind,
                is_persistent: has(byte, 0),
            });
            finals += u32::from(matches!(action, AnswerAction::Pass(_)) && kind != AnswerKind::Interim);
        }
        if matches!(turn.next(), NextStep::Connect { .. }) && !matches!(before, NextStep::Connect { .. }) {
            connects += 1;
            is_sent = false;
        }
    }
    assert!(connects <= policy.retries + policy.refusals);
    if let NextStep::Finished(ending) = turn.next() {
        assert!(ending.client != ClientAfter::Keep || (is_read && facts.is_persistent && policy.keeps_client));
        assert!(ending.host != HostAfter::Reuse || (is_sent && finals == 1 && policy.keeps_host && !facts.is_upgrade));
        assert!(finals + u32::from(ending.answer.is_some()) <= 1);
    }
});

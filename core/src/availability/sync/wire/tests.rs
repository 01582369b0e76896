use proptest::prelude::*;
use signalbox_common::cut::flow::{CUT_LATE, LAST_REQUEST, TS_DELTA_KNOWN, TS_DELTA_UNKNOWN};

use super::*;

fn record_strategy() -> impl Strategy<Value = FlowRecord> {
    let numbers = (
        any::<[u32; 5]>(),
        any::<[u32; 2]>(),
        any::<[u32; 4]>(),
        any::<[u32; 2]>(),
    );
    (
        numbers,
        any::<[[u32; 4]; 4]>(),
        any::<[bool; 6]>(),
        any::<u16>(),
        any::<[u8; 2]>(),
    )
        .prop_map(|((first, ports, deltas, late), addresses, bits, listener, scales)| {
            let [index, age, host, route, clock_b] = first;
            let given = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
            let mapped = |address: [u32; 4]| [0, 0, 0xffff, address[3]];
            FlowRecord {
                index,
                age,
                host,
                route,
                listener,
                scales,
                ports,
                deltas,
                flags: [
                    given(bits[0], TS_DELTA_KNOWN) | given(bits[1], CUT_LATE) | given(bits[5], LAST_REQUEST),
                    given(bits[2], TS_DELTA_UNKNOWN),
                ],
                clock_b,
                late: if bits[3] { late } else { [0; 2] },
                addresses: if bits[4] { addresses } else { addresses.map(mapped) },
            }
        })
}

fn service_strategy() -> impl Strategy<Value = ServiceRecord> {
    use signalbox_common::l4::abi::state::{FIN, RST};
    (
        any::<[[u32; 4]; 4]>(),
        any::<[u32; 2]>(),
        any::<[u16; 2]>(),
        any::<u32>(),
        any::<bool>(),
    )
        .prop_map(|(addresses, ports, states, idle, is_v6)| ServiceRecord {
            addresses: if is_v6 {
                addresses
            } else {
                addresses.map(|address| [0, 0, 0xffff, address[3]])
            },
            ports,
            states: states.map(|state| state & (FIN | RST)),
            idle,
        })
}

fn hand_over_strategy() -> impl Strategy<Value = HandOver> {
    let moved = any::<([u32; 4], [u8; 6])>().prop_map(|(address, mac)| MovedAddress { address, mac });
    (any::<u16>(), prop::collection::vec(moved, 0..40)).prop_map(|(seconds, addresses)| HandOver { seconds, addresses })
}

fn message_strategy() -> impl Strategy<Value = Message> {
    prop_oneof![
        record_strategy().prop_map(|record| Message::Flow(Box::new(record))),
        service_strategy().prop_map(|record| Message::ServiceFlow(Box::new(record))),
        service_strategy().prop_map(|record| Message::ServiceEnd(Box::new(record.key()))),
        prop::collection::vec("[^\0]{1,12}", 0..4).prop_map(Message::ServiceFullEnd),
        hand_over_strategy().prop_map(|hand_over| Message::HandOver(Box::new(hand_over))),
        prop::collection::vec("[a-z0-9]{1,20}", 0..5).prop_map(Message::Reclaim),
        Just(Message::ReclaimAnswer),
        any::<[u64; 4]>().prop_map(|[born, first, second, clock_ms]| {
            Message::CookieKey(SharedCookieKey {
                born,
                key: [first, second],
                clock_ms,
            })
        }),
        any::<u32>().prop_map(Message::End),
        any::<u32>().prop_map(Message::Batch),
        any::<u32>().prop_map(Message::Ack),
        Just(Message::FullBegin),
        prop::collection::vec("[^\0]{1,12}", 0..4).prop_map(Message::FullEnd),
        (any::<u32>(), prop::collection::vec("[^\0]{0,30}", 1..8)).prop_map(|(number, parts)| {
            let mut parts = parts;
            while parts.join("\0").len() > MAX_NAME_BYTES {
                parts.pop();
            }
            Message::Name(Name { number, parts })
        }),
        (any::<[u16; 1]>(), any::<[u8; 2]>(), "[^\0]{0,60}").prop_map(|([protocol], [slot, nodes], node)| {
            Message::Hello(Hello {
                protocol,
                slot,
                nodes,
                node,
            })
        }),
    ]
}

proptest! {
    #[test]
    fn messages_come_back_whatever_pieces_they_come_in(
        messages in prop::collection::vec(message_strategy(), 0..20),
        piece in 1usize..200,
    ) {
        let mut bytes = Vec::new();
        for message in &messages {
            message.encode(&mut bytes);
        }
        let (mut decoder, mut got) = (Decoder::default(), Vec::new());
        for piece in bytes.chunks(piece) {
            decoder.push(piece);
            while let Some(message) = decoder.next_message().unwrap() {
                got.push(message);
            }
        }
        prop_assert_eq!(got, messages);
        prop_assert_eq!(decoder.skipped, 0);
    }

    /// Whatever a peer sends, decoding ends, and only the beginning of a message is kept.
    #[test]
    fn garbage_is_refused_or_skipped(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        let mut decoder = Decoder::default();
        decoder.push(&bytes);
        let mut taken = 0;
        while let Ok(Some(_)) = decoder.next_message() {
            taken += 1;
        }
        prop_assert!(taken <= bytes.len() / HEADER_BYTES);
    }
}

#[test]
fn a_record_takes_little_room() {
    let mut bytes = Vec::new();
    let mapped = |word| [0, 0, 0xffff, word];
    let record = FlowRecord {
        addresses: [1, 2, 3, 4].map(mapped),
        ..FlowRecord::default()
    };
    Message::Flow(Box::new(record)).encode(&mut bytes);
    assert_eq!(bytes.len(), 69);
    bytes.clear();
    Message::End(7).encode(&mut bytes);
    assert_eq!(bytes.len(), 7);
    let service = |addresses: [[u32; 4]; 4]| {
        let record = ServiceRecord {
            addresses,
            ..ServiceRecord::default()
        };
        let all = [
            Message::ServiceFlow(Box::new(record)),
            Message::ServiceEnd(Box::new(record.key())),
        ];
        all.map(|message| {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            bytes.len()
        })
    };
    assert_eq!(service([1, 2, 3, 4].map(mapped)), [33, 16]);
    assert_eq!(service([[1, 2, 3, 4]; 4]), [81, 40]);
}

#[test]
fn unknown_messages_of_later_versions_are_skipped() {
    let mut decoder = Decoder::default();
    decoder.push(&[200, 0, 2, 9, 9]);
    let mut end = Vec::new();
    Message::End(5).encode(&mut end);
    decoder.push(&end);
    assert_eq!(decoder.next_message(), Ok(Some(Message::End(5))));
    assert_eq!(decoder.skipped, 1);
}

#[test]
fn each_mistake_has_its_error() {
    let error = |bytes: &[u8]| {
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        decoder.next_message().unwrap_err()
    };
    assert_eq!(error(b"\x01\x00\x0cGET / HTTP/1"), WireError::NotOurs);
    assert_eq!(error(&[END, 0, 1, 0]), WireError::Length { kind: END, bytes: 1 });
    assert_eq!(
        error(&[FULL_BEGIN, 0, 1, 0]),
        WireError::Length {
            kind: FULL_BEGIN,
            bytes: 1
        }
    );
    assert_eq!(error(&[FULL_END, 0, 1, 0xff]), WireError::Text(FULL_END));
    assert_eq!(
        error(&[SERVICE_END, 0, 2, 0, 0]),
        WireError::Length {
            kind: SERVICE_END,
            bytes: 2
        }
    );
    assert_eq!(
        error(&[SERVICE_FULL_END, 0, 1, 0xff]),
        WireError::Text(SERVICE_FULL_END)
    );
    assert_eq!(error(&[NAME, 0, 5, 0, 0, 0, 1, 0xff]), WireError::Text(NAME));
    assert_eq!(
        error(&[FLOW, 0, 3, 0, 0, 0]),
        WireError::Length { kind: FLOW, bytes: 3 }
    );
}

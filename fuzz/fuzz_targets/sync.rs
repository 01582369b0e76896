//! Messages of another node: no panic, whatever comes; the pieces in which it comes make no difference; a message that is
//! understood is the same when it has been written and read again; and the entry of a flow is a shadow whose numbers
//! packets have to say. The entries of a service's connection are of the place that this node gives it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use signalbox_common::cut::flow::{RESYNC, state};
use signalbox_core::availability::sync::{Decoder, Message, RecordClock, ServicePlace};

fuzz_target!(|input: (Vec<u8>, u8)| {
    let (bytes, piece) = input;
    let (mut whole, mut pieces) = (Decoder::default(), Decoder::default());
    let mut all = Vec::new();
    whole.push(&bytes);
    let end = loop {
        match whole.next_message() {
            Ok(Some(message)) => all.push(message),
            other => break other,
        }
    };
    let mut same = Vec::new();
    let mut end_of_pieces = Ok(None);
    for piece in bytes.chunks(usize::from(piece).max(1)) {
        pieces.push(piece);
        end_of_pieces = loop {
            match pieces.next_message() {
                Ok(Some(message)) => same.push(message),
                other => break other,
            }
        };
        if end_of_pieces.is_err() {
            break;
        }
    }
    assert_eq!((&all, &end), (&same, &end_of_pieces), "pieces make no difference");
    for message in all {
        let mut written = Vec::new();
        message.encode(&mut written);
        let mut again = Decoder::default();
        again.push(&written);
        if let Message::Flow(record) = &message {
            let clock = RecordClock { tick: 7, ms: 9 };
            let shadow = record.shadow(clock);
            assert_eq!(shadow.state, state::SHADOW);
            assert!(shadow.dirs.iter().all(|dir| dir.flags & RESYNC != 0));
        }
        if let Message::ServiceFlow(record) = &message {
            let place = ServicePlace {
                service: 3,
                host: 5,
                idle_ticks: 1000,
            };
            // `entries` asserts that the directions are each other's reverse.
            for entry in record.entries(place, 7) {
                assert_eq!((entry.service, entry.host, entry.idle_ticks), (3, 5, 1000));
            }
        }
        assert_eq!(again.next_message(), Ok(Some(message)));
    }
});

//! Messages of another node: no panic, whatever comes; the pieces in which it comes make no difference; a message that is
//! understood is the same when it has been written and read again; and the entry of a flow is a shadow whose numbers
//! packets have to say.
#![no_main]

use libfuzzer_sys::fuzz_target;
use signalbox_common::cut::flow::{RESYNC, state};
use signalbox_core::sync::{Decoder, Message, RecordClock};

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
        assert_eq!(again.next_message(), Ok(Some(message)));
    }
});

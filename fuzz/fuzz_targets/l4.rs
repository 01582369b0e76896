//! Packets of layer-4 services: no panic, no read or write beyond the packet, whatever comes in whatever order; every
//! verdict is one that the hooks know; and what a flow's packets become leads back to it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use signalbox_common::l4::abi::{mode, state};
use signalbox_common::l4::decide::{Action, Scratch, other_way};
use signalbox_common::l4::model::Maps;
use signalbox_common::l4::{Flow, balance};
use signalbox_common::reason::REASONS;

const VIP4: [u32; 4] = [0, 0, 0xffff, 0xc633_6401];
const VIP6: [u32; 4] = [0x2001_0db8, 2, 0, 1];

fuzz_target!(|bytes: &[u8]| {
    let maps = Maps::with_services(VIP4, VIP6);
    let mut scratch = Scratch::default();
    let mut rest = bytes;
    // Several packets: the first byte says how far apart in time, the second how long.
    while let [wait, length, tail @ ..] = rest {
        let (packet, next) = tail.split_at(usize::from(*length).min(tail.len()));
        rest = next;
        maps.now.set(maps.now.get().wrapping_add(u32::from(*wait) << 8));
        let mut packet = packet.to_vec();
        // To one of the services, so that more than the parser is reached.
        match packet.first().map(|first| first >> 4) {
            Some(4) if packet.len() >= 20 && packet[16] & 1 == 0 => {
                packet[16..20].copy_from_slice(&VIP4[3].to_be_bytes())
            }
            Some(6) if packet.len() >= 40 && packet[24] & 1 == 0 => {
                for (at, word) in VIP6.iter().enumerate() {
                    packet[24 + 4 * at..28 + 4 * at].copy_from_slice(&word.to_be_bytes());
                }
            }
            _ => {}
        }
        let version = if packet.first().is_some_and(|first| first >> 4 == 4) {
            4
        } else {
            6
        };
        let verdict = balance(packet.as_mut_slice(), &maps, 0, version, &mut scratch);
        assert!(verdict.reason() < REASONS && verdict.action() <= Action::TooBig as u32);
    }
    let opening = maps.opening.borrow();
    let is_nat = |flow: &Flow| flow.mode == mode::NAT && flow.state & state::REPLY == 0;
    for (key, flow) in opening.iter().filter(|(_, flow)| is_nat(flow)) {
        // Perhaps another's by now, if this one has been idle for long.
        assert!(opening.contains_key(&other_way(flow, key.protocol)), "a way back");
    }
});

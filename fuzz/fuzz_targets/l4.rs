//! Packets of layer-4 services: no panic, no read or write beyond the packet, whatever comes in whatever order; every
//! verdict is one that the hooks know; and what a flow's packets become leads back to it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use signalbox_common::l4::abi::{mode, state};
use signalbox_common::l4::decide::reverse_key;
use signalbox_common::l4::model::ModelMaps;
use signalbox_common::l4::verdict::Action;
use signalbox_common::l4::{L4Flow, PacketScratch, balance};
use signalbox_common::net::Target;
use signalbox_common::reason::REASON_COUNT;
use signalbox_common::shield::abi::{NO_TABLE, flag};
use signalbox_common::shield::prefixes::Node;
use signalbox_common::shield::{Guard, Limit};

const VIP4: [u32; 4] = [0, 0, 0xffff, 0xc633_6401];
const VIP6: [u32; 4] = [0x2001_0db8, 2, 0, 1];

/// Guards ports 80 and 81: one as a service's, the other as a listener's whose backlog is full.
fn guard(maps: &mut ModelMaps, rules: u8) {
    if rules & 1 == 0 {
        return;
    }
    let shield = &mut maps.shield;
    shield.settings.buckets = 2;
    shield.settings.drop_unparsable = u32::from(rules & 2 != 0);
    shield.cookie = (rules & 4 != 0).then_some((0x1234_5678, 1460));
    shield.frame = (rules & 8 != 0).then_some(90);
    // Some addresses below 0.4.0.0, and of IPv6 none: its nodes stand behind those of IPv4.
    shield.settings.shared_prefixes = if rules & 64 == 0 { NO_TABLE } else { 0 };
    let some = Node {
        deny: 0x5555_5555_5555_5555,
        ..Node::default()
    };
    shield.shared_prefixes = [some; 4].into();
    for (number, flags) in [(0, flag::SERVICE), (1, flag::COOKIES)] {
        let rates = if rules & 16 != 0 { flag::RATES } else { 0 };
        let malformed = if rules & 32 != 0 { flag::MALFORMED } else { 0 };
        let few = Limit::new(100, 2);
        let guard = Guard {
            flags: flags | rates | malformed,
            concurrent: u32::from(rules >> 6),
            mask_v4: u32::MAX,
            mask_v6: [u32::MAX, u32::MAX, 0, 0],
            limits: [few, few, Limit::new(1000, 500)],
            ..Guard::default()
        };
        shield.guards.insert(number, guard);
        for vip in [VIP4, VIP6] {
            for protocol in [6, 17] {
                let target = Target::new(vip, 80 + number as u16, protocol);
                shield.targets.insert(target, number);
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut maps = ModelMaps::with_services(VIP4, VIP6);
    // One byte decides what of it is guarded, and by what.
    let Some((&rules, bytes)) = bytes.split_first() else {
        return;
    };
    guard(&mut maps, rules);
    let mut scratch = PacketScratch::default();
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
        assert!(verdict.reason() < REASON_COUNT && verdict.action() <= Action::TooBig as u32);
    }
    let half_open = maps.half_open.borrow();
    let is_nat = |flow: &L4Flow| flow.mode == mode::NAT && flow.state & state::REPLY == 0;
    for (key, flow) in half_open.iter().filter(|(_, flow)| is_nat(flow)) {
        // Perhaps another's by now, if this one has been idle for long.
        assert!(
            half_open.contains_key(&reverse_key(flow, key.protocol)),
            "the reply's entry"
        );
    }
});

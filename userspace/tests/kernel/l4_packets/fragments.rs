//! Datagrams in pieces: the first has the ports, the rest follow it.

use signalbox_common::Reason;

use super::packet::{Packet, checksum};
use super::world::*;

/// The pieces of a datagram, each a frame.
fn pieces(packet: &Packet, size: usize) -> Vec<Vec<u8>> {
    let l4 = packet.l4();
    let chunks: Vec<&[u8]> = l4.chunks(size).collect();
    let piece = |(nth, chunk): (usize, &&[u8])| {
        let (offset, more) = (nth * size / 8, nth + 1 < chunks.len());
        let mut bytes = packet.ethernet();
        if packet.to.is_ipv4() {
            let mut ip = packet.ip(packet.protocol, chunk.len(), &[]);
            let field = offset as u16 | if more { 0x2000 } else { 0 };
            ip[6..8].copy_from_slice(&field.to_be_bytes());
            ip[10..12].fill(0);
            let sum = checksum(&ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            bytes.extend(ip);
        } else {
            let field = (offset as u16) << 3 | u16::from(more);
            let mut header = vec![packet.protocol, 0];
            header.extend(field.to_be_bytes());
            header.extend(0x1234_5678u32.to_be_bytes());
            bytes.extend(packet.ip(44, chunk.len(), &header));
        }
        bytes.extend(*chunk);
        bytes
    };
    chunks.iter().enumerate().map(piece).collect()
}

#[test]
fn the_rest_of_a_datagram_follows_its_first_fragment() {
    with_each(|world| {
        world.serve_all();
        for (client, vip, host) in [(CLIENT, VIP, HOST), (CLIENT6, VIP6, HOST6)] {
            let mut packet = Packet::udp(FROM_CLIENT, client, vip);
            packet.payload = (0..100).collect();
            let all = pieces(&packet, 48);
            let mut joined = Vec::new();
            let mut from = None;
            for (nth, bytes) in all.iter().enumerate() {
                let outcome = world.run(bytes);
                let reason = if nth == 0 {
                    Reason::L4Opened
                } else {
                    Reason::L4Forwarded
                };
                let sent = outcome.sent_bytes(reason);
                let (ip, addresses) = if packet.to.is_ipv4() { (20, 12..20) } else { (48, 8..40) };
                if packet.to.is_ipv4() {
                    assert_eq!(checksum(&sent[14..34]), 0);
                }
                from.get_or_insert_with(|| sent[14..][addresses.clone()].to_vec());
                assert_eq!(Some(&sent[14..][addresses]), from.as_deref(), "the same addresses");
                joined.extend(&sent[14 + ip..]);
            }
            // Put together, it is the datagram that it would have been in one piece.
            let port = u16::from_be_bytes([joined[0], joined[1]]);
            let mut whole = packet.clone();
            whole.to = host.parse().unwrap();
            whole.from = if packet.to.is_ipv4() {
                format!("{OURS}:{port}").parse().unwrap()
            } else {
                format!("[{OURS6}]:{port}").parse().unwrap()
            };
            assert_eq!(joined, whole.l4());
        }
    });
}

#[test]
fn a_fragment_without_its_first_one_is_left_to_the_kernel() {
    with_each(|world| {
        world.serve_all();
        for (client, vip) in [(CLIENT, VIP), (CLIENT6, VIP6)] {
            let mut packet = Packet::udp(FROM_CLIENT, client, vip);
            packet.payload = vec![1; 100];
            world.run(&pieces(&packet, 48)[1]).is(Action::Pass, Reason::L4Miss);
        }
    });
}

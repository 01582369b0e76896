//! Errors about packets of services: forwarded to the end that sent them.

use signalbox_common::Reason;
use signalbox_common::l4::mode;

use super::packet::{ACK, Packet, SYN, TCP, checksum, octets};
use super::world::*;

/// An error of a router's about `packet`: its type and code, its third word, and its sender.
fn error(about: &Packet, kind: [u8; 2], word: u32, macs: [u8; 12], router: &str) -> Vec<u8> {
    let quoted = &about.bytes()[14..];
    let quoted = &quoted[..quoted.len().min(if about.to.is_ipv4() { 28 } else { 60 })];
    let outer = Packet {
        macs,
        from: router.parse().unwrap(),
        to: about.from,
        hops: 60,
        ..about.clone()
    };
    let mut icmp = [&kind[..], &[0, 0], &word.to_be_bytes(), quoted].concat();
    let sum = icmp_sum(&outer, &icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let protocol = if about.to.is_ipv4() { 1 } else { 58 };
    [outer.ethernet(), outer.ip(protocol, icmp.len(), &[]), icmp].concat()
}

fn icmp_sum(outer: &Packet, icmp: &[u8]) -> u16 {
    if outer.to.is_ipv4() {
        return checksum(icmp);
    }
    let pseudo = [
        octets(outer.from.ip()),
        octets(outer.to.ip()),
        vec![0, 58, 0, icmp.len() as u8],
    ]
    .concat();
    checksum(&[&pseudo[..], icmp].concat())
}

const FAMILIES: [(&str, &str, &str, &str, [u8; 2]); 2] = [
    (CLIENT, VIP, HOST, "203.0.113.5:0", [3, 4]),
    (CLIENT6, VIP6, HOST6, "[2001:db8:9::5]:0", [2, 0]),
];

#[test]
fn an_icmp_error_from_the_host_side_is_rewritten_for_the_client() {
    with_each(|world| {
        world.serve_all();
        for (client, vip, _, router, kind) in FAMILIES {
            let sent = Packet::tcp(FROM_CLIENT, client, vip, SYN);
            let at_host = world.arrives(&sent).sent(Reason::L4Opened);
            let arrives = error(&at_host, kind, 1300, FROM_HOST, router);
            let outcome = world.run(&arrives);
            let told = outcome.sent_bytes(Reason::L4Icmp);
            // The client gets the error that the router would have sent about the client's own packet.
            let mut own = sent.clone();
            own.hops = at_host.hops;
            let mut want = error(&own, kind, 1300, TO_CLIENT, router);
            let l3 = if sent.to.is_ipv4() { 20 } else { 40 };
            want[14 + if l3 == 20 { 8 } else { 7 }] -= 1;
            compare(told, &want, l3);
        }
    });
}

#[test]
fn an_error_about_an_answer_reaches_the_host_in_its_own_words() {
    with_each(|world| {
        world.serve_all();
        for (client, vip, host, router, _) in FAMILIES {
            let (answer, at_client) = answered(world, client, vip, host);
            // No way to the client.
            let kind = if answer.to.is_ipv4() { [3, 1] } else { [1, 0] };
            let outcome = world.run(&error(&at_client, kind, 0, FROM_CLIENT, router));
            let told = outcome.sent_bytes(Reason::L4Icmp);
            let mut own = answer.clone();
            own.hops = at_client.hops;
            let mut want = error(&own, kind, 0, TO_HOST, router);
            let l3 = if answer.to.is_ipv4() { 20 } else { 40 };
            want[14 + if l3 == 20 { 8 } else { 7 }] -= 1;
            compare(told, &want, l3);
        }
    });
}

/// Begins a flow: the host's answer as it arrives, and as the client gets it.
fn answered(world: &World, client: &str, vip: &str, host: &str) -> (Packet, Packet) {
    let at_host = world
        .arrives(&Packet::tcp(FROM_CLIENT, client, vip, SYN))
        .sent(Reason::L4Opened);
    let mut answer = Packet::tcp(FROM_HOST, host, host, SYN | ACK);
    answer.to = at_host.from;
    let at_client = world.arrives(&answer).sent(Reason::L4Replied);
    (answer, at_client)
}

/// The host would lower the path MTU of the balancer's address, and so of all clients.
#[test]
fn a_way_to_a_client_that_is_too_narrow_is_no_hosts_business() {
    with_each(|world| {
        world.serve_all();
        let (client, vip, _, router, kind) = FAMILIES[0];
        let (answer, at_client) = answered(world, client, vip, HOST);
        let fields = |bytes: &[u8]| [18..20, 20..22].map(|range| u16::from_be_bytes(bytes[range].try_into().unwrap()));
        assert_eq!(
            fields(&at_client.bytes()),
            [0x1234, 0x4000],
            "no router may fragment it"
        );
        world
            .run(&error(&at_client, kind, 552, FROM_CLIENT, router))
            .is(Action::Drop, Reason::L4Icmp);
        let outcome = world.arrives(&answer);
        let sent = outcome.sent_bytes(Reason::L4Replied);
        assert_eq!(fields(sent), [0x1234, 0], "routers may fragment it");
        assert_eq!(checksum(&sent[14..34]), 0, "the header's checksum");
        // A host that gives packets no identification: each gets a separate one.
        let mut anonymous = answer.bytes();
        anonymous[18..20].fill(0);
        anonymous[24..26].fill(0);
        let sum = checksum(&anonymous[14..34]);
        anonymous[24..26].copy_from_slice(&sum.to_be_bytes());
        let ids = [(); 2].map(|()| {
            let outcome = world.run(&anonymous);
            let sent = outcome.sent_bytes(Reason::L4Replied);
            assert_eq!((fields(sent)[1], checksum(&sent[14..34])), (0, 0));
            fields(sent)[0]
        });
        assert!(ids[0] != 0 && ids[0] != ids[1], "{ids:?}");
    });
}

/// No router fragments IPv6: the host must hear of it, but not from an attacker who guesses.
#[test]
fn a_host_learns_an_ipv6_path_mtu_only_from_errors_on_live_data() {
    with_each(|world| {
        world.serve_all();
        let (client, vip, host, router, kind) = FAMILIES[1];
        let (_, at_client) = answered(world, client, vip, host);
        let told = |about: &Packet| world.run(&error(about, kind, 1300, FROM_CLIENT, router));
        told(&at_client).is(Action::Drop, Reason::L4Icmp);
        let mut confirms = Packet::tcp(FROM_CLIENT, client, vip, ACK);
        confirms.ack = at_client.seq + 1;
        world.arrives(&confirms).sent(Reason::L4Forwarded);
        told(&at_client).sent_bytes(Reason::L4Icmp);
        let mut guessed = at_client;
        guessed.seq ^= 0x4000_0000;
        told(&guessed).is(Action::Drop, Reason::L4Icmp);
    });
}

/// Byte by byte, except for checksums that follow from a hop less and from the quoted TCP checksum, which is not
/// checked.
#[track_caller]
fn compare(got: &[u8], want: &[u8], l3: usize) {
    let (mut got, mut want) = (got.to_vec(), want.to_vec());
    if l3 == 20 {
        assert_eq!(checksum(&got[14..34]), 0, "the outer header's checksum");
        assert_eq!(checksum(&got[34..]), 0, "the message's checksum");
        assert_eq!(checksum(&got[42..62]), 0, "the quoted header's checksum");
        got[24..26].fill(0);
        want[24..26].fill(0);
    }
    let icmp = 14 + l3;
    let quoted_l4 = icmp + 8 + l3;
    for bytes in [&mut got, &mut want] {
        bytes[icmp + 2..icmp + 4].fill(0);
        if bytes.len() > quoted_l4 + 18 {
            bytes[quoted_l4 + 16..quoted_l4 + 18].fill(0);
        }
    }
    assert_eq!(got, want);
}

#[test]
fn an_icmp_error_about_a_direct_answer_goes_on_to_that_host() {
    with_each(|world| {
        for (client, vip, _, router, kind) in FAMILIES {
            world.serve(vip, TCP, mode::DSR_L2);
            // The host's own packet, as the client's side of the network saw it.
            let answer = Packet::tcp(FROM_HOST, vip, client, SYN | ACK);
            let bytes = error(&answer, kind, 1300, FROM_CLIENT, router);
            let outcome = world.run(&bytes);
            let told = outcome.sent_bytes(Reason::L4Icmp);
            assert_eq!((&told[..12], &told[12..]), (&TO_HOST[..], &bytes[12..]));
        }
    });
}

#[test]
fn icmp_messages_about_no_flow_are_left_to_the_kernel() {
    with_each(|world| {
        world.serve_all();
        for (client, vip, _, router, kind) in FAMILIES {
            let unknown = Packet::tcp(FROM_HOST, vip, client, SYN | ACK);
            world
                .run(&error(&unknown, kind, 1300, FROM_CLIENT, router))
                .is(Action::Pass, Reason::L4Miss);
            let about = Packet::tcp(FROM_HOST, vip, client, SYN);
            let echo = error(
                &about,
                if kind[0] == 3 { [8, 0] } else { [128, 0] },
                7,
                FROM_CLIENT,
                router,
            );
            world.run(&echo).is(Action::Pass, Reason::L4Miss);
        }
    });
}

//! Clients and hosts of every kind: with and without timestamps, selective acknowledgements, window scaling and ECN.
//! Where both legs agree on the options the flow is cut; where they do not it still works.

use crate::lab;

use std::time::Duration;

use lab::cut::{self, CutLab, expect_none};
use lab::impair::{Impaired, Odds};
use lab::namespace::connect_here;
use lab::transfers::{self, Load};
use lab::{Ns, Signalbox, exchange, lab_test};

const MIB: u64 = 1 << 20;

/// Timestamps, SACK, window scaling.
type Kind = [bool; 3];

fn become_kind(ns: &Ns, kind: Kind) {
    for (name, on) in ["tcp_timestamps", "tcp_sack", "tcp_window_scaling"]
        .into_iter()
        .zip(kind)
    {
        ns.must(&["sysctl", "-qw", &format!("net.ipv4.{name}={}", u8::from(on))]);
    }
}

fn kinds() -> impl Iterator<Item = Kind> {
    (0..8).map(|bits| [bits & 1 == 0, bits & 2 == 0, bits & 4 == 0])
}

/// Every combination of client and host, each with some transfers; at least those whose sides agree are cut.
fn every_combination(lab: &CutLab, sb: &Signalbox, sizes: &[(u64, u64)]) {
    for client in kinds() {
        become_kind(&lab.client, client);
        for host in kinds() {
            become_kind(lab.host("east-1"), host);
            become_kind(lab.host("west-1"), host);
            let before = cut::opened(sb);
            let mut count = 0;
            for door in cut::doors().into_iter().filter(|door| door.port != 80) {
                for (n, &(flows, most)) in (0..).zip(sizes) {
                    let patience = Duration::from_secs(45);
                    let load = Load {
                        at_once: 8,
                        count: flows,
                        most,
                        patience,
                    };
                    let wrong = load.run(lab, &door, n);
                    let case = format!("client {client:?}, host {host:?}, {}", door.at);
                    assert!(
                        wrong.is_empty(),
                        "{case}: {} failed, such as: {}",
                        wrong.len(),
                        wrong[0]
                    );
                    count += flows;
                }
            }
            let cut = cut::opened(sb) - before;
            // An option that the client lacks need not be offered to the host; one that only the host lacks rules out
            // a cut.
            let can = client.iter().zip(host).all(|(client, host)| !client || host);
            println!("client {client:?}, host {host:?}: {cut} of {count} cut");
            if can {
                assert!(
                    cut::lenient() || cut >= count * 9 / 10,
                    "client {client:?}, host {host:?}: {cut} of {count}\n{}",
                    cut::reasons(sb)
                );
            }
        }
    }
    expect_none(sb);
}

mod share_4 {
    use super::*;

    #[lab_test]
    fn timestamps_sack_and_window_scaling_in_every_combination() {
        let lab = cut::lab();
        let _servers = transfers::servers(&lab);
        let (_health, sb) = cut::start(&lab, "");
        every_combination(&lab, &sb, &[(8, 3), (8, 50_000), (2, 2 * MIB)]);
    }

    #[lab_test]
    fn every_mix_of_tcp_options_works_on_bad_links() {
        let lab = cut::lab();
        let _servers = transfers::servers(&lab);
        let (_health, sb) = cut::start(&lab, "");
        let _client = Impaired::client_link(&lab, Odds::ALL);
        let _hosts = ["east-1", "west-1"].map(|host| Impaired::host_link(&lab, host, Odds::ALL));
        every_combination(&lab, &sb, &[(8, 50_000)]);
    }
}

#[lab_test]
fn ecn_at_either_end_or_both() {
    let lab = cut::lab();
    let _servers = transfers::servers(&lab);
    let (_health, sb) = cut::start(&lab, "");
    for (client, host, balancer) in [
        ("1", "1", "2"),
        ("1", "0", "2"),
        ("0", "1", "1"),
        ("1", "1", "1"),
        ("2", "1", "0"),
    ] {
        for (ns, ecn) in [
            (&lab.client, client),
            (lab.host("east-1"), host),
            (lab.host("west-1"), host),
            (&lab.lb, balancer),
        ] {
            ns.must(&["sysctl", "-qw", &format!("net.ipv4.tcp_ecn={ecn}")]);
        }
        let before = cut::opened(&sb);
        for door in cut::doors() {
            let load = Load {
                at_once: 8,
                count: 20,
                most: MIB,
                patience: Duration::from_secs(10),
            };
            load.must(&lab, &door, 1);
        }
        let cut = cut::opened(&sb) - before;
        println!("ECN client {client}, host {host}, balancer {balancer}: {cut} of 120 cut");
        assert!(cut::lenient() || cut >= 108, "{cut} of 120 cut");
    }
    expect_none(&sb);
}

#[lab_test]
fn flows_that_are_older_than_their_peers_clocks_are_young() {
    // A receiver discards segments that seem older than earlier ones (PAWS): after a pause the other end's clock must
    // have advanced.
    let lab = cut::lab();
    let _servers = transfers::servers(&lab);
    let (_health, sb) = cut::start(&lab, "");
    let streams: Vec<_> = cut::TCP
        .iter()
        .map(|(at, _)| lab.client.run(|| connect_here(at).unwrap()))
        .collect();
    streams.iter().for_each(|stream| drop(cut::expect_cut(&sb, stream)));
    std::thread::sleep(Duration::from_secs(15));
    for stream in &streams {
        exchange::client(stream, 1, MIB, MIB).unwrap();
    }
    drop(streams);
    expect_none(&sb);
}

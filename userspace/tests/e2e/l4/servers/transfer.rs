//! Bytes in quantity, both ways, over both protocols and both families; and while the balancer is killed.

use std::process::Stdio;

use super::east::{self, ALL};
use super::iperf::{self, PROGRAMS, client, counted, number, report};
use crate::lab::{Lab, SOON, Signalbox, available, eventually, privileged};

/// Addresses of the client and of the service, by family.
const WAYS: [(&str, &str); 2] = [("10.1.0.2", "10.1.0.1"), ("fd00:1::2", "fd00:1::1")];
/// Senders: the client, or with this argument the server; and the balancer's name for the direction.
const BOTH: [(&[&str], &str); 2] = [(&[], "in"), (&["--reverse"], "out")];

fn start() -> (Lab, iperf::Servers, Signalbox) {
    let lab = Lab::new();
    let servers = iperf::servers(&lab);
    let sb = east::start(&lab, &iperf::body());
    (lab, servers, sb)
}

#[test]
fn streams_flow_both_ways_and_their_bytes_are_counted() {
    const NAME: &str = "streams_flow_both_ways_and_their_bytes_are_counted";
    if !privileged(NAME) || !available(NAME, &PROGRAMS) {
        return;
    }
    let (lab, _servers, sb) = start();
    for (from, to) in WAYS {
        for (way, direction) in BOTH {
            let before = counted(&sb, "tcp", direction);
            let words = [&["--time", "2", "--parallel", "2"][..], way].concat();
            let report = report(&client(&lab, from, to, &words).output().unwrap());
            let received = number(&report, "/end/sum_received/bytes");
            let counted = counted(&sb, "tcp", direction) - before;
            println!("{to} {direction}: {:.2} Gbit/s", received * 4.0 / 1e9);
            // Headers and retransmissions are counted, too.
            assert!(
                received > 1e7 && counted >= received,
                "{to} {direction}: {received}, {counted} counted"
            );
            assert!(
                counted < received * 1.2,
                "{to} {direction}: {received}, {counted} counted"
            );
        }
    }
}

#[test]
fn datagrams_flow_both_ways_and_the_balancer_loses_none() {
    const NAME: &str = "datagrams_flow_both_ways_and_the_balancer_loses_none";
    if !privileged(NAME) || !available(NAME, &PROGRAMS) {
        return;
    }
    let (lab, _servers, sb) = start();
    let overflowed = || -> f64 {
        let hosts = ALL.map(|host| iperf::overflowed(lab.host(host)));
        hosts.iter().sum::<f64>() + iperf::overflowed(&lab.client)
    };
    for (from, to) in WAYS {
        for (way, direction) in BOTH {
            let before = (counted(&sb, "udp", direction), overflowed());
            let words = [
                &["--udp", "--bitrate", "50M", "--length", "1400", "--time", "2"][..],
                way,
            ]
            .concat();
            let report = report(&client(&lab, from, to, &words).output().unwrap());
            let (sent, lost) = (
                number(&report, "/end/sum/packets"),
                number(&report, "/end/sum/lost_packets"),
            );
            println!("{to} {direction}: {sent} datagrams, {lost} lost");
            assert!(sent > 5000.0, "{to} {direction}: {sent} datagrams");
            // Packets that a socket had no room for while its program got no CPU did arrive.
            let lost = lost - (overflowed() - before.1);
            assert!(lost <= 3.0, "{to} {direction}: {lost} of {sent} lost");
            let counted = counted(&sb, "udp", direction) - before.0;
            let size = if to.contains(':') { 1448.0 } else { 1428.0 };
            assert!(
                (counted / size - sent).abs() < 10.0,
                "{to} {direction}: {sent} sent, {counted} bytes counted"
            );
        }
    }
}

#[test]
fn transfers_go_on_while_signalbox_is_killed() {
    const NAME: &str = "transfers_go_on_while_signalbox_is_killed";
    if !privileged(NAME) || !available(NAME, &PROGRAMS) {
        return;
    }
    let (lab, _servers, mut sb) = start();
    for (from, to) in WAYS {
        for (way, direction) in BOTH {
            let before = counted(&sb, "tcp", direction);
            let words = [&["--time", "3", "--parallel", "4"][..], way].concat();
            let mut client = client(&lab, from, to, &words).stdout(Stdio::piped()).spawn().unwrap();
            assert!(eventually(SOON, || counted(&sb, "tcp", direction) > before + 1e7));
            sb.kill9();
            assert!(
                client.try_wait().unwrap().is_none(),
                "it was over before the balancer was"
            );
            let report = report(&client.wait_with_output().unwrap());
            // Streams all four still had bytes in the last of three seconds.
            let last = report["intervals"][2]["streams"].as_array().unwrap();
            let moved = |stream| number(stream, "/bytes") > 0.0;
            assert!(last.len() == 4 && last.iter().all(moved), "{to} {direction}: {last:#?}");
            // The programs have continued to count; the next process finds the counts.
            sb = east::start(&lab, &iperf::body());
            let (counted, received) = (
                counted(&sb, "tcp", direction) - before,
                number(&report, "/end/sum_received/bytes"),
            );
            assert!(counted >= received, "{to} {direction}: {received}, {counted} counted");
        }
    }
}

//! Sends RSTs to both ends of a flow that has no sockets.
//!
//! An end accepts a RST at the number that it expects next. Of a flow that another balancer has carried that number may
//! be unknown: a bare acknowledgement far outside of the end's window makes it say its numbers (RFC 9293, section
//! 3.10.7.4), and the RST follows when the answer has come past.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use signalbox_common::cut::flow::{CutFlow, DirState, RESYNC, SUPERSEDED};
use signalbox_common::net::header::{ACK, RST, TCP_HEADER};
use socket2::Domain;

use crate::address::from_words;
use crate::capabilities::raw_socket;

const TCP: u8 = 6;
const HOP_LIMIT: u8 = 64;

/// Resets both ends of a flow: at the sequence number that each expects next, which it has last acknowledged, so that
/// it accepts the RST (RFC 5961, section 3).
pub(super) fn reset_both(flow: &CutFlow) -> std::io::Result<()> {
    let ports = |ports: u32| ((ports >> 16) as u16, ports as u16);
    let (client_port, vip) = ports(flow.ports_a);
    let (backend, local) = ports(flow.ports_b);
    let at = |words, port| SocketAddr::new(from_words(words), port);
    let flags = |way: &DirState| if way.flags & RESYNC == 0 { RST | ACK } else { ACK };
    // The last known number may still be the right one: a question there would be no question.
    let number = |way: &DirState| {
        if way.flags & RESYNC == 0 {
            way.ack
        } else {
            way.ack ^ (1 << 31)
        }
    };
    let to_client = packet(
        at(flow.vip, vip),
        at(flow.client, client_port),
        number(&flow.dirs[0]),
        flow.dirs[0].snd_max,
        flags(&flow.dirs[0]),
    );
    let to_host = packet(
        at(flow.local, local),
        at(flow.host_addr, backend),
        number(&flow.dirs[1]),
        flow.dirs[1].snd_max,
        flags(&flow.dirs[1]),
    );
    let [client, host] = flow.dirs.map(|way| way.flags & SUPERSEDED == 0);
    // A leg is left out where another connection has its ports by now: that one would be reset.
    if client {
        send(at(flow.client, 0), &to_client)?;
    }
    if host {
        send(at(flow.host_addr, 0), &to_host)?;
    }
    Ok(())
}

/// Sends one end a RST in the name of the other, at `seq`, which it expects next.
pub fn reset_one(from: SocketAddr, to: SocketAddr, seq: u32, ack: u32) -> std::io::Result<()> {
    send(SocketAddr::new(to.ip(), 0), &packet(from, to, seq, ack, RST | ACK))
}

/// Logs that a RST could not be sent: the first time as a warning, because both ends then wait in vain.
pub(super) fn log_failure(error: &std::io::Error) {
    static IS_LOGGED: AtomicBool = AtomicBool::new(false);
    if IS_LOGGED.swap(true, Relaxed) {
        tracing::debug!(%error, "A reset could not be sent.");
    } else {
        tracing::warn!(
            %error,
            "A reset could not be sent: client and host of an ended flow wait in vain. It takes CAP_NET_RAW. Further ones are logged at level debug."
        );
    }
}

fn send(to: SocketAddr, packet: &[u8]) -> std::io::Result<()> {
    let socket = raw_socket(Domain::for_address(to))?;
    socket.send_to(packet, &to.into()).map(drop)
}

fn packet(from: SocketAddr, to: SocketAddr, seq: u32, ack: u32, flags: u8) -> Vec<u8> {
    let mut tcp = Vec::with_capacity(TCP_HEADER as usize);
    tcp.extend(from.port().to_be_bytes());
    tcp.extend(to.port().to_be_bytes());
    tcp.extend(seq.to_be_bytes());
    tcp.extend(ack.to_be_bytes());
    tcp.extend([5 << 4, flags, 0, 0, 0, 0, 0, 0]);
    let mut pseudo = Vec::new();
    let mut ip = Vec::with_capacity(60);
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            // The kernel fills in length and checksum of the IPv4 header.
            ip.extend([0x45, 0, 0, 0, 0, 0, 0, 0, HOP_LIMIT, TCP, 0, 0]);
            ip.extend(from.octets());
            ip.extend(to.octets());
            pseudo.extend([from.octets(), to.octets()].concat());
        }
        (from, to) => {
            let octets = |ip: IpAddr| match ip {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            ip.extend([0x60, 0, 0, 0, 0, TCP_HEADER as u8, TCP, HOP_LIMIT]);
            ip.extend(octets(from));
            ip.extend(octets(to));
            pseudo.extend([octets(from), octets(to)].concat());
        }
    }
    pseudo.extend([0, TCP, 0, TCP_HEADER as u8]);
    pseudo.extend(&tcp);
    let sum = pseudo
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
        .sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
    ip.extend(tcp);
    ip
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_right() {
        let (from, to) = ("192.0.2.1:443", "198.51.100.2:50000");
        let packet = packet(from.parse().unwrap(), to.parse().unwrap(), 0x0102_0304, 5, RST | ACK);
        assert_eq!((packet.len(), packet[0]), (40, 0x45));
        let words = |bytes: &[u8]| {
            bytes
                .chunks(2)
                .map(|p| u32::from(p[0]) << 8 | u32::from(p[1]))
                .sum::<u32>()
        };
        let sum = words(&packet[12..]) + u32::from(TCP) + TCP_HEADER;
        assert_eq!(sum % 0xffff, 0, "header and pseudo-header add up to nothing");
    }
}

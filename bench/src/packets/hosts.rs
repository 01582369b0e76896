//! Hosts that answer packets until they start to count them, and then only count.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use signalbox_lab::{Ns, Worker};

use super::{PORT, PORTS};
use crate::lab::{HOSTS, Lab};

/// The two hosts, running until dropped.
pub(super) struct PacketHosts {
    _workers: Vec<Worker>,
    /// Listeners for signalbox' health checks. No process accepts: the kernel's handshake is enough.
    _listeners: Vec<TcpListener>,
}

impl PacketHosts {
    pub(super) fn start(lab: &Lab) -> Result<Self> {
        let (mut workers, mut listeners) = (Vec::new(), Vec::new());
        for (number, (ns, address)) in (0..).zip(lab.hosts.iter().zip(HOSTS)) {
            let (sockets, listener) = ns.run(|| bind(address))?;
            listeners.push(listener);
            workers.push(Worker::start(move |stop| answer(&sockets, number, stop)));
        }
        Ok(Self {
            _workers: workers,
            _listeners: listeners,
        })
    }

    /// Begins to count: from now on packets are counted where they come in, and go no further.
    pub(super) fn count<'a>(&self, lab: &'a Lab) -> Result<Counter<'a>> {
        let last = PORT + PORTS - 1;
        for (ns, address) in lab.hosts.iter().zip(HOSTS) {
            let rules = format!(
                "table netdev sink {{
                   counter arrived {{ }}
                   chain in {{
                     type filter hook ingress device eth0 priority 0
                     ip daddr {address} udp dport {PORT}-{last} counter name arrived drop
                   }}
                 }}"
            );
            ns.try_must(&["nft", "-f", "-"], &rules)?;
        }
        Ok(Counter { hosts: &lab.hosts })
    }
}

fn bind(address: Ipv4Addr) -> Result<(Vec<UdpSocket>, TcpListener)> {
    let socket = |port| -> Result<UdpSocket> {
        let socket = UdpSocket::bind((address, port))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let sockets = (PORT..PORT + PORTS).map(socket).collect::<Result<_>>()?;
    Ok((sockets, TcpListener::bind((address, PORT))?))
}

/// Answers each packet with the host's number.
fn answer(sockets: &[UdpSocket], number: u8, stop: &AtomicBool) {
    let mut buffer = [0; 64];
    while !stop.load(Ordering::Relaxed) {
        let mut ready: Vec<_> = sockets
            .iter()
            .map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN))
            .collect();
        let _ = poll(&mut ready, PollTimeout::from(100u8));
        for socket in sockets {
            while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&[number], from);
            }
        }
    }
}

/// Counter of the packets that arrive at the hosts, until dropped.
pub(super) struct Counter<'a> {
    hosts: &'a [Ns],
}

impl Counter<'_> {
    /// Packets that have arrived so far, host by host.
    pub(super) fn arrived(&self) -> Result<Vec<u64>> {
        self.hosts.iter().map(arrived).collect()
    }
}

impl Drop for Counter<'_> {
    fn drop(&mut self) {
        for ns in self.hosts {
            let _ = ns.output(&["nft", "delete", "table", "netdev", "sink"]);
        }
    }
}

fn arrived(ns: &Ns) -> Result<u64> {
    let counters = ns.try_must(&["nft", "list", "counters", "table", "netdev", "sink"], "")?;
    packets(&counters).context("nft reports no packet counter")
}

/// Parses the `N` of `packets N bytes M`.
fn packets(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace().skip_while(|word| *word != "packets");
    words.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::packets;

    #[test]
    fn counters_are_read_as_nft_writes_them() {
        let text = "table netdev sink {\n\tcounter arrived {\n\t\tpackets 1234 bytes 56\n\t}\n}\n";
        assert_eq!(packets(text), Some(1234));
        assert_eq!(packets("table netdev sink {\n}\n"), None);
    }
}

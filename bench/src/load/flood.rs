//! Flood of SYNs whose senders do not exist: no one receives the answers.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use signalbox_lab::Ns;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Network of the senders (RFC 2544's for benchmarks), which the balancer routes to the client.
pub(crate) const SENDERS: &str = "198.18.0.0/15";
const FIRST_SENDER: u32 = u32::from_be_bytes([198, 18, 0, 0]);
const SENDER_COUNT: u32 = 1 << 17;

/// Time for which SYNs are sent at once.
const BURST_INTERVAL: Duration = Duration::from_millis(1);

const IP_BYTES: usize = 20;
const SYN_BYTES: usize = IP_BYTES + 40;

/// Runs `work` while `rate` SYNs a second reach a target. Returns its result, and how many have been sent.
pub(crate) fn during<T>(ns: &Ns, target: SocketAddrV4, rate: u32, work: impl FnOnce() -> T) -> Result<(T, u64)> {
    let socket = ns.run(|| Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW))))?;
    let (is_over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let done = std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(&socket, target, rate, &is_over, &sent));
        let done = work();
        is_over.store(true, Relaxed);
        sending.join().map(|outcome| outcome.map(|()| done))
    });
    let done = done.ok().context("the flood's thread has ended")??;
    Ok((done, sent.load(Relaxed)))
}

fn send(socket: &Socket, target: SocketAddrV4, rate: u32, is_over: &AtomicBool, sent: &AtomicU64) -> Result<()> {
    let (to, began) = (SockAddr::from(target), Instant::now());
    let mut number = 0u32;
    while !is_over.load(Relaxed) {
        let due = (began.elapsed().as_secs_f64() * f64::from(rate)) as u32;
        while number < due {
            let sender = Ipv4Addr::from(FIRST_SENDER + number.wrapping_mul(40_503) % SENDER_COUNT);
            let port = 1024 + (number % 60_000) as u16;
            match socket.send_to(&syn(SocketAddrV4::new(sender, port), target, number), &to) {
                Ok(_) => _ = sent.fetch_add(1, Relaxed),
                // The interface's queue is full: the remaining SYNs are not sent.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(error).context("a SYN could not be sent"),
            }
            number += 1;
        }
        std::thread::sleep(BURST_INTERVAL);
    }
    Ok(())
}

/// A SYN as Linux sends it, with all options. The kernel fills in the length and the checksum of the IP header.
fn syn(from: SocketAddrV4, to: SocketAddrV4, number: u32) -> [u8; SYN_BYTES] {
    let mut packet = [0; SYN_BYTES];
    packet[..IP_BYTES].copy_from_slice(&[0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    packet[12..16].copy_from_slice(&from.ip().octets());
    packet[16..20].copy_from_slice(&to.ip().octets());
    let tcp = &mut packet[IP_BYTES..];
    tcp[..2].copy_from_slice(&from.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&to.port().to_be_bytes());
    tcp[4..8].copy_from_slice(&number.wrapping_mul(2_654_435_761).to_be_bytes());
    // Length of the header, SYN, window; MSS, SACK permitted, timestamps, window scale.
    tcp[12..16].copy_from_slice(&[0xa0, 2, 0xfa, 0xf0]);
    tcp[20..].copy_from_slice(&[2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 1, 3, 3, 7]);
    tcp[28..32].copy_from_slice(&(number | 1).to_be_bytes());
    let checksum = checksum(&packet);
    packet[IP_BYTES + 16..IP_BYTES + 18].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// Checksum of a packet's segment with its pseudo header (RFC 9293, section 3.1).
fn checksum(packet: &[u8; SYN_BYTES]) -> u16 {
    let words = packet[12..].chunks_exact(2);
    let protocol_and_length = 6 + (SYN_BYTES - IP_BYTES) as u32;
    let sum: u32 = protocol_and_length
        + words
            .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
            .sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded + (folded >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_syn_has_a_checksum_that_verifies() {
        for number in [0, 1, 77_777, u32::MAX] {
            let from = SocketAddrV4::new(Ipv4Addr::new(198, 18, 3, 4), 1025);
            let packet = syn(from, SocketAddrV4::new(Ipv4Addr::new(10, 71, 1, 1), 80), number);
            // With the checksum in its place the sum is all ones.
            assert_eq!(checksum(&packet), 0, "{packet:?}");
        }
    }
}

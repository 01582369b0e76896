//! TCP options of a host, as seen in its answers to health checks.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use signalbox_common::cut::flow::{OFFERED_SACK, OFFERED_TIMESTAMPS};

use crate::sys::TcpInfo;

/// Bit that is set once a host has answered. Its options (`OFFERED_*`) are beside it, its MSS in the upper half.
const IS_KNOWN: u32 = 1 << 7;

/// Bytes that timestamps take in each segment (RFC 7323, appendix A).
const TIMESTAMP_BYTES: u32 = 12;

/// Number of bytes by which an IPv6 header is longer than an IPv4 header.
const IPV6_EXTRA_BYTES: u32 = 20;

/// Minimum MSS, over IPv4, that is announced to clients because of a host: one host with a narrow link must not shrink
/// the segments of all clients.
pub const MIN_COMMON_MSS: u32 = 1200;

/// Options of a host's SYN-ACK, and the time that it took.
#[derive(Debug, Default)]
pub struct HostHandshake {
    options: AtomicU32,
    /// Microseconds; 0: not known.
    round_trip: AtomicU32,
}

impl HostHandshake {
    /// Notes the host's options from a connection to it.
    pub fn note(&self, info: &TcpInfo, is_ipv6: bool) {
        let stamps = if info.has_timestamps { OFFERED_TIMESTAMPS } else { 0 };
        let sack = if info.has_sack { OFFERED_SACK } else { 0 };
        let mut mss = info.send_mss;
        if info.has_timestamps {
            mss += TIMESTAMP_BYTES;
        }
        if is_ipv6 {
            mss += IPV6_EXTRA_BYTES;
        }
        let options = IS_KNOWN | u32::from(stamps | sack);
        self.options.store(options | mss.min(0xffff) << 16, Relaxed);
        self.round_trip
            .store(info.round_trip.as_micros().min(1 << 30) as u32, Relaxed);
    }

    /// Copies what another instance has noted since the last call.
    pub fn take_from(&self, other: &Self) {
        let known = other.options.swap(0, Relaxed);
        if known != 0 {
            self.options.store(known, Relaxed);
            self.round_trip.store(other.round_trip.load(Relaxed), Relaxed);
        }
    }

    /// Time in which the host answers, as far as a check has shown it.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        let micros = self.round_trip.load(Relaxed);
        (micros != 0).then(|| Duration::from_micros(micros.into()))
    }

    /// Whether the host lacks an option that this machine offers (`OFFERED_*`), or accepts only small segments. A
    /// client that was offered more before its host was known cannot be carried to that host in the kernel.
    #[must_use]
    pub fn lacks(&self, offered: u8) -> bool {
        let known = self.options.load(Relaxed);
        let wanted = u32::from(offered & (OFFERED_TIMESTAMPS | OFFERED_SACK));
        known != 0 && (known & wanted != wanted || known >> 16 < MIN_COMMON_MSS)
    }

    /// Largest segment that the host accepts, as an MSS over IPv4. `None` if it is unknown, or too small to be
    /// announced to clients.
    #[must_use]
    pub fn mss(&self) -> Option<u32> {
        let mss = self.options.load(Relaxed) >> 16;
        (mss >= MIN_COMMON_MSS).then_some(mss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(has_timestamps: bool, has_sack: bool) -> TcpInfo {
        TcpInfo {
            state: 1,
            bytes_acked: 0,
            bytes_received: 0,
            scales: None,
            send_window: None,
            send_mss: 1448,
            round_trip: Duration::ZERO,
            has_timestamps,
            has_sack,
        }
    }

    #[test]
    fn a_host_lacks_what_it_has_not_answered() {
        let all = OFFERED_TIMESTAMPS | OFFERED_SACK;
        let host = HostHandshake::default();
        assert!(!host.lacks(all), "nothing is known");
        for (known, offered, lacks) in [
            (info(true, true), all, false),
            (info(false, true), all, true),
            (info(false, true), OFFERED_SACK, false),
            (info(true, false), all, true),
            (info(false, false), 0, false),
        ] {
            host.note(&known, false);
            assert_eq!(host.lacks(offered), lacks, "{known:?}");
        }
        let check = HostHandshake::default();
        check.note(&info(true, true), false);
        host.take_from(&check);
        assert!(!host.lacks(all));
        host.note(&info(false, false), false);
        host.take_from(&check);
        assert!(host.lacks(all), "what was noted before says nothing any more");
        assert_eq!(host.round_trip(), None);
        let round_trip = Duration::from_micros(250);
        check.note(
            &TcpInfo {
                round_trip,
                ..info(true, true)
            },
            false,
        );
        host.take_from(&check);
        assert_eq!(host.round_trip(), Some(round_trip));
    }

    #[test]
    fn an_mss_is_told_as_ipv4_has_it_unless_it_is_tiny() {
        let host = HostHandshake::default();
        assert_eq!(host.mss(), None, "nothing is known");
        for (has_timestamps, is_ipv6, send_mss, mss) in [
            (true, false, 1448, Some(1460)),
            (false, false, 1460, Some(1460)),
            (true, true, 1328, Some(1360)),
            (true, false, 1187, None),
            (true, false, 65_483, Some(65_495)),
        ] {
            let info = TcpInfo {
                send_mss,
                ..info(has_timestamps, true)
            };
            host.note(&info, is_ipv6);
            assert_eq!(host.mss(), mss, "{info:?}");
            assert_eq!(host.lacks(OFFERED_SACK), mss.is_none(), "{info:?}");
        }
    }
}

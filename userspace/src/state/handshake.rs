//! TCP options of a host, as its answers to health checks show them.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use signalbox_common::cut::flow::{OFFERED_SACK, OFFERED_TIMESTAMPS};

use crate::sys::TcpInfo;

/// Bit that says that a host has answered. Its options (`OFFERED_*`) are the bits above, its MSS the lower half.
const IS_KNOWN: u32 = 1 << 31;

/// Options and MSS of a host's SYN-ACK.
#[derive(Debug, Default)]
pub struct HostHandshake(AtomicU32);

impl HostHandshake {
    /// Notes what a connection to the host says of it.
    pub fn note(&self, info: &TcpInfo) {
        /// Bytes of the timestamps' option in each segment, with padding.
        const TIMESTAMPS_BYTES: u32 = 12;
        let (stamps, stamp_bytes) = if info.has_timestamps {
            (OFFERED_TIMESTAMPS, TIMESTAMPS_BYTES)
        } else {
            (0, 0)
        };
        let sack = if info.has_sack { OFFERED_SACK } else { 0 };
        let mss = (info.send_mss + stamp_bytes).min(0xffff);
        self.0.store(IS_KNOWN | u32::from(stamps | sack) << 16 | mss, Relaxed);
    }

    /// Takes over what another one knows.
    pub fn copy_from(&self, other: &Self) {
        let known = other.0.load(Relaxed);
        if known != 0 {
            self.0.store(known, Relaxed);
        }
    }

    /// Whether the host lacks an option that this machine offers (`OFFERED_*`), or takes smaller segments than `mss`: a
    /// client that was offered more before its host was known cannot be carried to it in the kernel.
    #[must_use]
    pub fn lacks(&self, offered: u8, mss: u32) -> bool {
        let known = self.0.load(Relaxed);
        let wanted = offered & (OFFERED_TIMESTAMPS | OFFERED_SACK);
        known != 0 && ((known >> 16) as u8 & wanted != wanted || known & 0xffff < mss)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn info(has_timestamps: bool, has_sack: bool, send_mss: u32) -> TcpInfo {
        TcpInfo {
            state: 1,
            bytes_acked: 0,
            bytes_received: 0,
            scales: None,
            send_window: None,
            send_mss,
            round_trip: Duration::ZERO,
            has_timestamps,
            has_sack,
        }
    }

    #[test]
    fn a_host_lacks_what_it_has_not_answered() {
        let all = OFFERED_TIMESTAMPS | OFFERED_SACK;
        let host = HostHandshake::default();
        assert!(!host.lacks(all, 1460), "nothing is known");
        for (known, offered, mss, lacks) in [
            (info(true, true, 1448), all, 1460, false),
            (info(true, true, 1447), all, 1460, true),
            (info(false, true, 1460), all, 1460, true),
            (info(false, true, 1460), OFFERED_SACK, 1460, false),
            (info(true, false, 1448), all, 1460, true),
            (info(true, true, 65_483), all, 1460, false),
        ] {
            host.note(&known);
            assert_eq!(host.lacks(offered, mss), lacks, "{known:?}");
        }
        let other = HostHandshake::default();
        host.copy_from(&other);
        assert!(!host.lacks(all, 1460), "who knows nothing says nothing");
        other.note(&info(false, false, 536));
        host.copy_from(&other);
        assert!(host.lacks(OFFERED_SACK, 536));
    }
}

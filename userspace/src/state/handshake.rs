//! TCP options of a host, as its answers to health checks show them.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use signalbox_common::cut::flow::{OFFERED_SACK, OFFERED_TIMESTAMPS};

use crate::sys::TcpInfo;

/// Bit that says that a host has answered; its options (`OFFERED_*`) are beside it.
const IS_KNOWN: u8 = 1 << 7;

/// Options of a host's SYN-ACK.
#[derive(Debug, Default)]
pub struct HostHandshake(AtomicU8);

impl HostHandshake {
    /// Notes what a connection to the host says of it.
    pub fn note(&self, info: &TcpInfo) {
        let stamps = if info.has_timestamps { OFFERED_TIMESTAMPS } else { 0 };
        let sack = if info.has_sack { OFFERED_SACK } else { 0 };
        self.0.store(IS_KNOWN | stamps | sack, Relaxed);
    }

    /// Takes over what another one has noted since the last call.
    pub fn take_from(&self, other: &Self) {
        let known = other.0.swap(0, Relaxed);
        if known != 0 {
            self.0.store(known, Relaxed);
        }
    }

    /// Whether the host lacks an option that this machine offers (`OFFERED_*`): a client that was offered it before its
    /// host was known cannot be carried to it in the kernel.
    #[must_use]
    pub fn lacks(&self, offered: u8) -> bool {
        let known = self.0.load(Relaxed);
        let wanted = offered & (OFFERED_TIMESTAMPS | OFFERED_SACK);
        known != 0 && known & wanted != wanted
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
            host.note(&known);
            assert_eq!(host.lacks(offered), lacks, "{known:?}");
        }
        let check = HostHandshake::default();
        check.note(&info(true, true));
        host.take_from(&check);
        assert!(!host.lacks(all));
        host.note(&info(false, false));
        host.take_from(&check);
        assert!(host.lacks(all), "what was noted before says nothing any more");
    }
}

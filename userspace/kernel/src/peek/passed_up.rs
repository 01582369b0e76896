//! Connections that the program passes up without a socket: userspace makes their sockets.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use aya::maps::{MapData, RingBuf};
use signalbox_common::peek::abi::PassedUp;

/// A connection without a socket, and the first bytes of its client.
pub struct PassedUpConnection {
    pub about: PassedUp,
    pub bytes: Box<[u8]>,
}

/// Ring of these connections, filled by the program. Readable when there are some.
pub struct PassedUpRing {
    pub(super) ring: RingBuf<MapData>,
    pub(super) hold: Arc<OwnedFd>,
}

impl PassedUpRing {
    /// Returns the program that keeps packets from a socket that is being made: for `SO_ATTACH_BPF`.
    #[must_use]
    pub fn hold(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.hold)
    }
}

impl Iterator for PassedUpRing {
    type Item = PassedUpConnection;

    fn next(&mut self) -> Option<PassedUpConnection> {
        // A record that is shorter was written by no program of ours.
        loop {
            let record = self.ring.next()?;
            if let Some(connection) = decode(&record) {
                return Some(connection);
            }
        }
    }
}

impl AsRawFd for PassedUpRing {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

fn decode(record: &[u8]) -> Option<PassedUpConnection> {
    let bytes = record.get(PassedUp::BYTES..)?;
    // SAFETY: the record has at least `PassedUp::BYTES` bytes, which are no fewer than the struct has; every bit pattern
    // is a value of it.
    let about = unsafe { record.as_ptr().cast::<PassedUp>().read_unaligned() };
    Some(PassedUpConnection {
        about,
        bytes: bytes.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_records_are_skipped_and_bytes_are_taken() {
        let mut record = vec![0; PassedUp::BYTES - 1];
        assert!(decode(&record).is_none());
        record.push(0);
        assert!(decode(&record).is_some_and(|connection| connection.bytes.is_empty()));
        record.extend(b"GET");
        assert_eq!(&*decode(&record).unwrap().bytes, b"GET");
    }
}

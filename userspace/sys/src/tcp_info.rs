//! `getsockopt(TCP_INFO)`: the kernel's statistics of a connection.

use std::ffi::c_void;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use super::check;

/// Parts of `struct tcp_info` (`include/uapi/linux/tcp.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// `TCP_ESTABLISHED` is 1, `TCP_CLOSE` 7, `TCP_CLOSE_WAIT` 8.
    pub state: u8,
    /// Bytes that the peer has acknowledged; kernel 4.1+.
    pub bytes_acked: u64,
    /// Bytes of the peer that have arrived in order, a FIN counted as one; kernel 4.1+.
    pub bytes_received: u64,
    /// Window scales announced by the peer and by us, where both have announced one.
    pub scales: Option<(u8, u8)>,
    /// Bytes that the peer accepts beyond the last that it has acknowledged; kernel 5.4+.
    pub send_window: Option<u32>,
    /// Largest payload that is sent in a segment.
    pub send_mss: u32,
    /// Smoothed round-trip time; 0 where nothing has been measured.
    pub round_trip: Duration,
    /// Whether both ends write timestamps.
    pub has_timestamps: bool,
    /// Whether both ends take selective acknowledgements.
    pub has_sack: bool,
}

pub const TCP_CLOSE: u8 = 7;

/// Flags of `tcpi_options` (`include/uapi/linux/tcp.h`).
const TCPI_OPT_TIMESTAMPS: u8 = 1;
const TCPI_OPT_SACK: u8 = 2;
const TCPI_OPT_WSCALE: u8 = 4;

impl TcpInfo {
    /// Returns whether the peer's FIN has arrived: TIME_WAIT, CLOSE, CLOSE_WAIT, LAST_ACK or CLOSING
    /// (`include/net/tcp_states.h`).
    #[must_use]
    pub const fn peer_finished(&self) -> bool {
        matches!(self.state, 6..=9 | 11)
    }
}

/// `getsockopt(TCP_INFO)`.
pub fn tcp_info(fd: RawFd) -> io::Result<TcpInfo> {
    // libc's struct ends before the fields wanted here: their offsets are fixed ABI.
    let mut raw = [0u8; 256];
    let mut len = raw.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into the buffer.
    let ret = unsafe {
        libc::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            raw.as_mut_ptr().cast::<c_void>(),
            &raw mut len,
        )
    };
    check(ret as isize)?;
    if len < 136 {
        return Err(io::Error::other(
            "the kernel's TCP_INFO is too old: kernel 4.1 or later is needed",
        ));
    }
    let u64_at = |at: usize| {
        let mut bytes = [0u8; 8];
        bytes.copy_from_slice(&raw[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    // Two bit fields of four bits, the peer's first.
    let scales = if cfg!(target_endian = "little") {
        (raw[6] & 15, raw[6] >> 4)
    } else {
        (raw[6] >> 4, raw[6] & 15)
    };
    let u32_at = |at: usize| raw[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
    Ok(TcpInfo {
        state: raw[0],
        // Linux 5.4.
        send_window: (len >= 232).then(|| u32_at(228)),
        send_mss: u32_at(16),
        round_trip: Duration::from_micros(u32_at(68).into()),
        has_timestamps: raw[5] & TCPI_OPT_TIMESTAMPS != 0,
        has_sack: raw[5] & TCPI_OPT_SACK != 0,
        bytes_acked: u64_at(120),
        bytes_received: u64_at(128),
        scales: (raw[5] & TCPI_OPT_WSCALE != 0).then_some(scales),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::super::{cookie, shutdown_write};
    use super::*;

    /// The offsets into `struct tcp_info` are right, and a FIN counts as one byte received.
    #[test]
    fn tcp_info_counts_bytes_and_the_fin() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut b, _) = listener.accept().unwrap();
        a.write_all(&[7; 1000]).unwrap();
        let mut buf = [0; 1000];
        b.read_exact(&mut buf).unwrap();
        let info = tcp_info(b.as_raw_fd()).unwrap();
        assert!((500..65_536).contains(&info.send_mss), "{info:?}");
        assert!(
            info.round_trip < Duration::from_secs(1) && info.send_window.unwrap() > 1000,
            "{info:?}"
        );
        assert_eq!((info.state, info.bytes_received), (1, 1000));
        shutdown_write(a.as_raw_fd()).unwrap();
        assert_eq!(b.read(&mut buf).unwrap(), 0);
        let info = tcp_info(b.as_raw_fd()).unwrap();
        assert_eq!((info.state, info.bytes_received), (8, 1001));
        assert_ne!(cookie(a.as_raw_fd()).unwrap(), cookie(b.as_raw_fd()).unwrap());
    }
}

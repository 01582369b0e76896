//! Windows that sockets offer, and the scale in which they announce them.

use std::io;
use std::os::fd::RawFd;

use super::{set_int, tcp_info};

/// Least window that the kernel lets a socket be limited to, in bytes: `SOCK_MIN_RCVBUF / 2`. The offered window is
/// rounded up to the next multiple of the window scale's unit (`__tcp_select_window`, net/ipv4/tcp_output.c).
pub const MIN_LIMITED_WINDOW: u32 = 1152;

/// Offers a connection's peer as small a window as the kernel allows, [`MIN_LIMITED_WINDOW`]: less than a segment of
/// most paths, so that the peer waits. Bytes within earlier offers still arrive. The kernel lifts the limit when it
/// enlarges the buffer (`tcp_rcv_space_adjust`, net/ipv4/tcp_input.c).
pub fn limit_window(fd: RawFd) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, 1)
}

/// Lifts the limit of [`limit_window`].
pub fn unlimit_window(fd: RawFd) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, 1 << 30)
}

/// Returns the window scale that the peer has announced, where both ends have announced one and they differ.
#[must_use]
pub fn differing_window_scale(fd: RawFd) -> Option<u8> {
    let info = tcp_info(fd).ok()?;
    info.scales
        .filter(|(peers, ours)| peers != ours)
        .map(|(peers, _)| peers)
}

/// Returns the window scale that the peer has announced, limited to `most`, where both ends have announced one.
#[must_use]
pub fn window_scale_up_to(fd: RawFd, most: u8) -> Option<u8> {
    let (peers, _) = tcp_info(fd).ok()?.scales?;
    Some(peers.min(most))
}

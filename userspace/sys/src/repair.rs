//! Sockets of connections whose handshake another part of the machine has done: they are made in repair mode
//! (`TCP_REPAIR`, net/ipv4/tcp.c), in which the kernel takes the numbers as they are and sends nothing.
//!
//! Minimum kernel: 4.19. Needs CAP_NET_ADMIN.

use std::ffi::c_int;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd as _, BorrowedFd};

use socket2::{Domain, Protocol, Socket, Type};

use super::{check, send, set_int};

/// Leaves repair mode without a window probe (4.19).
pub(crate) const TCP_REPAIR_OFF_NO_WP: c_int = -1;
/// Values of `TCP_REPAIR_QUEUE` (include/uapi/linux/tcp.h).
pub(crate) const TCP_RECV_QUEUE: c_int = 1;
pub(crate) const TCP_SEND_QUEUE: c_int = 2;
/// Kinds of TCP options, as `TCP_REPAIR_OPTIONS` takes them.
const WINDOW_SCALE: u32 = 3;
const SACK_PERMITTED: u32 = 4;
const TIMESTAMPS: u32 = 8;
/// Least MSS that a socket may have (`TCP_MIN_MSS`, include/net/tcp.h).
const MIN_MSS: u16 = 88;

/// State of a connection after its handshake and the client's first bytes.
#[derive(Clone, Copy, Debug)]
pub struct RepairedConnection<'a> {
    pub local: SocketAddr,
    pub peer: SocketAddr,
    /// Sequence number of the first byte that is sent to the peer.
    pub first_sent: u32,
    /// Sequence number of the peer's first byte.
    pub first_received: u32,
    /// The peer's first bytes, which have not been acknowledged.
    pub bytes: &'a [u8],
    /// Most bytes of a segment that the peer accepts.
    pub mss: u16,
    /// Window scales of the peer and of this end; 0 without the option.
    pub scales: (u8, u8),
    pub has_sack: bool,
    /// TSval to go on with, in ms; `None` without timestamps.
    pub timestamp: Option<u32>,
    /// Window that the peer offers, and the one that it was offered, in bytes.
    pub windows: (u32, u32),
}

/// `struct tcp_repair_opt`.
#[repr(C)]
struct RepairOption {
    code: u32,
    value: u32,
}

/// `struct tcp_repair_window`.
#[repr(C)]
struct RepairWindow {
    snd_wl1: u32,
    snd_wnd: u32,
    max_window: u32,
    rcv_wnd: u32,
    rcv_wup: u32,
}

/// Makes the socket of a connection; non-blocking. Fails with `AddrNotAvailable` if there is one already. The peer gets
/// an acknowledgement with the first read. `hold`: a socket filter that drops everything. Packets that arrive before the
/// socket is whole would be answered with a wrong clock, or be queued before the first bytes. `prepare` is called before it
/// gets the first packet.
pub fn connect_repaired(
    connection: &RepairedConnection<'_>,
    hold: BorrowedFd<'_>,
    prepare: impl FnOnce(),
) -> io::Result<TcpStream> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let domain = Domain::for_address(connection.local);
    let socket = Socket::new_raw(domain, kind, Some(Protocol::TCP))?;
    let fd = socket.as_raw_fd();
    let tcp = |name, value| set_int(fd, libc::IPPROTO_TCP, name, value);
    // A listener may have a prefix, whose addresses no interface has.
    match domain {
        Domain::IPV4 => set_int(fd, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1)?,
        _ => set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1)?,
    }
    tcp(libc::TCP_REPAIR, 1)?;
    tcp(libc::TCP_MAXSEG, connection.mss.max(MIN_MSS).into())?;
    socket.bind(&connection.local.into())?;
    tcp(libc::TCP_REPAIR_QUEUE, TCP_SEND_QUEUE)?;
    tcp(libc::TCP_QUEUE_SEQ, connection.first_sent.cast_signed())?;
    tcp(libc::TCP_REPAIR_QUEUE, TCP_RECV_QUEUE)?;
    tcp(libc::TCP_QUEUE_SEQ, connection.first_received.cast_signed())?;
    set_int(fd, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, hold.as_raw_fd())?;
    socket.connect(&connection.peer.into())?;
    set_options(&socket, connection)?;
    if let Some(timestamp) = connection.timestamp {
        // The lowest bit asks for microseconds (6.7). A value that is one ahead is later than those sent before.
        tcp(libc::TCP_TIMESTAMP, (timestamp.wrapping_add(1) & !1).cast_signed())?;
    }
    // In this mode, bytes that are written arrive in the queue of received ones.
    if !connection.bytes.is_empty() && send(fd, connection.bytes)? != connection.bytes.len() {
        return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
    }
    set_window(&socket, connection)?;
    tcp(libc::TCP_REPAIR, TCP_REPAIR_OFF_NO_WP)?;
    // As the listeners have them: another one could not be bound to the address.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_tcp_nodelay(true)?;
    prepare();
    set_int(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0)?;
    Ok(socket.into())
}

fn set_options(socket: &Socket, connection: &RepairedConnection<'_>) -> io::Result<()> {
    let (peers, ours) = connection.scales;
    let option = |code, value| RepairOption { code, value };
    // Scales of 0 are set too: the kernel has chosen one for this end.
    let mut options = vec![option(WINDOW_SCALE, u32::from(ours) << 16 | u32::from(peers))];
    options.extend(connection.has_sack.then(|| option(SACK_PERMITTED, 0)));
    options.extend(connection.timestamp.map(|_| option(TIMESTAMPS, 0)));
    set(socket, libc::TCP_REPAIR_OPTIONS, options.as_slice())
}

/// Sets the windows as they were before the peer's bytes: then the first read finds a window to open, and sends an
/// acknowledgement (`__tcp_cleanup_rbuf`, net/ipv4/tcp.c).
fn set_window(socket: &Socket, connection: &RepairedConnection<'_>) -> io::Result<()> {
    let (peers, ours) = connection.windows;
    let window = RepairWindow {
        snd_wl1: connection.first_received,
        snd_wnd: peers,
        max_window: peers,
        rcv_wnd: ours,
        rcv_wup: connection.first_received,
    };
    set(socket, libc::TCP_REPAIR_WINDOW, std::slice::from_ref(&window))
}

/// Sets an option of TCP to an array of structs.
fn set<T>(socket: &Socket, name: c_int, values: &[T]) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as the array has.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            name,
            values.as_ptr().cast(),
            size_of_val(values) as libc::socklen_t,
        )
    };
    check(result as isize).map(drop)
}

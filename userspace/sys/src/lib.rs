//! System calls of the datapath that no crate wraps the way it needs them. Every one is non-blocking.

mod clock;
mod error;
mod file_stamp;
mod private_file;
mod process;
mod repair;
mod service_manager;
mod tcp_info;
mod window;

use std::io::{self, IoSliceMut};
use std::mem::{size_of, zeroed};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use libc::{c_int, c_void};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, getsockname, recvmsg};

pub use clock::{monotonic, unix_ms};
pub use error::error_chain;
pub use file_stamp::FileStamp;
pub use private_file::{private_directory, sync_directory, write_private};
pub use process::{end_with_parent, host_name, node_name};
pub use repair::{RepairedConnection, connect_repaired};
use repair::{TCP_RECV_QUEUE, TCP_REPAIR_OFF_NO_WP, TCP_SEND_QUEUE};
pub use service_manager::{is_listening, take_descriptors};
pub use tcp_info::{TCP_CLOSE, TcpInfo, tcp_info};
pub use window::{MIN_LIMITED_WINDOW, differing_window_scale, limit_window, unlimit_window, window_scale_up_to};

fn check(ret: isize) -> io::Result<usize> {
    usize::try_from(ret).map_err(|_| io::Error::last_os_error())
}

/// Fills a buffer with random bytes (`getrandom(2)`): at most 256, which are never cut short.
pub fn random_bytes(buf: &mut [u8]) -> io::Result<()> {
    debug_assert!(buf.len() <= 256, "longer reads may be cut short");
    // SAFETY: the buffer is valid for writes of its length during the call.
    check(unsafe { libc::getrandom(buf.as_mut_ptr().cast::<c_void>(), buf.len(), 0) }).map(drop)
}

/// `recv(2)` with flags.
pub fn recv(fd: RawFd, buf: &mut [u8], flags: c_int) -> io::Result<usize> {
    // SAFETY: the buffer is valid for writes of its length during the call.
    check(unsafe {
        libc::recv(
            fd,
            buf.as_mut_ptr().cast::<c_void>(),
            buf.len(),
            flags | libc::MSG_DONTWAIT,
        )
    })
}

/// `send(2)`; a closed peer is an error, not a signal.
pub fn send(fd: RawFd, buf: &[u8]) -> io::Result<usize> {
    // SAFETY: the buffer is valid for reads of its length during the call.
    check(unsafe {
        libc::send(
            fd,
            buf.as_ptr().cast::<c_void>(),
            buf.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    })
}

/// `splice(2)`, at most `len` bytes.
pub fn splice(from: RawFd, to: RawFd, len: usize) -> io::Result<usize> {
    let flags = libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE;
    // SAFETY: none of our memory is touched; null offsets are right for pipes and sockets.
    check(unsafe { libc::splice(from, std::ptr::null_mut(), to, std::ptr::null_mut(), len, flags) })
}

/// A pipe (read end, write end) whose buffer holds `size` bytes, or as many as the kernel allows.
pub fn pipe(size: usize) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: the array holds the two descriptors that the call writes.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC) } as isize)?;
    // SAFETY: both descriptors are new and have no other owner.
    let pair = unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
    // SAFETY: no memory is touched. Failure (pipe-user-pages-soft) leaves a smaller pipe, which works too.
    unsafe { libc::fcntl(pair.1.as_raw_fd(), libc::F_SETPIPE_SZ, size as c_int) };
    Ok(pair)
}

/// Returns the sequence numbers of the next byte that a connection sends, and of the next that it expects.
///
/// Needs `CAP_NET_ADMIN`: the kernel shows the numbers in repair mode only (`tcp_getsockopt`, `TCP_QUEUE_SEQ`).
/// Segments that arrive in that mode are received; queued bytes are sent a moment later.
pub fn sequence_numbers(fd: RawFd) -> io::Result<(u32, u32)> {
    let number = |queue| {
        set_int(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, queue)?;
        get::<u32>(fd, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ)
    };
    // Repair mode changes whether the address may be bound again, too.
    let reuse: c_int = get::<u32>(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR)?.cast_signed();
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, 1)?;
    let numbers = number(TCP_SEND_QUEUE).and_then(|sent| Ok((sent, number(TCP_RECV_QUEUE)?)));
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, TCP_REPAIR_OFF_NO_WP)?;
    set_int(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, reuse)?;
    numbers
}

/// Returns the sequence number of the first byte that has not been read from a connection. Needs `CAP_NET_ADMIN`.
pub fn next_unread_sequence(fd: RawFd) -> io::Result<u32> {
    const MAX_READINGS: usize = 1000;
    for _ in 0..MAX_READINGS {
        let info = tcp_info(fd)?;
        let left = unread(fd)?;
        let (_, expected) = sequence_numbers(fd)?;
        if tcp_info(fd)?.bytes_received == info.bytes_received && unread(fd)? == left {
            return Ok(expected.wrapping_sub(left).wrapping_sub(info.peer_finished().into()));
        }
    }
    Err(io::Error::other("bytes arrive faster than they can be counted"))
}

/// Bytes that have arrived in order and have not been read (`SIOCINQ`).
pub fn unread(fd: RawFd) -> io::Result<u32> {
    let mut bytes: c_int = 0;
    // SAFETY: the ioctl writes one int.
    check(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut bytes) } as isize)?;
    Ok(bytes.max(0).cast_unsigned())
}

/// Bytes written to the socket that the peer has not acknowledged (`SIOCOUTQ`).
pub fn unacknowledged(fd: RawFd) -> io::Result<u64> {
    let mut bytes: c_int = 0;
    // SAFETY: the ioctl writes one int.
    check(unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) } as isize)?;
    Ok(bytes.max(0) as u64)
}

/// Returns whether nothing is under way on an established connection: all bytes sent are acknowledged, all received
/// bytes are read, and neither end has finished.
pub fn is_quiet(fd: RawFd) -> io::Result<bool> {
    const TCP_ESTABLISHED: u8 = 1;
    Ok(unread(fd)? == 0 && unacknowledged(fd)? == 0 && tcp_info(fd)?.state == TCP_ESTABLISHED)
}

/// Sends an acknowledgement that the kernel has delayed, if there is one (`__tcp_sock_set_quickack`, net/ipv4/tcp.c).
pub fn send_due_acknowledgement(fd: RawFd) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, 1)
}

/// Returns the TCP timestamp that a connection writes now, less the milliseconds of `CLOCK_MONOTONIC`; 0 if it is not
/// available. Never behind, and at most a millisecond ahead: the kernel uses the lowest bit for something else (6.8+,
/// `tcp_getsockopt`).
#[must_use]
pub fn timestamp_clock(fd: RawFd) -> u32 {
    let stamp = get::<u32>(fd, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP);
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    match (stamp, now) {
        (Ok(stamp), Ok(now)) => {
            let milliseconds = now.tv_sec() as u64 * 1000 + now.tv_nsec() as u64 / 1_000_000;
            stamp.wrapping_add(1).wrapping_sub(milliseconds as u32)
        }
        _ => 0,
    }
}

/// `getsockopt(SO_COOKIE)`: the number by which BPF programs know the socket. Kernel 4.12+.
pub fn cookie(fd: RawFd) -> io::Result<u64> {
    get(fd, libc::SOL_SOCKET, libc::SO_COOKIE)
}

/// `getsockopt(SO_NETNS_COOKIE)`: the number of the socket's network namespace. Kernel 5.14+.
pub fn netns_cookie(fd: RawFd) -> io::Result<u64> {
    const SO_NETNS_COOKIE: c_int = 71;
    get(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE)
}

/// Reads a socket option that is a number.
fn get<T: Copy + Default + Into<u64>>(fd: RawFd, level: c_int, name: c_int) -> io::Result<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes no more bytes than the given length; any bytes are a valid number.
    let ret = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast::<c_void>(), &raw mut len) };
    check(ret as isize)?;
    Ok(value)
}

/// Makes the kernel look at a socket's receive queue again (`SO_RCVLOWAT` ends in `tcp_data_ready`).
pub fn recheck_receive_queue(fd: RawFd) -> io::Result<()> {
    set_int(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1)
}

fn set_int(fd: RawFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads one int.
    check(unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast::<c_void>(), len) } as isize).map(drop)
}

/// Sets SO_LINGER to 0: closing the socket then sends RST instead of FIN.
pub fn reset_on_close(fd: RawFd) {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let len = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: the kernel reads one struct linger. Failure means the socket is gone already.
    unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast::<c_void>(),
            len,
        )
    };
}

/// Shuts a socket for writing, which sends FIN; the other direction stays open.
pub fn shutdown_write(fd: RawFd) -> io::Result<()> {
    // SAFETY: no memory is touched.
    check(unsafe { libc::shutdown(fd, libc::SHUT_WR) } as isize).map(drop)
}

/// Takes the pending error off a socket.
pub fn take_error(fd: RawFd) -> Option<io::Error> {
    let mut error: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes one int.
    let ret = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&raw mut error).cast::<c_void>(),
            &raw mut len,
        )
    };
    (ret == 0 && error != 0).then(|| io::Error::from_raw_os_error(error))
}

/// Returns whether a connection has been reset, or given up by the kernel.
///
/// The state alone is not enough: a socket that was closed both ways in good order is in `TCP_CLOSE` too, with bytes
/// yet to be read. Nor is the error: `SO_ERROR` also reports a router's "host unreachable", or a route that is missing
/// for a moment, which must not end a connection (RFC 1122, section 4.2.3.9).
pub fn is_dead(fd: RawFd) -> bool {
    let Some(error) = take_error(fd) else { return false };
    match error.raw_os_error() {
        Some(libc::ECONNRESET | libc::EPIPE | libc::ECONNABORTED | libc::ETIMEDOUT) => true,
        // The kernel closes the connection with the last soft error that it received.
        _ => tcp_info(fd).is_ok_and(|info| info.state == TCP_CLOSE),
    }
}

/// Returns the name of an interface's driver (`ETHTOOL_GDRVINFO`), by any socket of the network namespace.
pub fn interface_driver(socket: &impl AsRawFd, name: &str) -> io::Result<String> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    const ETHTOOL_GDRVINFO: u32 = 3;
    /// `struct ethtool_drvinfo` (`include/uapi/linux/ethtool.h`).
    #[repr(C)]
    struct Info {
        command: u32,
        driver: [u8; 32],
        rest: [u8; 160],
    }
    let mut info = Info {
        command: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        rest: [0; 160],
    };
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        // `c_char` is signed on x86, not on Arm.
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_data = (&raw mut info).cast();
    // SAFETY: the ioctl reads one ifreq, and writes to the struct that its pointer refers to, which has the length that
    // the kernel expects.
    unsafe { check(libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) as isize)? };
    let end = info.driver.iter().position(|b| *b == 0).unwrap_or(info.driver.len());
    Ok(String::from_utf8_lossy(&info.driver[..end]).into_owned())
}

/// Begins to connect from an address and port; non-blocking. Announces window scale `scale` where the kernel would
/// choose a larger one: it announces the scale that the largest window needs (`tcp_select_initial_window`,
/// net/ipv4/tcp_output.c).
pub fn connect_from(local: SocketAddr, to: SocketAddr, scale: Option<u8>) -> io::Result<TcpStream> {
    use socket2::{Domain, Protocol, Socket, Type};
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new_raw(Domain::for_address(to), kind, Some(Protocol::TCP))?;
    socket.bind(&local.into())?;
    if let Some(scale) = scale {
        // Where the kernel refuses it, the programs find a scale that does not fit, and leave the flow to another tier.
        let _ = set_int(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_WINDOW_CLAMP,
            0xffff << scale.min(14),
        );
    }
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}

/// Sets the range of source ports that the kernel may choose from for this socket: `IP_LOCAL_PORT_RANGE`, kernel 6.3+.
pub fn set_local_port_range(fd: RawFd, range: &RangeInclusive<u16>) -> io::Result<()> {
    /// `include/uapi/linux/in.h`.
    const IP_LOCAL_PORT_RANGE: c_int = 51;
    let range = c_int::from(*range.end()) << 16 | c_int::from(*range.start());
    set_int(fd, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, range)
}

/// Returns whether a connect failed because this machine ran out of resources: descriptors, memory, source ports.
pub fn is_out_of_resources(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::EADDRNOTAVAIL | libc::ENOBUFS | libc::ENOMEM)
    )
}

/// Accepts a connection, non-blocking. The standard library would take another call for that, and tokio one more to
/// register it.
pub fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: storage and length are those that `try_init` offers for the kernel to write; the descriptor is new and
    // has no other owner.
    let (stream, peer) = unsafe {
        socket2::SockAddr::try_init(|storage, len| {
            let fd = check(libc::accept4(listener.as_raw_fd(), storage.cast(), len, flags) as isize)?;
            Ok(TcpStream::from_raw_fd(fd as RawFd))
        })
    }?;
    let peer = peer.as_socket().ok_or(io::ErrorKind::Unsupported)?;
    Ok((stream, peer))
}

/// Returns the local address of a socket; an IPv4-mapped address as IPv4.
pub fn local_addr(socket: &impl AsRawFd) -> io::Result<SocketAddr> {
    let local: SockaddrStorage = getsockname(socket.as_raw_fd())?;
    let v4 = local.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into()));
    v4.or_else(|| local.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())))
        .map(canonical)
        .ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Converts an IPv4-mapped address: `::ffff:a.b.c.d` to `a.b.c.d`.
#[must_use]
pub fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// Registers a descriptor with tokio, for reading.
pub fn async_readable<T: AsRawFd>(inner: T) -> io::Result<tokio::io::unix::AsyncFd<T>> {
    // SAFETY: every `T` used here owns its descriptor and keeps it open and the same until it is dropped.
    unsafe { tokio::io::unix::AsyncFd::register_with_interest(inner, tokio::io::Interest::READABLE) }
        .map_err(Into::into)
}

/// An epoll instance beside tokio's, for sockets whose every packet would otherwise wake tokio.
pub struct Epoll(OwnedFd);

impl Epoll {
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is touched.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } as isize)?;
        // SAFETY: the descriptor is new and has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    fn control(&self, op: c_int, socket: &TcpStream, events: u32, key: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: events | libc::EPOLLONESHOT as u32,
            u64: key,
        };
        // SAFETY: the kernel reads one epoll_event.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, socket.as_raw_fd(), &raw mut event) } as isize).map(drop)
    }

    /// Watches a socket for one event (EPOLLONESHOT).
    pub fn add(&self, socket: &TcpStream, events: u32, key: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, events, key)
    }

    /// Watches a socket for one more event.
    pub fn rearm(&self, socket: &TcpStream, events: u32, key: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, socket, events, key)
    }

    /// Stops watching a socket. A socket that is not watched is no error.
    pub fn remove(&self, socket: &TcpStream) {
        let _ = self.control(libc::EPOLL_CTL_DEL, socket, 0, 0);
    }

    /// Fetches the events that have happened: (key, events). Does not wait.
    pub fn wait(&self, out: &mut Vec<(u64, u32)>) -> io::Result<()> {
        // SAFETY: all-zero epoll_events are valid.
        let mut events: [libc::epoll_event; 64] = unsafe { zeroed() };
        // SAFETY: the kernel writes at most 64 events; a timeout of 0 returns at once.
        let n = check(unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), 64, 0) } as isize)?;
        out.clear();
        out.extend(events.iter().take(n).map(|event| (event.u64, event.events)));
        Ok(())
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Most descriptors that one message can carry (`SCM_MAX_FD`).
pub const MAX_DESCRIPTORS: usize = 253;

/// Receives the descriptors of one message (`SCM_RIGHTS`); none at the end of the stream.
pub fn receive_descriptors(stream: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut space = nix::cmsg_space!([RawFd; MAX_DESCRIPTORS]);
    let mut byte = [0u8; 1];
    let mut iov = [IoSliceMut::new(&mut byte)];
    let message = recvmsg::<()>(
        stream.as_raw_fd(),
        &mut iov,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let mut fds = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(got) = control {
            // SAFETY: the kernel has just made these descriptors for us alone.
            fds.extend(got.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok(fds)
}

/// Raises the nice value of the calling thread (setpriority(2)): it runs when others have had their turn. Errors are
/// ignored: lowering the value again needs `CAP_SYS_NICE`.
pub fn set_nice(nice: i32) {
    // SAFETY: no memory is concerned; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}

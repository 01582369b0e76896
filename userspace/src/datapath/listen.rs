//! Opens listening sockets; names the process that already holds an address.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use ipnet::IpNet;
use signalbox_core::model::Bind;
use socket2::{Domain, Protocol, Socket, Type};

/// Length of the accept queue; the kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Reason why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error(
        "{addr} is already in use{}: stop that process, or give the listener another address (a running signalbox is replaced with `--takeover`)",
        owner.as_ref().map(|o| format!(" by {o}")).unwrap_or_default()
    )]
    InUse { addr: SocketAddr, owner: Option<String> },
    #[error("{addr} is not an address of this machine: add it, or let keepalived bring it")]
    NotLocal { addr: SocketAddr },
    #[error("{bind}: a prefix needs sk_lookup (kernel 5.9, CAP_NET_ADMIN and CAP_BPF), which is not available here")]
    PrefixNeedsSteering { bind: Bind },
    #[error(
        "{count} listening addresses are more than the {} that the kernel's map holds: use prefixes",
        signalbox_common::steer::MAX_BINDINGS
    )]
    TooMany { count: usize },
    #[error("listening on {addr} failed")]
    Other {
        addr: SocketAddr,
        #[source]
        source: io::Error,
    },
}

fn socket(addr: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // Connections to the address in TIME_WAIT, or still established, must not keep the socket from being bound.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    Ok(socket)
}

fn listening(socket: Socket) -> io::Result<TcpListener> {
    // TCP_NODELAY is inherited by accepted sockets, which saves a system call for each.
    socket.set_tcp_nodelay(true)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Calls `listen` on bound sockets: only from now on does the kernel accept connections for them.
pub fn listen_all(sockets: &[TcpListener]) -> io::Result<()> {
    sockets
        .iter()
        .try_for_each(|socket| socket2::SockRef::from(socket).listen(BACKLOG))
}

/// Opens sockets for `sk_lookup` to steer to: one per group of workers and address family, on a loopback address and a
/// port that is not published. Without IPv6 on the machine, only IPv4 is served.
pub fn open_steered(count: usize) -> io::Result<Vec<TcpListener>> {
    complete_steered(Vec::new(), count)
}

/// Adds sockets to the inherited ones until each family has `count`, and puts IPv4 first: the groups of workers use
/// them in turn.
pub fn complete_steered(inherited: Vec<TcpListener>, count: usize) -> io::Result<Vec<TcpListener>> {
    let is_v4 = |socket: &TcpListener| socket.local_addr().is_ok_and(|addr| addr.is_ipv4());
    let (v4, v6) = inherited.into_iter().partition(is_v4);
    let mut all = complete_group(v4, Ipv4Addr::LOCALHOST.into(), count)?;
    match complete_group(v6, Ipv6Addr::LOCALHOST.into(), count) {
        Ok(v6) => all.extend(v6),
        Err(error) => tracing::warn!(%error, "IPv6 is not served: it is switched off on this machine."),
    }
    Ok(all)
}

/// Adds sockets to those of one family until there are `count`.
fn complete_group(mut group: Vec<TcpListener>, loopback: IpAddr, count: usize) -> io::Result<Vec<TcpListener>> {
    while group.len() < count {
        let addr = group
            .first()
            .map_or_else(|| Ok((loopback, 0).into()), TcpListener::local_addr)?;
        let socket = socket(addr, true)?;
        socket.bind(&addr.into())?;
        group.push(listening(socket)?);
    }
    Ok(group)
}

/// Opens another socket in the SO_REUSEPORT group of `listener`.
pub fn open_sibling(listener: &TcpListener) -> io::Result<TcpListener> {
    let addr = listener.local_addr()?;
    let socket = socket(addr, true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&addr.into())?;
    listening(socket)
}

/// Listening address of a bind without `sk_lookup`: a single address, or a family's wildcard.
fn plain_addr(bind: &Bind) -> Option<SocketAddr> {
    bind.single().or_else(|| {
        (bind.prefix.prefix_len() == 0).then(|| match bind.prefix {
            IpNet::V4(_) => (Ipv4Addr::UNSPECIFIED, bind.port).into(),
            IpNet::V6(_) => (Ipv6Addr::UNSPECIFIED, bind.port).into(),
        })
    })
}

/// Binds sockets to an address, one for each group of workers, without listening yet.
pub fn bind_all(bind: &Bind, count: usize) -> Result<Vec<TcpListener>, ListenError> {
    let addr = plain_addr(bind).ok_or(ListenError::PrefixNeedsSteering { bind: *bind })?;
    check_free(bind)?;
    let open = || -> io::Result<TcpListener> {
        let socket = socket(addr, true)?;
        if addr.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&addr.into())?;
        socket.set_tcp_nodelay(true)?;
        Ok(socket.into())
    };
    (0..count)
        .map(|_| open().map_err(|error| explain(addr, error)))
        .collect()
}

/// Checks that no other process listens on a bind. With `sk_lookup` the kernel reports no conflict: the other process
/// would silently lose its clients to the balancer.
pub fn check_free(bind: &Bind) -> Result<(), ListenError> {
    // A prefix is tested at its first address, a wildcard at the wildcard address.
    let addr = plain_addr(bind).unwrap_or_else(|| (bind.prefix.addr(), bind.port).into());
    let attempt = || -> io::Result<()> {
        let socket = socket(addr, false)?;
        if addr.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&addr.into())?;
        // Binding alone would succeed even if the other listener allows address reuse.
        socket.listen(1)
    };
    attempt().map_err(|error| explain(addr, error))
}

fn explain(addr: SocketAddr, error: io::Error) -> ListenError {
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => ListenError::InUse {
            addr,
            owner: owning_process(addr),
        },
        Some(libc::EADDRNOTAVAIL) => ListenError::NotLocal { addr },
        _ => ListenError::Other { addr, source: error },
    }
}

/// Finds the process that listens on an address, from /proc: `nginx (pid 4211)`.
fn owning_process(addr: SocketAddr) -> Option<String> {
    let inode = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].iter().find_map(|table| {
        let text = fs::read_to_string(table).ok()?;
        text.lines().skip(1).find_map(|line| listening_inode(line, addr))
    })?;
    let wanted = format!("socket:[{inode}]");
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(fds) = fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        if fds
            .flatten()
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == wanted.as_str()))
        {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some(format!("{} (pid {pid})", name.trim()));
        }
    }
    None
}

/// Returns the inode in a line of /proc/net/tcp if it is a listener (state 0A) that conflicts with an address.
fn listening_inode(line: &str, addr: SocketAddr) -> Option<String> {
    let mut fields = line.split_whitespace().skip(1);
    let (ip, port) = fields.next()?.split_once(':')?;
    let (_, state, inode) = (fields.next()?, fields.next()?, fields.nth(5)?);
    if state != "0A" || u16::from_str_radix(port, 16).ok()? != addr.port() {
        return None;
    }
    let mut words = ip
        .as_bytes()
        .chunks(8)
        .filter_map(|w| u32::from_str_radix(std::str::from_utf8(w).ok()?, 16).ok());
    let listens: IpAddr = if ip.len() == 8 {
        IpAddr::from(words.next()?.to_ne_bytes())
    } else {
        let mut bytes = [0u8; 16];
        for (at, word) in words.enumerate() {
            bytes.get_mut(at * 4..at * 4 + 4)?.copy_from_slice(&word.to_ne_bytes());
        }
        IpAddr::from(bytes)
    };
    let in_the_way = listens.to_canonical() == addr.ip() || listens.is_unspecified() || addr.ip().is_unspecified();
    in_the_way.then(|| inode.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(addr: SocketAddr) -> Bind {
        Bind {
            prefix: IpNet::from(addr.ip()),
            port: addr.port(),
        }
    }

    #[test]
    fn sockets_of_both_families_are_completed_in_their_order() {
        let families = |sockets: &[TcpListener]| -> Vec<bool> {
            let addrs = sockets.iter().map(|socket| socket.local_addr().unwrap());
            addrs.map(|addr| addr.is_ipv4()).collect()
        };
        let few = open_steered(1).unwrap();
        let has_v6 = families(&few) == [true, false];
        let first = few[0].local_addr().unwrap();
        let all = complete_steered(few, 3).unwrap();
        let expected = if has_v6 {
            vec![true, true, true, false, false, false]
        } else {
            vec![true; 3]
        };
        assert_eq!(families(&all), expected);
        assert!(all[..3].iter().all(|socket| socket.local_addr().unwrap() == first));
        // IPv6 was switched off when the sockets were opened.
        let v4_alone = all.into_iter().take(3).collect();
        assert_eq!(families(&complete_steered(v4_alone, 3).unwrap()), expected);
    }

    #[test]
    fn a_taken_port_names_its_process() {
        for ip in ["127.0.0.1", "0.0.0.0", "[::1]"] {
            let Ok(holder) = TcpListener::bind(format!("{ip}:0")) else {
                continue;
            };
            let port = holder.local_addr().unwrap().port();
            let addr: SocketAddr = format!("{}:{port}", ip.replace("0.0.0.0", "127.0.0.1"))
                .parse()
                .unwrap();
            let error = check_free(&bind(addr)).unwrap_err().to_string();
            assert!(error.contains(&format!("(pid {})", std::process::id())), "{error}");
        }
    }

    #[test]
    fn several_workers_can_bind_a_free_port_and_it_is_then_taken() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let bind = bind(SocketAddr::from(([127, 0, 0, 1], port)));
        let sockets = bind_all(&bind, 3).unwrap();
        listen_all(&sockets).unwrap();
        assert_eq!(sockets.len(), 3);
        assert!(matches!(check_free(&bind), Err(ListenError::InUse { .. })));
    }

    #[test]
    fn a_foreign_address_is_said_to_be_one() {
        let bind = bind("192.0.2.1:80".parse().unwrap());
        assert!(matches!(check_free(&bind), Err(ListenError::NotLocal { .. })));
    }
}

//! Source addresses and ports of the client's connections.
//!
//! Ports are walked through in order rather than left to the kernel, whose search for a free one grows with the number
//! of connections made: that would be the client's cost in every figure. A pair comes back after half a million.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicUsize, Ordering};

use socket2::{Domain, Protocol, Socket, Type};

use crate::lab::CLIENTS;

const FIRST_PORT: usize = 2000;
const PORTS: usize = 60_000;

/// Number of the next address and port, shared by all threads and all runs, so that a port is not taken again while its
/// last connection is remembered.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A socket bound to the next address and port, not connected, not blocking.
pub(crate) fn socket() -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    let (address, port) = nth(NEXT.fetch_add(1, Ordering::Relaxed));
    socket.bind(&SocketAddrV4::new(address, port).into())?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket)
}

/// Address and port number `n`: the address changes each time, the port after all addresses.
fn nth(n: usize) -> (Ipv4Addr, u16) {
    let port = FIRST_PORT + n / CLIENTS.len() % PORTS;
    (CLIENTS[n % CLIENTS.len()], port as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pair_comes_back_early() {
        let all: std::collections::HashSet<_> = (0..PORTS * CLIENTS.len()).map(nth).collect();
        assert_eq!(all.len(), PORTS * CLIENTS.len());
        assert_eq!(nth(PORTS * CLIENTS.len()), nth(0));
        assert!(all.iter().all(|(_, port)| *port >= 2000));
    }
}

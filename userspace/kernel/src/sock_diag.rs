//! TCP connections of this machine by their local address: counted, and ended (sock_diag(7)).

use std::io;
use std::net::IpAddr;

use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};

use crate::address::from_words;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Ends a connection with a reset (kernel 4.9, `CONFIG_INET_DIAG_DESTROY`).
const SOCK_DESTROY: u16 = 21;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Lengths of `struct nlmsghdr` and of `struct inet_diag_sockid`, and the latter's offset in `struct inet_diag_msg`.
const HEADER_BYTES: usize = 16;
const ID_BYTES: usize = 48;
const ID_OFFSET: usize = 4;
/// States of connections, as bits: not of those that listen, are closed, or only wait (TIME_WAIT).
const CONNECTED_STATES: u32 = (1 << 1) | (1 << 2) | (1 << 3) | (1 << 4) | (1 << 5) | (1 << 8) | (1 << 9) | (1 << 11);

/// TCP connection of this network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Address of this end.
    pub local: IpAddr,
    family: u8,
    id: [u8; ID_BYTES],
}

/// Connection to the kernel's socket diagnosis.
pub struct SockDiag(Socket);

impl SockDiag {
    /// Opens it.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self(socket))
    }

    /// Returns the connections whose local address is wanted.
    pub fn connections(&self, is_wanted: impl Fn(IpAddr) -> bool) -> io::Result<Vec<Connection>> {
        let mut found = Vec::new();
        for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
            let request = request(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, family, &[0; ID_BYTES]);
            self.ask(&request, |body| {
                found.extend(connection(body).filter(|connection| is_wanted(connection.local)));
            })?;
        }
        Ok(found)
    }

    /// Ends a connection: its other end gets a reset, its process an error. One that has ended is no error.
    pub fn end(&self, connection: &Connection) -> io::Result<()> {
        let ended = self.ask(
            &request(SOCK_DESTROY, NLM_F_ACK, connection.family, &connection.id),
            |_| {},
        );
        match ended {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        }
    }

    /// Sends a request and hands out the bodies of the answers to it.
    fn ask(&self, request: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.0.send(request, 0)?;
        loop {
            let (answer, _) = self.0.recv_from_full()?;
            let mut rest = answer.as_slice();
            while let Some((header, _)) = rest.split_first_chunk::<HEADER_BYTES>() {
                let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
                let kind = u16::from_ne_bytes([header[4], header[5]]);
                let body = rest.get(HEADER_BYTES..length).unwrap_or_default();
                match kind {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => {
                        let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                        return if code == 0 {
                            Ok(())
                        } else {
                            Err(io::Error::from_raw_os_error(-code))
                        };
                    }
                    _ => each(body),
                }
                rest = rest
                    .get(length.next_multiple_of(4).max(HEADER_BYTES)..)
                    .unwrap_or_default();
            }
        }
    }
}

/// A `struct inet_diag_req_v2` after its header.
fn request(kind: u16, flags: u16, family: u8, id: &[u8; ID_BYTES]) -> Vec<u8> {
    let length = (HEADER_BYTES + 8 + ID_BYTES) as u32;
    let mut bytes = Vec::with_capacity(length as usize);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, libc::IPPROTO_TCP as u8, 0, 0]);
    bytes.extend(CONNECTED_STATES.to_ne_bytes());
    bytes.extend(id);
    bytes
}

/// Reads a `struct inet_diag_msg`.
fn connection(body: &[u8]) -> Option<Connection> {
    let family = *body.first()?;
    let id: [u8; ID_BYTES] = *body.get(ID_OFFSET..)?.first_chunk()?;
    let word = |at: usize| u32::from_be_bytes([id[at], id[at + 1], id[at + 2], id[at + 3]]);
    let local = if i32::from(family) == libc::AF_INET {
        IpAddr::V4(word(4).into())
    } else {
        from_words([word(4), word(8), word(12), word(16)])
    };
    Some(Connection { local, family, id })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    /// Connections of this test alone have this address.
    const LOCAL: Ipv4Addr = Ipv4Addr::new(127, 91, 16, 1);

    #[test]
    fn connections_are_found_by_their_local_address() {
        let listener = TcpListener::bind((LOCAL, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_accepted, _) = listener.accept().unwrap();
        let diag = SockDiag::open().unwrap();
        let found = diag.connections(|address| address == IpAddr::V4(LOCAL)).unwrap();
        // The accepted one; the client's own address is the loopback interface's, or this one.
        assert!((1..=2).contains(&found.len()), "{found:?}");
        assert!(found.iter().all(|connection| connection.local == IpAddr::V4(LOCAL)));
        let ended = found.iter().map(|connection| diag.end(connection)).collect::<Vec<_>>();
        if let Some(Err(error)) = ended.iter().find(|ended| ended.is_err()) {
            // Ordinary users may count and not end.
            assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}");
            return;
        }
        let outcome = client.read(&mut [0; 1]);
        assert!(outcome.is_err(), "the connection is reset: {outcome:?}");
        assert!(
            diag.connections(|address| address == IpAddr::V4(LOCAL))
                .unwrap()
                .is_empty()
        );
        diag.end(&found[0]).unwrap();
    }
}

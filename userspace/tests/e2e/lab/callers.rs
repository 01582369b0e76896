//! Clients that differ only by their address, and the outcome of their calls.

use std::io::{ErrorKind, Read as _, Result};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::services::{ask, greeting};
use super::topology::Lab;

/// Shorter than the second after which a client repeats its SYN: a call is one SYN.
const PATIENCE: Duration = Duration::from_millis(900);

/// Gives the client's namespace a second IPv6 address: [`OTHER_CLIENTS`](super::topology::OTHER_CLIENTS) are IPv4.
pub(crate) fn second_v6(lab: &Lab) -> &'static str {
    lab.client
        .must(&["ip", "addr", "add", "fd00:1::3/64", "dev", "eth0", "nodad"]);
    "fd00:1::3"
}

/// Connects from an address, by one SYN.
pub(crate) fn call(lab: &Lab, from: &str, to: &str) -> Result<TcpStream> {
    let (from, to): (IpAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
    lab.client.run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.bind(&SocketAddr::new(from, 0).into())?;
        socket.connect_timeout(&to.into(), PATIENCE)?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(socket.into())
    })
}

/// Whether a server behind a port speaks first to a client at an address. Otherwise the client must have got no answer
/// at all: a refusal would tell a scanner that something is there.
pub(crate) fn is_greeted(lab: &Lab, from: &str, to: &str) -> bool {
    match call(lab, from, to) {
        Ok(stream) => {
            assert!(
                !greeting(&stream).is_empty(),
                "{from} to {to}: connected, and not served"
            );
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{from} to {to}: {error}");
            false
        }
    }
}

/// Whether an address is answered by UDP.
pub(crate) fn is_answered(lab: &Lab, from: &str, to: &str) -> bool {
    let (from, to): (IpAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let socket = lab.client.run(|| UdpSocket::bind(SocketAddr::new(from, 0)).unwrap());
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    ask(&socket, b"who?").is_some()
}

/// Whether a call reaches a server in the end. For waiting: the change that is waited for may cut or close the
/// connection before it is served.
pub(crate) fn is_served(lab: &Lab, from: &str, to: &str) -> bool {
    let mut byte = [0];
    call(lab, from, to).is_ok_and(|mut stream| stream.read_exact(&mut byte).is_ok())
}

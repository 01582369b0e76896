//! Sockets inside a namespace.

use std::io::Result;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::Ns;

/// Longer than a connect takes whose SYN is lost three times.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

impl Ns {
    /// Connects from inside.
    pub fn connect(&self, to: &str) -> TcpStream {
        self.try_connect(to)
            .unwrap_or_else(|e| panic!("connect to {to} from {}: {e}", self.name()))
    }

    /// Connects from inside, or returns the error.
    pub fn try_connect(&self, to: &str) -> Result<TcpStream> {
        self.run(|| connect_here(to))
    }

    /// Connects from one of the namespace's several addresses.
    pub fn connect_from(&self, from: &str, to: &str) -> TcpStream {
        self.try_connect_from(from, to, CONNECT_TIMEOUT)
            .unwrap_or_else(|e| panic!("connect to {to} from {from} in {}: {e}", self.name()))
    }

    /// Connects from one of the namespace's several addresses, or returns the error.
    pub fn try_connect_from(&self, from: &str, to: &str, limit: Duration) -> Result<TcpStream> {
        self.run(|| {
            let to = address(to);
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
            socket.bind(&address(&format!("{from}:0")).into())?;
            // Blocking: a poll could miss a connection that is reset as soon as it is made.
            socket.set_write_timeout(Some(limit))?;
            socket.connect(&to.into())?;
            guarded(socket.into())
        })
    }

    /// Listens inside.
    pub fn listen(&self, at: &str) -> TcpListener {
        let listen = || -> Result<TcpListener> {
            let at = address(at);
            let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
            socket.set_reuse_address(true)?;
            if at.is_ipv6() {
                socket.set_only_v6(false)?;
            }
            socket.bind(&at.into())?;
            socket.listen(4096)?;
            Ok(socket.into())
        };
        self.run(listen)
            .unwrap_or_else(|e| panic!("listen at {at} in {}: {e}", self.name()))
    }
}

/// Connects from the namespace this thread is in; for closures given to [`Ns::run`] that connect many times.
pub fn connect_here(to: &str) -> Result<TcpStream> {
    guarded(TcpStream::connect_timeout(&address(to), CONNECT_TIMEOUT)?)
}

/// Sets time limits, so that no test waits for ever on a silent peer.
fn guarded(stream: TcpStream) -> Result<TcpStream> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_write_timeout(Some(Duration::from_secs(60)))?;
    Ok(stream)
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

//! Fate of a client's connection behind a request.

use tokio::net::TcpStream;

use super::tunnel::Tunnel;

/// Fate of a client's connection behind a request.
pub(super) enum AfterRequest {
    Closed,
    /// The next request is read.
    Kept(TcpStream),
    Tunnel(Box<Tunnel>),
}

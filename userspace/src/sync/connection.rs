//! A connection to another node: messages in both directions over TLS.

use std::io;
use std::time::Duration;

use signalbox_core::availability::sync::{Decoder, Hello, Message, PROTOCOL, WireError};
use signalbox_tls::nodes::NodeTlsError;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Node;

/// Time for the handshakes of TCP, of TLS and of this protocol.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without a message, or with unacknowledged bytes, after which a connection is given up.
pub(super) const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;

/// Reason why a connection to another node has ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Tls(#[from] NodeTlsError),
    #[error("nothing came for {} s", SILENCE_TIMEOUT.as_secs())]
    Silent,
    #[error("the peer has closed the connection")]
    Closed,
    #[error("the peer speaks version {0} of the protocol, this node version {PROTOCOL}: both need the same")]
    Protocol(u16),
    #[error("{0} is not one of `ha.nodes`")]
    UnknownNode(String),
    #[error("{0} has ha.nodes in another order, or others: all nodes need the same list")]
    OtherNodes(String),
    #[error("a message came that has no place here")]
    Unexpected,
}

impl LinkError {
    /// Whether the other node works, but differs from this one.
    pub(super) const fn is_refusal(&self) -> bool {
        matches!(self, Self::Protocol(_) | Self::UnknownNode(_) | Self::OtherNodes(_))
    }

    /// Label of the reason in metrics.
    pub(super) const fn label(&self) -> &'static str {
        match self {
            Self::Io(_) | Self::Closed => "io",
            Self::Wire(_) | Self::Unexpected => "malformed",
            Self::Tls(_) => "tls",
            Self::Silent => "silent",
            Self::Protocol(_) => "other_protocol",
            Self::UnknownNode(_) => "unknown_node",
            Self::OtherNodes(_) => "other_nodes",
        }
    }
}

/// Sets the options of a peer's socket: low delay, and a short life without acknowledgements.
pub(super) fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket2::SockRef::from(socket).set_tcp_user_timeout(Some(SILENCE_TIMEOUT))
}

/// Reader of a peer's messages.
pub(super) struct Reader<R> {
    io: R,
    decoder: Decoder,
    bytes: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(super) fn new(io: R) -> Self {
        Self {
            io,
            decoder: Decoder::default(),
            bytes: vec![0; READ_BYTES],
        }
    }

    /// The connection itself.
    pub(super) const fn stream(&self) -> &R {
        &self.io
    }

    pub(super) const fn stream_mut(&mut self) -> &mut R {
        &mut self.io
    }

    /// Passes on the messages received so far, and those that arrive with the next bytes.
    pub(super) async fn read(
        &mut self,
        mut each: impl FnMut(Message) -> Result<(), LinkError>,
    ) -> Result<(), LinkError> {
        let mut has_any = false;
        while let Some(message) = self.decoder.next_message()? {
            each(message)?;
            has_any = true;
        }
        if has_any {
            return Ok(());
        }
        self.fill().await?;
        while let Some(message) = self.decoder.next_message()? {
            each(message)?;
        }
        Ok(())
    }

    /// Waits for bytes.
    async fn fill(&mut self) -> Result<(), LinkError> {
        let count = timeout(SILENCE_TIMEOUT, self.io.read(&mut self.bytes))
            .await
            .map_err(|_| LinkError::Silent)??;
        if count == 0 {
            return Err(LinkError::Closed);
        }
        self.decoder.push(&self.bytes[..count]);
        Ok(())
    }

    /// Waits for the peer's first message, and checks that it has the same configuration.
    pub(super) async fn hello(&mut self, node: &Node) -> Result<Hello, LinkError> {
        let hello = loop {
            match self.decoder.next_message()? {
                Some(Message::Hello(hello)) => break hello,
                Some(_) => return Err(LinkError::Unexpected),
                None => self.fill().await?,
            }
        };
        if hello.protocol != PROTOCOL {
            return Err(LinkError::Protocol(hello.protocol));
        }
        let Some(peer) = node.peers.iter().find(|peer| peer.name == hello.node) else {
            return Err(LinkError::UnknownNode(hello.node));
        };
        if (peer.slot, node.nodes) != (hello.slot, hello.nodes) {
            return Err(LinkError::OtherNodes(hello.node));
        }
        Ok(hello)
    }
}

/// Sends this node's first message.
pub(super) async fn send_hello(io: &mut (impl AsyncWrite + Unpin), node: &Node) -> io::Result<()> {
    let mut bytes = Vec::new();
    Message::Hello(Hello {
        protocol: PROTOCOL,
        slot: node.slot,
        nodes: node.nodes,
        node: node.name.clone(),
    })
    .encode(&mut bytes);
    io.write_all(&bytes).await?;
    io.flush().await
}

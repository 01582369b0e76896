//! Byte stream to a broker: TCP, with TLS where configured.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use signalbox_core::model::{Broker, BrokerTls};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use signalbox_sources::pem;

/// Stream over TCP or TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Interval of TCP keep-alive probes, for brokers that grant no heart-beats.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Connects. Files are read at each connection, because certificates are replaced under a running program.
///
/// # Errors
/// Text for operators, with the fix where it is known.
pub(super) async fn connect(broker: &Broker, tls: Option<&BrokerTls>) -> Result<Box<dyn Stream>, String> {
    let tcp = TcpStream::connect((broker.host.as_str(), broker.port))
        .await
        .map_err(|error| format!("connecting: {error}"))?;
    let socket = SockRef::from(&tcp);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_INTERVAL)
        .with_interval(KEEPALIVE_INTERVAL / 3);
    let set = socket
        .set_tcp_keepalive(&keepalive)
        .and_then(|()| tcp.set_nodelay(true));
    set.map_err(|error| format!("setting up the socket: {error}"))?;
    let Some(tls) = tls else { return Ok(Box::new(tcp)) };
    let name = ServerName::try_from(broker.host.clone())
        .map_err(|_| format!("{} cannot be a server name for TLS", broker.host))?;
    let connector = TlsConnector::from(Arc::new(
        pem::client(Some(&tls.ca), tls.identity.as_ref()).map_err(|error| error.to_string())?,
    ));
    let stream = connector
        .connect(name, tcp)
        .await
        .map_err(|error| format!("TLS: {error}"))?;
    Ok(Box::new(stream))
}

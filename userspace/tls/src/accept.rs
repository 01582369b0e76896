//! Handshake with a client.

use std::io;
use std::sync::Arc;

use rustls::{AlertDescription, CertificateError, Error, HandshakeKind, ProtocolVersion, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::stream::TlsStream;

/// Facts of a handshake that has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeFacts {
    /// Whether the version is TLS 1.3; 1.2 otherwise.
    pub is_tls13: bool,
    /// Whether a session was resumed.
    pub is_resumed: bool,
}

/// Reason why a handshake with a client has failed, as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the TLS handshake failed: {0}")]
pub struct HandshakeFailure(pub &'static str);

/// Shakes hands with a client.
///
/// # Errors
///
/// With the reason, if the handshake fails; the client has been sent an alert then, where there is one for it.
pub async fn accept(
    config: Arc<ServerConfig>,
    stream: TcpStream,
) -> Result<(TlsStream, HandshakeFacts), HandshakeFailure> {
    let accepted = TlsAcceptor::from(config).accept(stream).await;
    let stream = accepted.map_err(|error| HandshakeFailure(label(&error)))?;
    let (_, session) = stream.get_ref();
    let facts = HandshakeFacts {
        is_tls13: session.protocol_version() == Some(ProtocolVersion::TLSv1_3),
        is_resumed: session.handshake_kind() == Some(HandshakeKind::Resumed),
    };
    Ok((TlsStream::new(stream), facts))
}

fn label(error: &io::Error) -> &'static str {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::PeerIncompatible(_)) => "incompatible",
        Some(Error::NoCertificatesPresented) => "no_client_certificate",
        Some(Error::InvalidCertificate(fault)) => certificate_label(fault),
        Some(Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown,
        )) => "certificate_refused",
        Some(Error::AlertReceived(_)) => "alert_received",
        Some(Error::InvalidMessage(_) | Error::InappropriateMessage { .. } | Error::PeerMisbehaved(_)) => "malformed",
        Some(_) => "other",
        None => "closed",
    }
}

/// Label of what is wrong with a client's certificate.
const fn certificate_label(fault: &CertificateError) -> &'static str {
    match fault {
        CertificateError::UnknownIssuer => "unknown_client_authority",
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "expired_client_certificate",
        _ => "bad_client_certificate",
    }
}

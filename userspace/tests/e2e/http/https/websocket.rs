//! WebSockets are tunnels of bytes: a host says to a client, and hears from it, the same through the balancer as
//! without it, with any frames, carried by the process or, after a late cut, by the kernel.

use std::io::Read as _;
use std::net::TcpStream;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tungstenite::error::{CapacityError, Error, ProtocolError};
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::protocol::{CloseFrame, WebSocketConfig};

use super::scene::{HTTPS, body, certificate, certificates, trusting};
use super::websocket_cases::{self, Case, MAX_MESSAGE};
use crate::http::request::scene::HTTP;
use crate::lab::{SOON, Server, Signalbox, cut, eventually, lab_test, servers};

const ROUTE: &str = "{ host: a.test, clusters: { east-1: 1 }, tls: { termination: edge, insecure: allow } }";
pub(super) const HOST: &str = "10.2.0.2:80";
pub(super) const UPGRADE: &str = "GET /chat HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
/// The host's answer to that key (RFC 6455, section 1.3).
const ACCEPTED: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

const CASE_TIMEOUT: Duration = Duration::from_secs(60);

/// Sends each message back; closes with an error code if the client breaks the protocol.
pub(super) fn serve(mut stream: &TcpStream) {
    let config = WebSocketConfig::default()
        .max_frame_size(Some(MAX_MESSAGE))
        .max_message_size(Some(MAX_MESSAGE));
    let Ok(mut socket) = tungstenite::accept_with_config(stream, Some(config)) else {
        return;
    };
    let failed = loop {
        let passed = socket.read().and_then(|message| {
            let is_data = message.is_text() || message.is_binary();
            if is_data { socket.send(message) } else { Ok(()) }
        });
        if let Err(error) = passed {
            break error;
        }
    };
    let code = match failed {
        Error::Utf8(_) => Some(CloseCode::Invalid),
        Error::Capacity(CapacityError::MessageTooLong { .. }) => Some(CloseCode::Size),
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) | Error::ConnectionClosed | Error::Io(_) => None,
        _ => Some(CloseCode::Protocol),
    };
    if let Some(code) = code {
        let reason = "".into();
        let _ = socket
            .close(Some(CloseFrame { code, reason }))
            .and_then(|()| socket.flush());
    }
    // Bytes that the client still sends must not make the kernel reset the connection.
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = std::io::copy(&mut stream.by_ref(), &mut std::io::sink());
}

/// Opens a WebSocket, waits until it `is_ready`, sends a case's bytes and returns everything that the host sends after
/// its head.
async fn converse(stream: impl AsyncRead + AsyncWrite, case: &Case, is_ready: impl FnMut() -> bool) -> Vec<u8> {
    let conversation = timeout(CASE_TIMEOUT, try_converse(stream, case, is_ready)).await;
    conversation
        .unwrap_or_else(|_| panic!("{}: no end in time", case.name))
        .unwrap_or_else(|error| panic!("{}: {error}", case.name))
}

async fn try_converse(
    stream: impl AsyncRead + AsyncWrite,
    case: &Case,
    is_ready: impl FnMut() -> bool,
) -> std::io::Result<Vec<u8>> {
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = pin!(tokio::io::BufReader::new(reader));
    writer.write_all(UPGRADE.as_bytes()).await?;
    writer.flush().await?;
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).await? > 0 {}
    assert!(head.starts_with("HTTP/1.1 101 ") && head.contains(ACCEPTED), "{head}");
    assert!(eventually(SOON, is_ready), "{}: the WebSocket is not cut", case.name);
    let said = async {
        let mut said = Vec::new();
        reader.read_to_end(&mut said).await.map(|_| said)
    };
    let sent = async {
        let each = if case.is_chopped { 1 } else { case.bytes.len() };
        for part in case.bytes.chunks(each) {
            writer.write_all(part).await?;
            writer.flush().await?;
        }
        Ok(())
    };
    let (said, ()) = tokio::try_join!(said, sent)?;
    Ok(said)
}

pub(super) fn tokio_stream(stream: TcpStream) -> tokio::net::TcpStream {
    stream.set_nonblocking(true).unwrap();
    stream.set_nodelay(true).unwrap();
    tokio::net::TcpStream::from_std(stream).unwrap()
}

/// Code of the close frame at the end of a host's bytes.
fn close_code(said: &[u8]) -> Option<u16> {
    let at = said.iter().rposition(|byte| *byte == 0x88)?;
    let payload = said.get(at + 2..)?;
    Some(u16::from_be_bytes([*payload.first()?, *payload.get(1)?]))
}

#[lab_test]
fn frames_of_every_kind_pass_unchanged_in_plain_cut_and_in_tls() {
    let lab = cut::lab();
    let ns = lab.host("east-1");
    let _health = servers::healthy(ns);
    let _server = Server::start(ns, "[::]:80", |stream| serve(&stream));
    let pem = certificate(&lab, "lb", &["a.test"]);
    let sb = Signalbox::start(&lab, &body("", &certificates(&pem), &[("east-1", "")], &[ROUTE]));
    sb.wait_healthy(&["east-1"]);
    let tls = TlsConnector::from(Arc::new(trusting(&lab)));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        for case in websocket_cases::all() {
            let name = &case.name;
            let direct = converse(tokio_stream(lab.lb.connect(HOST)), &case, || true).await;
            assert_eq!(
                close_code(&direct),
                case.closes_with,
                "{name}: what the host says by itself"
            );
            let is_same = |way: &str, said: &[u8]| {
                assert!(
                    said == direct,
                    "{name}, {way}: {} bytes of {}",
                    said.len(),
                    direct.len()
                );
            };
            let client = || tokio_stream(lab.client.connect(HTTP));
            is_same("plain", &converse(client(), &case, || true).await);
            if !cut::lenient() {
                let before = late_cuts(&sb);
                is_same("cut", &converse(client(), &case, || late_cuts(&sb) > before).await);
            }
            let stream = tokio_stream(lab.client.connect(HTTPS));
            let stream = tls.connect(ServerName::try_from("a.test").unwrap(), stream).await;
            is_same("edge", &converse(stream.unwrap(), &case, || true).await);
        }
    });
}

pub(crate) fn late_cuts(sb: &Signalbox) -> f64 {
    sb.metric("signalbox_late_cut_total{listener=\"http\",result=\"cut\"}")
}

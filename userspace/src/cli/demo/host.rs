//! A small router host, which returns its name over HTTP and HTTPS, and answers health checks.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Starts a host for each name. Returns names, HTTP and HTTPS addresses.
pub(super) async fn start(names: &[&str]) -> anyhow::Result<Vec<(String, SocketAddr, SocketAddr)>> {
    let acceptor = acceptor().context("making a certificate")?;
    let mut started = Vec::new();
    for name in names {
        let (plain, tls) = (
            TcpListener::bind("127.0.0.1:0").await?,
            TcpListener::bind("127.0.0.1:0").await?,
        );
        started.push(((*name).to_owned(), plain.local_addr()?, tls.local_addr()?));
        let (name, acceptor) = (Arc::<str>::from(*name), acceptor.clone());
        let for_plain = Arc::clone(&name);
        tokio::spawn(async move {
            while let Ok((stream, _)) = plain.accept().await {
                tokio::spawn(answer(stream, Arc::clone(&for_plain), "HTTP"));
            }
        });
        tokio::spawn(async move {
            while let Ok((stream, _)) = tls.accept().await {
                let (acceptor, name) = (acceptor.clone(), Arc::clone(&name));
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        answer(stream, name, "HTTPS").await;
                    }
                });
            }
        });
    }
    Ok(started)
}

fn acceptor() -> anyhow::Result<TlsAcceptor> {
    let made = rcgen::generate_simple_self_signed(vec!["app.localhost".to_owned()])?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(signalbox_tls::provider::provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.into()], key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Answers requests until the client closes the connection.
async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, name: Arc<str>, protocol: &str) {
    let mut head = Vec::new();
    while head.len() < 16 * 1024 {
        match stream.read_buf(&mut head).await {
            Ok(n) if n > 0 => {}
            _ => return,
        }
        while let Some(end) = head.windows(4).position(|w| w == b"\r\n\r\n") {
            head.drain(..end + 4);
            let body = format!("Hello from {name} over {protocol}.\n");
            let response = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            if stream.write_all(response.as_bytes()).await.is_err() || stream.flush().await.is_err() {
                return;
            }
        }
    }
}

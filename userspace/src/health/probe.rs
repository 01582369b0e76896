//! One check: a TCP connect, or a GET over TCP or TLS.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use signalbox_core::model::{Host, HttpProbe, Probe, TlsProbe};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Most bytes of an answer that are read to find its status.
const MAX_HEAD: usize = 16 * 1024;

/// A check, ready to be asked.
pub(super) struct Prober {
    target: Option<SocketAddr>,
    request: Option<String>,
    tls: Option<Result<(TlsConnector, ServerName<'static>), String>>,
}

impl Prober {
    pub(super) fn new(probe: &Probe, host: &Host) -> Self {
        let at = |port: Option<u16>| port.map(|port| SocketAddr::new(host.address, port));
        match probe {
            Probe::Tcp { port } => Self {
                target: at(port.or(host.https).or(host.http).or(host.tcp)),
                request: None,
                tls: None,
            },
            Probe::Http(http) => Self {
                target: at(http
                    .port
                    .or_else(|| if http.tls.is_some() { host.https } else { host.http })),
                request: Some(request(http, host.address)),
                tls: http.tls.as_ref().map(|tls| connector(tls, http, host.address)),
            },
        }
    }

    /// What the host said, or what is wrong with it.
    pub(super) async fn ask(&self) -> Result<String, String> {
        let target = self.target.ok_or("the host has no port to check")?;
        let stream = TcpStream::connect(target)
            .await
            .map_err(|error| format!("connect to {target}: {error}"))?;
        let Some(request) = &self.request else {
            return Ok("accepts connections".into());
        };
        match &self.tls {
            None => get(stream, request).await,
            Some(Err(why)) => Err(why.clone()),
            Some(Ok((connector, name))) => {
                let stream = connector
                    .connect(name.clone(), stream)
                    .await
                    .map_err(|error| format!("TLS: {error}"))?;
                get(stream, request).await
            }
        }
    }
}

fn request(http: &HttpProbe, address: IpAddr) -> String {
    let host = http.host.clone().unwrap_or_else(|| match address {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    });
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "GET {} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: signalbox/{version}\r\nAccept: */*\r\nConnection: close\r\n\r\n",
        http.path
    )
}

async fn get(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> Result<String, String> {
    stream
        .write_all(request.as_bytes())
        .await
        .map_err(|error| format!("sending the request: {error}"))?;
    let mut head = Vec::new();
    loop {
        let n = stream
            .read_buf(&mut head)
            .await
            .map_err(|error| format!("reading the answer: {error}"))?;
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut headers);
        let parsed = response.parse(&head);
        if let Some(code) = response.code {
            return if (200..400).contains(&code) {
                Ok(format!("HTTP {code}"))
            } else {
                Err(format!("HTTP {code}"))
            };
        }
        match parsed {
            Err(_) => return Err("the answer is not HTTP".into()),
            Ok(_) if n == 0 || head.len() > MAX_HEAD => return Err("the answer ended before its status".into()),
            Ok(_) => {}
        }
    }
}

fn connector(tls: &TlsProbe, http: &HttpProbe, address: IpAddr) -> Result<(TlsConnector, ServerName<'static>), String> {
    let named = tls.sni.as_deref().or(http.host.as_deref());
    let name = match named {
        Some(name) => ServerName::try_from(name.to_owned())
            .map_err(|_| format!("{name} cannot be a server name for the health check"))?,
        None => ServerName::from(address),
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let config = match &tls.ca {
        Some(path) => {
            let mut roots = RootCertStore::empty();
            let wrong = |error: String| format!("reading the authorities of {}: {error}", path.display());
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))? {
                let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
                roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
            }
            builder.with_root_certificates(roots).with_no_client_auth()
        }
        None => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate))
            .with_no_client_auth(),
    };
    Ok((TlsConnector::from(Arc::new(config)), name))
}

/// Takes any certificate: the check asks whether a host is well, not who it is. `ca` asks both.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

//! Makes a check: a TCP connect, a GET over TCP or TLS, or a datagram.

mod http2;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::ServerName;
use signalbox_core::model::{CheckProxyHeader, HealthPage, Host, HttpProbe, Probe, TlsProbe, UdpProbe, UdpQuestion};
use signalbox_core::routing::shown::without_query;
use signalbox_core::wire::http1::authority::Authority;
use signalbox_tls::client::{AnyCertificate, host_verifier};
use signalbox_tls::host_fault::{AuthoritySetting, HostTlsFault};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::udp;
use crate::state::handshake::HostHandshake;
use crate::sys;

/// Most bytes of an answer that are read to find its status.
const MAX_HEAD: usize = 16 * 1024;

/// A PROXY v2 header without addresses (command LOCAL, section 2.2 of the specification): the connection is our own.
pub(super) const LOCAL_HEADER: [u8; 16] = *b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";

/// Answer of a host: an HTTP status, or `None` if it only accepts connections.
pub(super) type ProbeAnswer = Option<u16>;

/// A check of one host, ready to be made.
pub(super) struct Prober {
    target: Option<SocketAddr>,
    /// Whether the connection begins with a PROXY header.
    header: bool,
    /// Datagram that is sent, in place of a connection.
    udp: Option<UdpProbe>,
    page: Option<PageRequest>,
    /// Whether the page is asked for in HTTP/2 with prior knowledge.
    is_http2: bool,
    /// True if every answer below 500 is a good one.
    is_lenient: bool,
    /// Page that is requested, in words, where the host has a page of its own.
    page_text: Option<String>,
    tls: Option<Result<(TlsConnector, ServerName<'static>), String>>,
    /// TCP options that the host had at the last connect.
    pub(super) handshake: HostHandshake,
}

impl Prober {
    pub(super) fn new(probe: &Probe, header: CheckProxyHeader, host: &Host) -> Self {
        let is_lenient = *probe == Probe::Endpoint;
        let probe = &probe_for_host(probe, host);
        let port = match probe {
            Probe::Tcp { port: Some(port) } => Some(*port),
            Probe::Tcp { port: None } | Probe::Router | Probe::Endpoint => host
                .https
                .or(host.http)
                .or(host.tcp)
                .or_else(|| host.ports.values().next().copied()),
            Probe::Udp(udp) => udp.port.or_else(|| host.ports.values().next().copied()).or(host.tcp),
            Probe::Http(http) => http
                .port
                .or_else(|| if http.tls.is_some() { host.https } else { host.http }),
        };
        let http = match probe {
            Probe::Http(http) => Some(http),
            Probe::Tcp { .. } | Probe::Udp(_) | Probe::Router | Probe::Endpoint => None,
        };
        let udp = match probe {
            Probe::Udp(udp) => Some(udp.clone()),
            _ => None,
        };
        let tls = http.and_then(|http| Some((http, http.tls.as_ref()?)));
        Self {
            target: port.map(|port| SocketAddr::new(host.address, port)),
            header: match header {
                CheckProxyHeader::Never => false,
                CheckProxyHeader::HostPorts => port.is_some() && [host.http, host.https, host.tcp].contains(&port),
                CheckProxyHeader::Always => udp.is_none(),
            },
            udp,
            page: http.map(|http| PageRequest::new(http, host.address)),
            is_http2: false,
            is_lenient,
            page_text: http.filter(|_| host.health_page.is_some()).map(page_description),
            tls: tls.map(|(http, tls)| connector(tls, http, host.address)),
            handshake: HostHandshake::default(),
        }
    }

    /// Has the host's own port for plain HTTP asked in HTTP/2.
    pub(super) fn in_http2(mut self, is_asked: bool, host: &Host) -> Self {
        let is_own = self.target.is_some_and(|at| Some(at.port()) == host.http);
        self.is_http2 = is_asked && is_own && self.tls.is_none();
        self
    }

    /// Returns the request in words for an operator.
    pub(super) fn description(&self) -> String {
        let kind = match (&self.udp, &self.page, &self.tls) {
            (Some(udp), ..) => match udp.question {
                UdpQuestion::Payload { .. } => "UDP",
                UdpQuestion::Dns { .. } => "DNS",
                UdpQuestion::Quic => "QUIC",
            },
            (None, None, _) => "TCP connect",
            (None, Some(_), None) if self.is_http2 => "HTTP/2",
            (None, Some(_), None) => "HTTP",
            (None, Some(_), Some(_)) => "HTTPS",
        };
        let port = self
            .target
            .map_or_else(String::new, |at| format!(" on port {}", at.port()));
        let page = self.page_text.as_deref().unwrap_or_default();
        let header = if self.header { ", with a PROXY header" } else { "" };
        format!("{kind}{port}{page}{header}")
    }

    /// Makes the check: the host's answer, or what is wrong with it; `None` where no check was possible for a shortage
    /// of our own.
    pub(super) async fn ask(&self) -> Option<Result<String, String>> {
        if let (Some(udp), Some(target)) = (&self.udp, self.target) {
            return match udp::ask(udp, target).await {
                Ok(verdict) => Some(verdict),
                Err(error) if sys::is_out_of_resources(&error) => None,
                Err(error) => Some(Err(format!("UDP to {target}: {error}"))),
            };
        }
        let judged = |said: ProbeAnswer| match said {
            Some(code @ 400..=499) if self.is_lenient => Ok(format!("HTTP {code}")),
            other => judge(other),
        };
        Some(self.answer().await?.and_then(judged))
    }

    /// Makes the check as [`Self::ask`], without judging the answer.
    pub(super) async fn answer(&self) -> Option<Result<ProbeAnswer, String>> {
        let target = match self.target.ok_or("the host has no port to check") {
            Ok(target) => target,
            Err(error) => return Some(Err(error.to_owned())),
        };
        let socket = crate::datapath::cut::uncut_socket(target);
        let connected = async { socket?.connect(target).await };
        match connected.await {
            Ok(stream) => {
                if let Ok(info) = sys::tcp_info(stream.as_raw_fd()) {
                    self.handshake.note(&info, target.is_ipv6());
                }
                Some(self.exchange(stream).await)
            }
            Err(error) if sys::is_out_of_resources(&error) => None,
            Err(error) => Some(Err(format!("connect to {target}: {error}"))),
        }
    }

    async fn exchange(&self, mut stream: TcpStream) -> Result<ProbeAnswer, String> {
        if self.header {
            let sent = stream.write_all(&LOCAL_HEADER).await;
            sent.map_err(|error| format!("sending the PROXY header: {error}"))?;
        }
        let Some(page) = &self.page else {
            return Ok(None);
        };
        match &self.tls {
            None if self.is_http2 => http2::get(stream, page).await,
            None => get(stream, &page.http1()).await,
            Some(Err(why)) => Err(why.clone()),
            Some(Ok((connector, name))) => {
                let stream = connector
                    .connect(name.clone(), stream)
                    .await
                    .map_err(|error| tls_problem(&error))?;
                get(stream, &page.http1()).await
            }
        }
    }
}

fn page_description(http: &HttpProbe) -> String {
    let host = http
        .host_header
        .as_ref()
        .map_or_else(String::new, |host| format!(" of {host}"));
    format!(" for {}{host}", without_query(&http.path))
}

/// Returns the check of a cluster for one host: an endpoint of an application has a page of its own, or speaks no
/// HTTP.
fn probe_for_host(probe: &Probe, host: &Host) -> Probe {
    let of_page = |http: &HttpProbe, page: &HealthPage| HttpProbe {
        path: page.path.clone(),
        host_header: page.host_header.clone().or_else(|| http.host_header.clone()),
        ..http.clone()
    };
    let http_port = |http: &HttpProbe| {
        let own = if http.tls.is_some() { host.https } else { host.http };
        http.port.or(own)
    };
    let plain = HttpProbe {
        port: None,
        path: "/".to_owned(),
        host_header: None,
        tls: None,
    };
    match (probe, &host.health_page) {
        (Probe::Endpoint, Some(page)) if host.http.is_some() => Probe::Http(of_page(&plain, page)),
        (Probe::Http(http), Some(page)) if http_port(http).is_some() => Probe::Http(of_page(http, page)),
        (Probe::Endpoint, _) | (Probe::Http(_), Some(_)) => Probe::Tcp { port: None },
        (other, _) => other.clone(),
    }
}

/// Judges whether an answer means that the host is healthy.
pub(super) fn judge(said: ProbeAnswer) -> Result<String, String> {
    match said {
        None => Ok("accepts connections".into()),
        Some(code) if (200..400).contains(&code) => Ok(format!("HTTP {code}")),
        Some(code) => Err(format!("HTTP {code}")),
    }
}

/// GET of a check.
struct PageRequest {
    path: String,
    host: String,
}

impl PageRequest {
    const AGENT: &str = concat!("signalbox/", env!("CARGO_PKG_VERSION"));

    fn new(http: &HttpProbe, address: IpAddr) -> Self {
        let host = http.host_header.clone().unwrap_or_else(|| match address {
            IpAddr::V4(v4) => v4.to_string(),
            IpAddr::V6(v6) => format!("[{v6}]"),
        });
        Self {
            path: http.path.clone(),
            host,
        }
    }

    fn http1(&self) -> String {
        let (path, host, agent) = (&self.path, &self.host, Self::AGENT);
        format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {agent}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        )
    }
}

/// Sends a request, and reads the status of its answer.
pub(super) async fn get(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> Result<ProbeAnswer, String> {
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
        if let Some(code) = final_status(&mut head)? {
            return Ok(Some(code));
        }
        if n == 0 || head.len() > MAX_HEAD {
            return Err("the answer ended before its status".into());
        }
    }
}

/// Status of an answer, once it is known; interim answers before it are dropped (RFC 9110, section 15.2).
fn final_status(head: &mut Vec<u8>) -> Result<Option<u16>, String> {
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut headers);
        let parsed = response.parse(head);
        match (response.code, parsed) {
            (Some(100 | 102..=199), Ok(httparse::Status::Complete(length))) => drop(head.drain(..length)),
            (Some(100 | 102..=199) | None, Ok(_)) => return Ok(None),
            (Some(100 | 102..=199) | None, Err(_)) => return Err("the answer is not HTTP".into()),
            (Some(code), _) => return Ok(Some(code)),
        }
    }
}

/// Words for a failed handshake.
pub(super) fn tls_problem(error: &std::io::Error) -> String {
    let fault = HostTlsFault::of(error, AuthoritySetting::HealthCheck);
    format!("TLS: {}", fault.map_or_else(|| error.to_string(), |fault| fault.reason))
}

fn connector(tls: &TlsProbe, http: &HttpProbe, address: IpAddr) -> Result<(TlsConnector, ServerName<'static>), String> {
    let name = server_name(tls, http).unwrap_or_else(|| ServerName::from(address));
    let builder = ClientConfig::builder_with_provider(signalbox_tls::provider::provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let verifier: Arc<dyn ServerCertVerifier> = match &tls.ca {
        Some(path) => host_verifier(path).map_err(|error| error.to_string())?,
        None => Arc::new(AnyCertificate),
    };
    let config = builder
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok((TlsConnector::from(Arc::new(config)), name))
}

/// Server name of a check: its own, or the Host header's without the port.
fn server_name(tls: &TlsProbe, http: &HttpProbe) -> Option<ServerName<'static>> {
    let named = tls.sni.as_ref().or(http.host_header.as_ref())?;
    let name = Authority::parse(named.as_bytes())?.hostname?;
    ServerName::try_from(name.as_str().to_owned()).ok()
}

#[cfg(test)]
mod tests;

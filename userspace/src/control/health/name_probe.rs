//! Asks a host for a name, as a client would: a probe of a migration.

use std::net::SocketAddr;
use std::time::Duration;

use rustls::pki_types::UnixTime;
use signalbox_core::availability::migration::probe::{NameAnswer, ShownCertificate};
use signalbox_core::wire::hostname::Hostname;
use signalbox_tls::client::{HostIdentity, connect};
use signalbox_tls::probe::ProbeConnector;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::probe::{LOCAL_HEADER, get, tls_problem};
use crate::state::tls::HostTls;
use crate::sys;

/// TLS to a host that is asked for names.
pub enum ProbeTls<'a> {
    /// Clients' own, which passes through: its certificate is shown to them.
    Client(&'a ProbeConnector),
    /// The balancer's, which checks the host as for any request.
    Balancer(&'a HostTls),
}

/// A host, as it is asked for names.
pub struct NameProber<'a> {
    pub target: SocketAddr,
    /// TLS to the host; `None`: plain HTTP.
    pub tls: Option<ProbeTls<'a>>,
    /// Whether the client's TLS ends at the balancer, which tells hosts so.
    pub is_tls_ended: bool,
    /// Whether the connection begins with a PROXY header.
    pub sends_header: bool,
}

impl NameProber<'_> {
    /// Asks for a path of a name, within a time. `None`: this machine lacks descriptors or ports for it.
    pub async fn ask(&self, name: &Hostname, path: &str, limit: Duration) -> Option<NameAnswer> {
        let socket = crate::datapath::cut::uncut_socket(self.target);
        let mut certificate = None;
        let asked = async {
            match socket?.connect(self.target).await {
                Ok(stream) => Ok(self.exchange(stream, name, path, &mut certificate).await),
                Err(error) if sys::is_out_of_resources(&error) => Err(error),
                Err(error) => Ok(Err(format!("connect: {error}"))),
            }
        };
        let status = match timeout(limit, asked).await {
            Ok(Ok(status)) => status,
            Ok(Err(_)) => return None,
            Err(_) => Err(format!("no answer within {:.1} s", limit.as_secs_f64())),
        };
        Some(NameAnswer { status, certificate })
    }

    async fn exchange(
        &self,
        mut stream: TcpStream,
        name: &Hostname,
        path: &str,
        certificate: &mut Option<ShownCertificate>,
    ) -> Result<u16, String> {
        if self.sends_header {
            let sent = stream.write_all(&LOCAL_HEADER).await;
            sent.map_err(|error| format!("sending the PROXY header: {error}"))?;
        }
        let ended = if self.is_tls_ended {
            "X-Forwarded-Proto: https\r\n"
        } else {
            ""
        };
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: signalbox-probe\r\nAccept: */*\r\n{ended}\
             Connection: close\r\n\r\n",
            name.as_str()
        );
        let answer = match self.tls {
            None => get(stream, &request).await,
            Some(ProbeTls::Client(connector)) => {
                let connected = connector.connect(name, stream, UnixTime::now()).await;
                let (stream, shown) = connected.map_err(|error| tls_problem(&error))?;
                *certificate = shown;
                get(stream, &request).await
            }
            Some(ProbeTls::Balancer(tls)) => {
                let host = HostIdentity::new(tls.name.as_ref().or(Some(name)), self.target.ip());
                let stream = Box::pin(connect(&tls.config, host, stream, false)).await;
                get(stream.map_err(|error| tls_problem(&error))?, &request).await
            }
        };
        answer?.ok_or_else(|| "no HTTP".to_owned())
    }
}

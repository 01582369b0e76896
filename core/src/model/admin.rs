//! The admin API, and where balancers keep their shared data.

use serde::Serialize;
use std::path::PathBuf;

/// An etcd that holds what several balancers share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EtcdStore {
    /// Members of the etcd: `http://HOST:PORT` or `https://HOST:PORT`.
    pub endpoints: Vec<String>,
    /// Prefix of all keys; ends in `/`.
    pub prefix: String,
    /// PEM file with the authorities that have signed the members' certificates.
    pub ca: Option<PathBuf>,
    /// PEM files with signalbox's certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Another balancer's admin API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Balancer {
    /// Name of the balancer in [`Subset`].
    pub name: Option<String>,
    /// URL of the admin API: `http://HOST:PORT` or `https://HOST:PORT`.
    pub url: String,
    /// File with the balancer's token.
    pub token_file: Option<PathBuf>,
    /// PEM file with the authorities that have signed the balancer's certificate.
    pub ca: Option<PathBuf>,
    /// PEM files with signalbox's certificate and its key, in place of the token.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The admin API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Admin {
    /// Address of read-only HTTP; `None` for none.
    pub listen: Option<std::net::SocketAddr>,
    /// Unix socket (mode 0600) that takes changes.
    pub socket: PathBuf,
    /// File with the token that allows changes over `listen`.
    pub token_file: Option<PathBuf>,
    /// TLS of `listen`; `None`: plain HTTP.
    pub tls: Option<AdminTls>,
    /// Whether reads over `listen` need the token or certificate that changes need. Probes, metrics and the files of
    /// the web UI never do.
    pub reads_need_token: bool,
    /// Most connections to `listen` at once.
    pub max_connections: u32,
    /// Names by which clients may call `listen`, besides its addresses and the machine's own name.
    pub names: Vec<String>,
}

/// Most connections to the admin API over TCP, where the configuration says nothing.
pub const DEFAULT_ADMIN_CONNECTIONS: u32 = 128;

/// Certificate of the admin API, and clients that may make changes without a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdminTls {
    /// PEM file with the API's certificate and any intermediate ones.
    pub cert: PathBuf,
    /// PEM file with the key of the certificate.
    pub key: PathBuf,
    /// PEM file with authorities: clients with a certificate signed by one may make the changes that the token allows.
    pub client_ca: Option<PathBuf>,
}

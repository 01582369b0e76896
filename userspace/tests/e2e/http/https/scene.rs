//! A listener that ends TLS, its certificates, and clients that speak TLS.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use signalbox_lab::router;

use crate::http::request::scene::Client;
use crate::lab::{Lab, config};

pub(crate) const HTTPS: &str = "10.1.0.1:443";

/// A client's connection in TLS.
pub(crate) type TlsClient = Client<StreamOwned<ClientConnection, TcpStream>>;

/// Makes a certificate of the balancer: a file with the certificate and its key.
pub(crate) fn certificate(lab: &Lab, label: &str, names: &[&str]) -> PathBuf {
    router::certificate(lab.dir(), label, names).unwrap()
}

/// Settings of a client that trusts the certificates made so far.
pub(crate) fn trusting(lab: &Lab) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_file_iter(lab.dir().join("ca.pem")).unwrap() {
        roots.add(authority.unwrap()).unwrap();
    }
    ClientConfig::builder_with_provider(signalbox_tls::provider::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// Connects and shakes hands.
pub(crate) fn connect(lab: &Lab, name: &str) -> TlsClient {
    try_connect(lab, name, Arc::new(trusting(lab))).unwrap()
}

/// Connects and shakes hands by some settings.
pub(super) fn try_connect(lab: &Lab, name: &str, settings: Arc<ClientConfig>) -> std::io::Result<TlsClient> {
    shake_hands(lab.client.connect(HTTPS), name, settings)
}

/// Shakes hands on a connection by some settings.
pub(crate) fn shake_hands(
    mut stream: TcpStream,
    name: &str,
    settings: Arc<ClientConfig>,
) -> std::io::Result<TlsClient> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut session = ClientConnection::new(settings, name).unwrap();
    while session.is_handshaking() {
        session.complete_io(&mut stream)?;
    }
    Ok(Client::on(StreamOwned::new(session, stream)))
}

/// Whether the client was shown the certificate of a file.
pub(super) fn is_shown(client: &mut TlsClient, pem: &Path) -> bool {
    let expected = CertificateDer::from_pem_file(pem).unwrap();
    client.inner().conn.peer_certificates().and_then(|chain| chain.first()) == Some(&expected)
}

/// A listener for TLS with further keys, one for plain HTTP, further top-level lines, clusters of one host each by the
/// host's name with further keys, and routes.
pub(crate) fn body(listener: &str, extra: &str, hosts: &[(&str, &str)], routes: &[&str]) -> String {
    let cluster = |(host, key): &(&str, &str)| {
        let keys: Vec<_> = Some(*key).filter(|key| !key.is_empty()).into_iter().collect();
        config::cluster(host, &keys, &[host])
    };
    let clusters: Vec<_> = hosts.iter().map(cluster).collect();
    let routes: Vec<_> = routes.iter().map(ToString::to_string).collect();
    format!(
        "{extra}\nlisteners:\n  - {{ name: https, protocol: https, listen: [\"{HTTPS}\"]{listener} }}\n  \
         - {{ name: http, protocol: http, routing: request, listen: [\"10.1.0.1:80\"] }}\n\
         clusters:\n{}routes:\n{}",
        clusters.concat(),
        config::yaml_list("  ", &routes)
    )
}

/// Top-level line with the certificate of a file.
pub(crate) fn certificates(pem: &Path) -> String {
    format!("certificates: [{{ cert: {} }}]", pem.display())
}

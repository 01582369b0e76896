//! Client on rustls.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, ProtocolVersion, RootCertStore, SignatureScheme, StreamOwned,
    SupportedProtocolVersion,
};
use signalbox_tls::provider::provider;

use crate::fixtures::{Authority, Issued};
use crate::server::PEER_TIMEOUT;

/// Result of a handshake, as the client sees it.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) version: ProtocolVersion,
    pub(crate) kind: HandshakeKind,
    pub(crate) alpn: Option<Vec<u8>>,
}

/// Configuration that trusts `root` and offers all versions.
pub(crate) fn config(root: &Authority) -> ClientConfig {
    config_with(root, provider(), rustls::ALL_VERSIONS, None)
}

/// Configuration with only the signatures whose names begin with `start`.
pub(crate) fn only_signatures(root: &Authority, start: &str) -> ClientConfig {
    let mut provider = (*provider()).clone();
    let all = provider.signature_verification_algorithms;
    let fits = |scheme: &SignatureScheme| format!("{scheme:?}").starts_with(start);
    let mapping: Vec<_> = all.mapping.iter().filter(|(scheme, _)| fits(scheme)).copied().collect();
    provider.signature_verification_algorithms.mapping = Vec::leak(mapping);
    config_with(root, Arc::new(provider), rustls::ALL_VERSIONS, None)
}

pub(crate) fn config_with(
    root: &Authority,
    provider: Arc<CryptoProvider>,
    versions: &[&'static SupportedProtocolVersion],
    identity: Option<&Issued>,
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(root.pem.as_bytes()).unwrap())
        .unwrap();
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_webpki_verifier(verifier.build().unwrap());
    let mut config = match identity {
        Some(Issued { cert, key }) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

/// Connects, reads to the end, and tells what the handshake was.
pub(crate) fn connect(config: &Arc<ClientConfig>, address: SocketAddr, name: &str) -> std::io::Result<Seen> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let connection = ClientConnection::new(Arc::clone(config), name).unwrap();
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PEER_TIMEOUT))?;
    let mut tls = StreamOwned::new(connection, stream);
    let mut text = String::new();
    tls.read_to_string(&mut text)?;
    assert_eq!(text, "welcome\n");
    Ok(Seen {
        certificate: tls.conn.peer_certificates().unwrap()[0].clone().into_owned(),
        version: tls.conn.protocol_version().unwrap(),
        kind: tls.conn.handshake_kind().unwrap(),
        alpn: tls.conn.alpn_protocol().map(<[u8]>::to_vec),
    })
}

/// Whether the certificate is that of the PEM text.
pub(crate) fn is(seen: &Seen, issued: &Issued) -> bool {
    seen.certificate == CertificateDer::from_pem_slice(issued.cert.as_bytes()).unwrap()
}

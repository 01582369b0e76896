//! Peers that are not the product: they have certificates, or none, and send what a test wants.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use signalbox_core::availability::sync::{Hello, Message};

use super::network::LAST;
use super::pair::{Pair, node_name};
use crate::lab::namespace::connect_here;
use crate::lab::{Ns, SOON, Server};

pub(super) const SYNC: &str = "10.3.0.11:8090";

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// Certificate of a name, and its key.
fn identity(pair: &Pair, name: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let file = |kind: &str| pair.dir().join(format!("{name}.{kind}"));
    let certificate = CertificateDer::from_pem_file(file("crt")).unwrap();
    (vec![certificate], PrivateKeyDer::from_pem_file(file("key")).unwrap())
}

/// Connects from the second node to the first one with the certificate of a name, or without one.
pub(super) fn connect(pair: &Pair, certificate: Option<&str>) -> std::io::Result<Tls> {
    connect_from(&pair.nodes[1], pair, certificate)
}

/// Connects to the first node with the certificate of a name, or without one.
pub(super) fn connect_from(from: &Ns, pair: &Pair, certificate: Option<&str>) -> std::io::Result<Tls> {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(pair.dir().join("ca.pem")).unwrap();
    roots.add(authority).unwrap();
    let builder = ClientConfig::builder_with_provider(signalbox_tls::provider::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match certificate {
        Some(name) => {
            let (chain, key) = identity(pair, name);
            builder.with_client_auth_cert(chain, key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    let session = ClientConnection::new(Arc::new(config), ServerName::try_from("node-a").unwrap()).unwrap();
    let socket = from.run(|| connect_here(SYNC))?;
    socket.set_read_timeout(Some(SOON))?;
    Ok(StreamOwned::new(session, socket))
}

/// First message of a node.
pub(super) fn hello(node: &str, protocol: u16, slot: u8, nodes: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    Message::Hello(Hello {
        protocol,
        slot,
        nodes,
        node: node.to_owned(),
    })
    .encode(&mut bytes);
    bytes
}

/// Whether the node ends a connection on which these bytes are sent.
pub(super) fn is_refused(mut stream: Tls, bytes: &[u8]) -> bool {
    if stream.write_all(bytes).and_then(|()| stream.flush()).is_err() {
        return true;
    }
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return !matches!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
}

/// Peer in place of the one that a node connects to: it has that one's certificate, and another version of the
/// protocol.
pub(super) struct FakePeer(Server);

impl FakePeer {
    /// Has the connections of a node to its peer end at this one from now on.
    pub(super) fn start(pair: &Pair, node: usize, protocol: u16) -> Self {
        let (ns, slot) = (&pair.nodes[node], 1 - node);
        let name = node_name(slot);
        let (chain, key) = identity(pair, name);
        let config = ServerConfig::builder_with_provider(signalbox_tls::provider::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let (config, first) = (Arc::new(config), hello(name, protocol, slot as u8, 2));
        let server = Server::start(ns, "0.0.0.0:9090", move |socket| {
            let session = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(session, &*socket);
            // The peer identifies itself, and waits until the node answers or closes.
            if stream.write_all(&first).and_then(|()| stream.flush()).is_ok() {
                while stream.read(&mut [0; 1024]).is_ok_and(|count| count > 0) {}
            }
        });
        let rules = format!(
            "table inet fake {{ chain out {{ type nat hook output priority -100; \
             ip daddr 10.3.0.{} tcp dport 8090 redirect to :9090; }}; }}\n",
            LAST[slot]
        );
        ns.try_must(&["nft", "-f", "-"], &rules).unwrap();
        Self(server)
    }

    /// Number of connections so far.
    pub(super) fn accepted(&self) -> usize {
        self.0.accepted()
    }
}

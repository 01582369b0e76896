//! Server that answers each handshake with a line and closes.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustls::server::Acceptor;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use signalbox_core::model::tls_profile::{KeyExchangeGroup, Profile};
use signalbox_core::wire::hostname::Hostname;
use signalbox_tls::certificate::CertificateSource;
use signalbox_tls::resolver::CertificateResolver;
use signalbox_tls::server::{Alpn, ClientAuth, ServerConfigs, ServerPolicy};
use signalbox_tls::store::{CertificateStore, SharedCertificates};
use signalbox_tls::tickets::TicketSecret;

use crate::fixtures::Issued;

/// Time after which a peer that does not answer fails the test.
pub(crate) const PEER_TIMEOUT: Duration = Duration::from_secs(30);

/// Record of the fatal alert `unrecognized_name`, as a listener sends it.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

pub(crate) struct Setup {
    pub(crate) certificates: SharedCertificates,
    pub(crate) strict_sni: bool,
    pub(crate) policy: ServerPolicy,
    pub(crate) secret: [u8; 32],
    pub(crate) alpn: Alpn,
}

impl Setup {
    pub(crate) fn new(sources: &[CertificateSource]) -> Self {
        let certificates = SharedCertificates::default();
        certificates.store(Arc::new(load(sources)));
        Self {
            certificates,
            strict_sni: false,
            policy: ServerPolicy {
                label: "web".to_owned(),
                profile: Profile::Intermediate,
                groups: KeyExchangeGroup::ALL.to_vec(),
                client_auth: ClientAuth::None,
            },
            secret: [7; 32],
            alpn: Alpn::Http2,
        }
    }

    pub(crate) fn start(&self) -> Server {
        let resolver = Arc::new(CertificateResolver::new(
            Arc::clone(&self.certificates),
            self.strict_sni,
        ));
        let secret = TicketSecret::new(self.secret);
        let tickets = Some((
            &secret,
            Arc::new(signalbox_tls::watch::now) as signalbox_tls::tickets::Clock,
        ));
        let configs = ServerConfigs::new(&self.policy, Arc::clone(&resolver), tickets).unwrap();
        Server::start(Arc::clone(configs.get(self.alpn)), resolver)
    }
}

pub(crate) fn source(label: &str, issued: &Issued) -> CertificateSource {
    CertificateSource {
        label: label.to_owned(),
        names: Vec::new(),
        chain: issued.cert.clone().into_bytes().into(),
        key: issued.key.clone().into_bytes().into(),
        pass_phrase: None,
        is_default: false,
    }
}

pub(crate) fn load(sources: &[CertificateSource]) -> CertificateStore {
    let (store, errors) = CertificateStore::load(sources, signalbox_tls::watch::now());
    assert_eq!(errors, []);
    store
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(config: Arc<ServerConfig>, resolver: Arc<CertificateResolver>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (config, resolver) = (Arc::clone(&config), Arc::clone(&resolver));
                thread::spawn(move || serve(stream.unwrap(), config, &resolver));
            }
        });
        Self {
            address,
            is_over,
            thread: Some(thread),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Does as a listener does: looks at the ClientHello, refuses its name or goes on with the handshake.
fn serve(mut stream: TcpStream, config: Arc<ServerConfig>, resolver: &CertificateResolver) {
    stream.set_read_timeout(Some(PEER_TIMEOUT)).unwrap();
    let mut acceptor = Acceptor::default();
    let accepted = loop {
        if acceptor.read_tls(&mut stream).is_ok_and(|bytes| bytes == 0) {
            return;
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => break accepted,
            Ok(None) => {}
            Err((_, mut alert)) => {
                let _ = alert.write_all(&mut stream);
                return;
            }
        }
    };
    let name = accepted.client_hello().server_name().map(str::to_owned);
    let name = name.and_then(|name| Hostname::parse(name.as_bytes()).ok());
    if resolver.refuses(name.as_ref()) {
        let _ = stream.write_all(&UNRECOGNIZED_NAME);
        return;
    }
    match accepted.into_connection(config) {
        Ok(connection) => answer(StreamOwned::new(connection, stream)),
        Err((_, mut alert)) => {
            let _ = alert.write_all(&mut stream);
        }
    }
}

fn answer(mut tls: StreamOwned<ServerConnection, TcpStream>) {
    while tls.conn.is_handshaking() {
        if tls.conn.complete_io(&mut tls.sock).is_err() {
            return;
        }
    }
    let _ = tls.write_all(b"welcome\n");
    tls.conn.send_close_notify();
    let _ = tls.flush();
    // Until the client has read it all: closing with bytes unread would be a reset.
    let mut rest = [0; 64];
    while matches!(tls.read(&mut rest), Ok(1..)) {}
}

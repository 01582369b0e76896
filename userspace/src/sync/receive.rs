//! Receives other nodes' flows.

use std::cell::RefCell;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use signalbox_core::availability::sync::Message;
use signalbox_tls::nodes::check_name;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{sleep, timeout};

use super::Node;
use super::connection::{HANDSHAKE_TIMEOUT, LinkError, Reader, prepare, send_hello};
use super::replicas::Session;
use super::{cookies, hand_over, reclaim};
use crate::state::service_flows::ServiceKeys;
use crate::state::sync::PeerState;

/// Time between attempts to listen on the address: a predecessor may still have it.
const BIND_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum time to wait for this node's own services, and the interval of checks.
const SERVICES_TIMEOUT: Duration = Duration::from_secs(3);
const SERVICES_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of concurrent handshakes: unknown clients get no further.
const MAX_HANDSHAKES: usize = 16;

/// The tasks of connections by peer. A new connection of a peer replaces the previous one.
struct Receivers {
    of_peers: RefCell<Vec<Option<AbortHandle>>>,
    handshakes: tokio::sync::Semaphore,
    /// Last logged error: a refused node tries again twice a second.
    last_error: RefCell<String>,
}

impl Receivers {
    fn tell(&self, from: SocketAddr, error: &LinkError) {
        let text = error.to_string();
        if *self.last_error.borrow() == text {
            tracing::debug!(%from, %error, "A node is refused.");
        } else {
            tracing::warn!(%from, %error, "A node is refused. Further refusals for the same reason are not logged.");
            *self.last_error.borrow_mut() = text;
        }
    }
}

/// Accepts connections of other nodes.
pub(super) async fn run(node: Rc<Node>) {
    let receivers = Rc::new(Receivers {
        of_peers: RefCell::new(vec![None; node.peers.len()]),
        handshakes: tokio::sync::Semaphore::new(MAX_HANDSHAKES),
        last_error: RefCell::default(),
    });
    node.first_report().await;
    let listener = listen(&node).await;
    loop {
        match listener.accept().await {
            Ok((socket, from)) => {
                let (node, receivers) = (Rc::clone(&node), Rc::clone(&receivers));
                spawn_local(async move {
                    if let Err(error) = serve(&node, &receivers, socket).await {
                        node.shared.sync.refused.inc(error.label());
                        receivers.tell(from, &error);
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "A connection of another node could not be accepted.");
                sleep(BIND_RETRY_INTERVAL).await;
            }
        }
    }
}

async fn listen(node: &Node) -> TcpListener {
    let mut is_told = false;
    loop {
        match TcpListener::bind(node.listen).await {
            Ok(listener) => return listener,
            Err(error) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(address = %node.listen, %error, "The address for other nodes cannot be listened on; it is tried again.");
                }
                sleep(BIND_RETRY_INTERVAL).await;
            }
        }
    }
}

async fn serve(node: &Rc<Node>, receivers: &Rc<Receivers>, socket: TcpStream) -> Result<(), LinkError> {
    let Ok(permit) = receivers.handshakes.try_acquire() else {
        // If it is a node, it tries again.
        return Ok(());
    };
    let handshake = async {
        prepare(&socket)?;
        let mut stream = node.files.accept(socket).await?;
        send_hello(&mut stream, node).await?;
        let mut reader = Reader::new(stream);
        let hello = reader.hello(node).await?;
        check_name(reader.stream(), &hello.node)?;
        Ok::<_, LinkError>((reader, hello.node))
    };
    let (reader, name) = timeout(HANDSHAKE_TIMEOUT, handshake)
        .await
        .map_err(|_| LinkError::Silent)??;
    drop(permit);
    let Some(at) = node.peers.iter().position(|peer| peer.name == name) else {
        return Err(LinkError::UnknownNode(name));
    };
    let (node, state) = (Rc::clone(node), Arc::clone(&node.peers[at].state));
    let receiving = spawn_local(async move {
        let outcome = receive(&node, &state, reader).await;
        state.is_receiving.store(false, Relaxed);
        state.has_same_cookies.store(false, Relaxed);
        if let Err(error) = outcome {
            node.shared.sync.refused.inc(error.label());
            tracing::warn!(node = state.node, %error, "Another node's flows are not received any more; those received stay.");
        }
    });
    let former = receivers.of_peers.borrow_mut()[at].replace(receiving.abort_handle());
    if let Some(former) = former {
        former.abort();
    }
    Ok(())
}

/// Enters the flows of a peer into this node's table until the connection ends.
async fn receive<S>(node: &Rc<Node>, peer: &Arc<PeerState>, mut reader: Reader<S>) -> Result<(), LinkError>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    peer.is_receiving.store(true, Relaxed);
    peer.is_complete.store(false, Relaxed);
    peer.has_same_cookies.store(false, Relaxed);
    tracing::info!(node = peer.node, "Flows of another node are received.");
    wait_for_services(node).await;
    let mut session = Session::default();
    let mut owned = node.shared.ha.owned();
    loop {
        let mut changes = Changes::default();
        let outcome = reader
            .read(|message| changes.take(node, peer, &mut session, message))
            .await;
        changes.apply(node);
        for groups in changes.reclaimed {
            reclaim::answer(node, &peer.node, groups);
        }
        outcome?;
        if !changes.answers.is_empty() {
            let stream = reader.stream_mut();
            stream.write_all(&changes.answers).await?;
            stream.flush().await?;
        }
        // Other nodes resend the flows of lost addresses: this node ignored their ends while it had them.
        let now = node.shared.ha.owned();
        if owned.difference(&now).next().is_some() {
            return Ok(());
        }
        owned = now;
    }
}

/// Waits until connections of services can be entered, for a limited time: rejected ones are sent again.
async fn wait_for_services(node: &Node) {
    let end = Instant::now() + SERVICES_TIMEOUT;
    while node.shared.sync.services.is_wanted() && !node.services.takes_replicas() && Instant::now() < end {
        sleep(SERVICES_INTERVAL).await;
    }
}

/// Changes from one read.
#[derive(Default)]
struct Changes {
    new: Vec<u32>,
    ended: HashSet<u32, FixedState>,
    answers: Vec<u8>,
    /// Groups that the peer reclaims.
    reclaimed: Vec<Vec<String>>,
}

impl Changes {
    fn take(
        &mut self,
        node: &Rc<Node>,
        peer: &Arc<PeerState>,
        session: &mut Session,
        message: Message,
    ) -> Result<(), LinkError> {
        let mut replicas = node.replicas.borrow_mut();
        match message {
            Message::Name(name) => {
                if !session.add_name(name) {
                    return Err(LinkError::Unexpected);
                }
            }
            Message::Flow(record) => {
                if let Some(placed) = replicas.add(node, peer, session, &record)? {
                    // Of two messages about one entry, the later one counts.
                    self.ended.remove(&placed.index);
                    self.new.extend(placed.is_new.then_some(placed.index));
                }
            }
            Message::End(index) => self.ended.extend(replicas.end(node, peer, index)),
            Message::FullBegin => {
                session.seen_services = Some(ServiceKeys::default());
                replicas.begin_full(peer, session);
            }
            Message::FullEnd(groups) => {
                self.ended.extend(replicas.end_full(node, peer, session, &groups));
                peer.is_complete.store(true, Relaxed);
            }
            Message::ServiceFlow(record) => {
                if let Some(seen) = &mut session.seen_services {
                    seen.insert(record.key());
                }
                if node.shared.sync.services.is_wanted() {
                    node.service_replicas.borrow_mut().add(node, peer, &record);
                }
            }
            Message::ServiceEnd(key) => {
                if let Some(seen) = &mut session.seen_services {
                    seen.remove(&*key);
                }
                node.service_replicas.borrow_mut().end(node, &key);
            }
            Message::ServiceFullEnd(groups) => {
                let seen = session.seen_services.take().unwrap_or_default();
                node.service_replicas.borrow_mut().end_full(node, peer, &seen, &groups);
            }
            Message::HandOver(moved) => hand_over::learn(node, peer, &moved),
            Message::Reclaim(groups) => self.reclaimed.push(groups),
            Message::CookieKey(key) => cookies::learn(node, peer, &key),
            Message::ReclaimAnswer => peer.has_answered_reclaim.store(true, Relaxed),
            Message::Batch(number) => Message::Ack(number).encode(&mut self.answers),
            Message::Hello(_) | Message::Ack(_) => return Err(LinkError::Unexpected),
        }
        Ok(())
    }

    /// Applies ends, and reserves the ports of new flows.
    fn apply(&self, node: &Node) {
        if !self.new.is_empty() {
            node.flow_gc.reserve_ports(&self.new);
        }
        if !self.ended.is_empty() {
            let ended: Vec<_> = self.ended.iter().copied().collect();
            node.forget_others(&ended);
            node.flow_gc.end_replicas(&ended);
        }
    }
}

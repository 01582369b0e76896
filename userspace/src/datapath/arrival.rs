//! An accepted connection without a host: it is admitted, then identified.

use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use signalbox_core::limits::limit::{LimitExceeded, SourceCells};
use signalbox_core::model::tls::Termination;
use signalbox_core::model::{HandshakeLimits, Listener, Protocol};
use signalbox_core::wire::hostname::Hostname;
use signalbox_core::wire::peek::ClientRequest;
use signalbox_core::wire::peek::h2::GreetedClient;

use super::conn_guard::ConnGuard;
use super::log_context::{HTTPS, PendingConnection};
use super::peek::{self, PeekError};
use super::socket::Socket;
use super::worker_state::Worker;
use crate::state::{ListenerState, Snapshot};
use crate::sys;

/// An accepted connection.
pub(super) struct Arrival<'a> {
    pub(super) worker: &'a Rc<Worker>,
    /// Snapshot that was active when the connection was accepted.
    snapshot: Arc<Snapshot>,
    /// Index of the listener in that snapshot.
    index: usize,
    pub(super) client: Socket,
    /// Address that the connection comes from.
    pub(super) peer: SocketAddr,
    /// Address that the client connected to.
    pub(super) local: SocketAddr,
    /// The client: named by a trusted proxy's PROXY header, otherwise the peer.
    pub(super) true_client: SocketAddr,
    /// Address that the client connected to, also from the PROXY header: then it is an address of the proxy.
    pub(super) destination: SocketAddr,
    pub(super) accepted: Instant,
    /// Number of bytes taken off the client's stream.
    pub(super) consumed: u64,
    /// Whether the client's TLS ends here.
    pub(super) ends_tls: bool,
}

/// A client's request, as far as its first bytes show.
pub(super) struct IdentifiedClient {
    /// Name that the client asks for, or the reason why there is none.
    pub(super) request: Result<ClientRequest, PeekError>,
    /// An HTTP/2 client that needed the server's SETTINGS first.
    pub(super) greeted: Option<GreetedClient>,
}

impl<'a> Arrival<'a> {
    pub(super) fn new(
        worker: &'a Rc<Worker>,
        snapshot: Arc<Snapshot>,
        index: usize,
        client: Socket,
        (peer, local): (SocketAddr, SocketAddr),
    ) -> Self {
        Self {
            worker,
            snapshot,
            index,
            client,
            peer,
            local,
            true_client: peer,
            destination: local,
            accepted: Instant::now(),
            consumed: 0,
            ends_tls: false,
        }
    }

    pub(super) fn listener(&self) -> &Arc<ListenerState> {
        &self.snapshot.listeners[self.index]
    }

    pub(super) fn configured(&self) -> &Listener {
        &self.snapshot.model.listeners[self.index]
    }

    /// Whether the per-source limits apply to new connections.
    pub(super) fn limits_connections(&self) -> bool {
        self.snapshot.model.limits.per_source.concurrent != 0
    }

    pub(super) fn handshake_limits(&self) -> HandshakeLimits {
        self.snapshot.model.limits.handshakes
    }

    pub(super) fn log(&self) -> PendingConnection<'_> {
        PendingConnection {
            shared: &self.worker.shared,
            listener: self.listener(),
            protocol: if self.ends_tls {
                HTTPS
            } else {
                self.configured().protocol.as_str()
            },
            client: self.true_client,
            local: self.local,
            accepted: self.accepted,
            request: None,
        }
    }

    /// Refuses a source that the shield denies but whose packets no shield program has seen. Then counts the connection
    /// against the listener's limit of connections per source. The shield's count is an estimate between two reads of
    /// userspace's counters; this check is exact.
    pub(super) fn admit(&self, guard: &mut ConnGuard) -> Option<()> {
        let Some(limits) = self.configured().shield.as_ref().map(|shield| shield.limits) else {
            return Some(());
        };
        let denied = self.worker.shared.kernel.denied_sources.load();
        if denied.denies(&self.configured().name, self.peer.ip()) {
            return self.reset("shield_denied");
        }
        if limits.concurrent == 0 {
            return Some(());
        }
        let (shared, listener) = (&self.worker.shared, self.listener());
        listener
            .source_bits
            .get_or_init(|| (limits.ipv4_prefix, limits.ipv6_prefix));
        let source = listener.source(shared.seed, self.peer.ip())?;
        if shared.limits.sources.try_acquire(source, limits.concurrent).is_err() {
            shared.limits.over.report(listener, self.peer.ip());
            return self.reset("shield_concurrent");
        }
        guard.enter_listener_source(source);
        Some(())
    }

    /// Finds out who the client is: reads a trusted proxy's PROXY header, and checks the limits per source. `None`: the
    /// client was refused.
    pub(super) async fn introduce(&mut self, guard: &mut ConnGuard) -> Option<Result<(), PeekError>> {
        let protocol = self.configured().protocol;
        let limit = self.peek_timeout();
        let is_trusted = self
            .configured()
            .trusted_proxies
            .iter()
            .any(|prefix| prefix.contains(&self.peer.ip()));
        let mut named_well = Ok(());
        if is_trusted {
            match peek::proxy_header(&mut self.client, protocol, limit).await {
                Ok((length, named)) => {
                    self.consumed = length;
                    if let Some(named) = named {
                        self.true_client = sys::canonical(named.client);
                        self.destination = sys::canonical(named.destination);
                    }
                }
                Err(error) => named_well = Err(error),
            }
        }
        // A trusted proxy is exempt from the limits per source. The clients that it names are counted instead.
        if !(is_trusted && self.true_client == self.peer) {
            self.admit_source(guard)?;
        }
        Some(named_well)
    }

    /// Finds out who the client is, and which name it asks for.
    pub(super) async fn identify(&mut self, guard: &mut ConnGuard) -> Option<IdentifiedClient> {
        let began = Instant::now();
        let (protocol, limit) = (self.configured().protocol, self.peek_timeout());
        let mut greeted = None;
        let request = match self.introduce(guard).await? {
            Ok(()) => {
                let left = limit.saturating_sub(began.elapsed());
                peek::peek_request(&mut self.client, protocol, left, &mut greeted).await
            }
            Err(error) => Err(error),
        };
        guard.finish_peeking();
        if protocol != Protocol::Tcp {
            self.listener().peek_seconds.observe(began.elapsed());
        }
        Some(IdentifiedClient { request, greeted })
    }

    /// Counts the connection against the limits that all listeners share.
    fn admit_source(&self, guard: &mut ConnGuard) -> Option<()> {
        let (shared, limits) = (&self.worker.shared, self.snapshot.model.limits.per_source);
        if (limits.concurrent, limits.per_second, limits.peeking) == (0, 0, 0) {
            return Some(());
        }
        let source = SourceCells::new(shared.seed, self.true_client.ip());
        match shared.limits.sources.admit(source, &limits, sys::monotonic()) {
            Ok(()) => {
                guard.enter_source(source);
                Some(())
            }
            Err(LimitExceeded::Concurrent) => self.reset("source_concurrent"),
            Err(LimitExceeded::Peeking) => self.reset("source_peeking"),
            Err(LimitExceeded::Rate) => self.reset("source_rate"),
        }
    }

    /// Counts a refusal for which the client gets a reset. Returns `None`.
    pub(super) fn reset<T>(&self, why: &'static str) -> Option<T> {
        self.worker.shared.totals.refused.inc();
        self.listener().refused.inc(why);
        self.log().log_refused(None, None, why);
        sys::reset_on_close(self.client.as_raw_fd());
        None
    }

    /// Where TLS ends for a client that asks for this name, from the current snapshot.
    pub(super) fn termination(&self, name: Option<&Hostname>) -> Termination {
        let snapshot = self.worker.shared.snapshot.load();
        let Some(listener) = snapshot.binds.find(self.local).map(|at| &snapshot.model.listeners[at]) else {
            return Termination::Passthrough;
        };
        self.worker.shared.termination(&snapshot, listener, name)
    }

    /// Whether requests are routed one by one for a client that asks for this name first, from the current snapshot.
    pub(super) fn routes_requests(&self, name: Option<&Hostname>) -> bool {
        let snapshot = self.worker.shared.snapshot.load();
        let listener = snapshot.binds.find(self.local).map(|at| &snapshot.model.listeners[at]);
        listener.is_some_and(|listener| listener.routes_requests(snapshot.route(name)))
    }

    pub(super) fn peek_timeout(&self) -> Duration {
        let timeouts = &self.snapshot.model.timeouts;
        if self.configured().protocol == Protocol::Tls {
            timeouts.peek_tls
        } else {
            timeouts.peek_http
        }
    }
}

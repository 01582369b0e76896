//! State of a client's connection between its requests.

use std::cell::Cell;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use signalbox_core::model::{Listener, Protocol, Route, Routing};
use signalbox_core::wire::http1::edit::FieldEdit;
use signalbox_core::wire::http1::limits::MessageLimits;
use tokio::time::Sleep;

use crate::datapath::http::host_room::HostRoom;
use crate::datapath::worker_state::Worker;
use crate::state::ListenerState;
use crate::state::outcome::Ineligible;

/// A client's connection. Holds no snapshot: a connection kept for hours would keep an old configuration.
pub(in crate::datapath::http) struct HttpConnection<'a> {
    pub(in crate::datapath::http) worker: &'a Rc<Worker>,
    pub(in crate::datapath::http) listener: Arc<ListenerState>,
    /// Peer: named by a trusted proxy's PROXY header, otherwise the other end of the connection.
    pub(in crate::datapath::http) peer: SocketAddr,
    /// Client of the request: named by a trusted proxy's X-Forwarded-For, otherwise the peer.
    pub(in crate::datapath::http) client: SocketAddr,
    /// Whether the client's TLS ends here.
    pub(in crate::datapath::http) is_tls: bool,
    /// Fields that pass the client's certificate on to hosts. The streams of a connection share them.
    pub(in crate::datapath::http) certificate_fields: Option<Rc<[FieldEdit]>>,
    /// Whether the client speaks HTTP/2: then this is one of its streams.
    pub(in crate::datapath::http) is_http2: bool,
    /// Room for connections to hosts, shared by the streams of a connection; `None` for HTTP/1.
    pub(in crate::datapath::http) host_room: Option<Rc<HostRoom>>,
    /// Whether the listener routes connections, but the name of the first request needed per-request routing.
    pub(in crate::datapath::http) is_by_name: bool,
    /// Hash of the name for which the connection was counted as new. The streams of a connection share it.
    pub(in crate::datapath::http) counted_for: Rc<Cell<Option<u64>>>,
    /// Address that the peer connected to.
    pub(in crate::datapath::http) local: SocketAddr,
    /// Address that hosts are told: the one in a trusted proxy's PROXY header, otherwise the local one.
    pub(in crate::datapath::http) destination: SocketAddr,
    pub(in crate::datapath::http) limits: MessageLimits,
    /// Bytes that were read and belong to the next request.
    pub(in crate::datapath::http) bytes: Vec<u8>,
    /// Number of bytes taken off the client's stream before its first request: a PROXY header.
    pub(in crate::datapath::http) consumed: u32,
    /// Whether the connection's cut is not decided and counted yet: the first request decides.
    pub(in crate::datapath::http) is_undecided: bool,
    /// Whether no request was served yet. A stream of HTTP/2 is never a connection's first request.
    pub(in crate::datapath::http) is_first: bool,
    /// Whether the client's handshake rules out a cut. Then no answer gets a host connection made for one.
    pub(in crate::datapath::http) cuts_no_answer: bool,
    /// The one timer of the connection.
    pub(in crate::datapath::http) timer: Pin<Box<Sleep>>,
}

impl HttpConnection<'_> {
    /// Decides once whether the connection is cut. `not_cut` says why it is not.
    pub(in crate::datapath::http) fn decide_cut(&mut self, not_cut: Option<Ineligible>) {
        if std::mem::take(&mut self.is_undecided)
            && let Some(why) = not_cut
        {
            self.listener.not_cut[why.index()].inc();
        }
    }

    /// Whether a listener with these settings would still accept this connection, for a name with this route.
    pub(in crate::datapath::http) fn is_served_by(&self, listener: Option<&Listener>, route: Option<&Route>) -> bool {
        listener.is_some_and(|listener| match self.is_tls {
            true => listener.tls.is_some(),
            false if self.is_by_name => {
                listener.protocol == Protocol::Http && route.is_none_or(|_| listener.routes_requests(route))
            }
            false => listener.routing == Routing::Request,
        })
    }
}

//! HTTP/2 connections to a host that requests share: one at a time, until its streams are used up.

use std::cell::Cell;
use std::rc::Rc;

use tokio::sync::Notify;

use super::{HostPool, KeptHost, pool_key};
use crate::datapath::choose::Lease;
use crate::datapath::http::host::tls::HostSession;
use crate::datapath::http::leg::Leg;
use crate::datapath::http::leg::http2::{HostStreamLeg, SharedHost};

/// Way to a host for a request that HTTP/2 can carry.
pub(in crate::datapath::http) enum StreamOrDial {
    /// A stream of an existing connection.
    Stream(Box<HostStreamLeg>),
    /// A kept HTTP/1.1 connection.
    Kept(Leg),
    /// A new connection must be made. With a token, other requests share it.
    Dial(Option<DialToken>),
}

/// A connection in the making.
pub(super) struct Dial {
    ended: Notify,
    outcome: Cell<DialOutcome>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DialOutcome {
    /// The connection is still in the making.
    None,
    Failed,
    Http1,
    Shared,
}

/// Token of the request that makes a connection while others wait for it.
pub(in crate::datapath::http) struct DialToken(Rc<Dial>);

impl DialToken {
    /// Reports that the host chose HTTP/1.1: the connection cannot be shared.
    pub(in crate::datapath::http) fn found_http1(&self) {
        self.0.outcome.set(DialOutcome::Http1);
    }
}

impl Drop for DialToken {
    fn drop(&mut self) {
        if self.0.outcome.get() == DialOutcome::None {
            self.0.outcome.set(DialOutcome::Failed);
        }
        self.0.ended.notify_waiters();
    }
}

impl HostPool {
    /// Finds a way to a lease's host. Waits while another request makes a connection.
    pub(in crate::datapath::http) async fn stream(
        &self,
        lease: &Lease,
        session: Option<&HostSession>,
        may_reuse: bool,
    ) -> StreamOrDial {
        loop {
            if let Some(stream) = self.open_stream(lease, session) {
                return StreamOrDial::Stream(Box::new(stream));
            }
            if session.is_some()
                && may_reuse
                && let Some(kept) = self.take(lease, session)
            {
                return StreamOrDial::Kept(kept);
            }
            let dial = match self.begin_dial(lease, session) {
                Ok(token) => return StreamOrDial::Dial(token),
                Err(dial) => dial,
            };
            dial.ended.notified().await;
            match dial.outcome.get() {
                DialOutcome::Shared | DialOutcome::None => {}
                DialOutcome::Http1 => self.note_http1(lease, session),
                // The next request must not wait for this one in turn.
                DialOutcome::Failed => return StreamOrDial::Dial(None),
            }
        }
    }

    /// Lets other requests share a connection.
    pub(in crate::datapath::http) fn share(
        &self,
        lease: &Lease,
        session: Option<&HostSession>,
        host: Rc<SharedHost>,
        token: Option<DialToken>,
    ) {
        self.with_host(lease, session, |kept| {
            kept.chooses_http1 = false;
            kept.shared.push(host);
        });
        if let Some(token) = token {
            token.0.outcome.set(DialOutcome::Shared);
        }
    }

    fn open_stream(&self, lease: &Lease, session: Option<&HostSession>) -> Option<HostStreamLeg> {
        let hosts = self.hosts.borrow();
        let kept = hosts.get(&pool_key(lease, session))?;
        kept.shared.iter().find_map(SharedHost::open)
    }

    /// Starts making a connection, unless another request is making one.
    fn begin_dial(&self, lease: &Lease, session: Option<&HostSession>) -> Result<Option<DialToken>, Rc<Dial>> {
        self.with_host(lease, session, |kept| {
            if kept.chooses_http1 {
                return Ok(None);
            }
            // Requests that waited for an ended dial may still hold it.
            let dial = kept.dial.upgrade();
            if let Some(dial) = dial.filter(|dial| dial.outcome.get() == DialOutcome::None) {
                return Err(dial);
            }
            let dial = Rc::new(Dial {
                ended: Notify::new(),
                outcome: Cell::new(DialOutcome::None),
            });
            kept.dial = Rc::downgrade(&dial);
            Ok(Some(DialToken(dial)))
        })
    }

    fn note_http1(&self, lease: &Lease, session: Option<&HostSession>) {
        self.with_host(lease, session, |kept| kept.chooses_http1 = true);
    }

    fn with_host<T>(&self, lease: &Lease, session: Option<&HostSession>, act: impl FnOnce(&mut KeptHost) -> T) -> T {
        let mut hosts = self.hosts.borrow_mut();
        let kept = hosts
            .entry(pool_key(lease, session))
            .or_insert_with(|| KeptHost::new(lease, session));
        act(kept)
    }
}

//! Leg A of a connection that may be cut, or why it may not.

use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use signalbox_core::model::Listener;

use super::connection::HttpConnection;
use crate::datapath::cut::CutKind;
use crate::datapath::cut::eligibility::CutFacts;
use crate::datapath::http::host::leg_a::LegA;
use crate::datapath::http::leg::Leg;
use crate::state::ListenerState;
use crate::state::outcome::Ineligible;
use crate::sys;

impl HttpConnection<'_> {
    /// Leg A for the cut of an upgraded connection, of a last request or of a long answer, or why there is none.
    /// `is_counted`: the tunnel or request counts against a limit that only userspace can give back.
    pub(super) fn leg_a<'a>(
        &self,
        kind: CutKind,
        client: &Leg,
        listener: Option<&Listener>,
        is_counted: bool,
        state: &'a Arc<ListenerState>,
    ) -> Result<LegA<'a>, Ineligible> {
        let client = match client {
            Leg::Plain(client) => client,
            // Streams share a socket.
            _ if !self.is_tls => return Err(Ineligible::PerRequest),
            _ => return Err(Ineligible::Terminated),
        };
        let shared = &self.worker.shared;
        if shared.life.stopping.load(Relaxed) {
            return Err(Ineligible::TakingOver);
        }
        if is_counted {
            return Err(Ineligible::CountedRequest);
        }
        let peer = client.peer_addr().map_err(|_| Ineligible::NotAvailable)?;
        let peer = sys::canonical(peer);
        let facts = CutFacts {
            datapath: listener.ok_or(Ineligible::Disabled)?.datapath,
            is_counted: true,
            is_named_by_proxy: peer != self.peer,
            is_available: self.worker.cut.is_some(),
            // The host is asked for its address later.
            ends: None,
        };
        if let Some(why) = facts.obstacle() {
            return Err(why);
        }
        Ok(LegA {
            peer,
            local: self.local,
            fd: client.as_raw_fd(),
            listener: state,
            kind,
            consumed: 0,
        })
    }
}

//! Ways to make a connection to a host: in TLS, for the kernel at once, for the kernel later, or for userspace alone.

use std::io;
use std::sync::Arc;

use signalbox_core::model::tls::HttpVersion;
use signalbox_core::routing::last_request::LastRequestObstacle;
use tokio::net::TcpStream;

use super::cut_plan::CutPlan;
use super::leg_a::LegA;
use super::tls::HostSession;
use super::versions::{CutHost, HostVersions, MadeConnection};
use crate::datapath::choose::Lease;
use crate::datapath::cut::HeldFlow;
use crate::datapath::dial::{connect_uncut, dial, dial_held};
use crate::datapath::http::leg::Leg;
use crate::datapath::http::leg::http2::SharedHost;
use crate::datapath::worker_state::Worker;
use crate::state::outcome::Ineligible;
use crate::state::{RouteState, Snapshot};

/// A connection to make to the host of a lease.
pub(super) struct HostDialer<'a> {
    pub(super) worker: &'a Worker,
    pub(super) snapshot: &'a Snapshot,
    pub(super) lease: &'a Lease,
    pub(super) route: Option<&'a Arc<RouteState>>,
    /// TLS to the host, if its cluster has it.
    pub(super) session: Option<HostSession>,
    pub(super) versions: HostVersions,
    /// PROXY header, as far as it is not sent yet.
    pub(super) preamble: &'a mut Vec<u8>,
}

impl HostDialer<'_> {
    /// Makes the connection, and begins HTTP/2 on it if the host speaks that.
    pub(super) async fn connect(mut self, cut: &CutPlan<'_>) -> io::Result<MadeConnection> {
        let backend = self.lease.backend;
        let (leg, held) = match (self.session.take(), cut) {
            (Some(session), _) => (self.in_tls(session).await?, Err(Ineligible::Terminated)),
            (None, CutPlan::LastRequest(leg_a, bytes)) if self.versions == HostVersions::Http1 => {
                match self.cut_at_once(leg_a, bytes).await? {
                    Ok(host) => return Ok(MadeConnection::Cut(host)),
                    Err((stream, why)) => (Leg::Plain(stream), Err(why)),
                }
            }
            (None, CutPlan::LastRequest(..)) => {
                let why = Ineligible::LastRequest(LastRequestObstacle::Http2Host);
                (
                    Leg::Plain(connect_uncut(&self.worker.shared, self.lease).await?),
                    Err(why),
                )
            }
            (None, CutPlan::Tunnel(leg_a) | CutPlan::LongAnswer(leg_a)) => self.held(leg_a).await?,
            (None, CutPlan::No(why)) => (
                Leg::Plain(connect_uncut(&self.worker.shared, self.lease).await?),
                Err(*why),
            ),
        };
        if self.versions != HostVersions::Http2 && leg.alpn() != Some(HttpVersion::Http2) {
            return Ok(MadeConnection::Http1(leg, held));
        }
        let before = std::mem::take(self.preamble);
        let limits = self.snapshot.model.limits.heads;
        let host = Box::pin(SharedHost::begin(leg, before, backend, &self.lease.cluster, limits)).await?;
        Ok(MadeConnection::Http2(host))
    }

    /// Connects in TLS. The PROXY header goes before the handshake.
    async fn in_tls(&mut self, session: HostSession) -> io::Result<Leg> {
        let stream = connect_uncut(&self.worker.shared, self.lease).await?;
        let before = std::mem::take(self.preamble);
        session.begin(stream, before, self.versions.may_be_http2()).await
    }

    /// Connects with a flow that is cut at once. The error, within: the connection, and the reason why it is not cut.
    async fn cut_at_once(
        &self,
        leg_a: &LegA<'_>,
        request: &[u8],
    ) -> io::Result<Result<CutHost, (TcpStream, Ineligible)>> {
        let bytes = [self.preamble, request].concat();
        let (host, attempt) = dial(self.worker, self.lease, &leg_a.dial_request(self.route), bytes.len()).await?;
        match attempt {
            Ok(attempt) => Ok(Ok(CutHost { attempt, host, bytes })),
            Err(why) => {
                self.lease.host.note_not_cut(why);
                Ok(Err((host.into_registered()?, why)))
            }
        }
    }

    /// Connects with a flow that may be cut later.
    async fn held(&self, leg_a: &LegA<'_>) -> io::Result<(Leg, Result<HeldFlow, Ineligible>)> {
        let (stream, held) = dial_held(self.worker, self.lease, &leg_a.dial_request(self.route)).await?;
        if let Err(why) = held {
            self.lease.host.note_not_cut(why);
        }
        Ok((Leg::Plain(stream), held))
    }
}

//! Second half of an exchange: the answer has begun, or the request has ended otherwise. No other host is tried any
//! more, so no snapshot is held.

use signalbox_core::wire::http1::turn::NextStep;

use super::after::AfterRequest;
use super::attempt::Request;
use super::connection::HttpConnection;
use super::reached::Reached;
use super::tunnel::Tunnel;
use crate::datapath::http::message::answer::Asked;
use crate::datapath::http::message::carry::Carry;
use crate::state::outcome::FlowEnd;

impl HttpConnection<'_> {
    /// Passes the rest of an answer on, and ends the exchange.
    pub(super) async fn pass(&mut self, request: &Request, asked: &Asked, reached: Reached) -> AfterRequest {
        let Reached {
            mut client,
            mut attempt,
            mut turn,
            leased,
            timeouts,
        } = reached;
        if let (NextStep::Exchange { .. }, Some(attempt)) = (turn.next(), &mut attempt) {
            let carry = Carry {
                awaits_continue: false,
                written: (attempt.host.leg.outbox.written(), client.leg.outbox.written()),
                client: &mut client,
                host: &mut attempt.host,
                turn: &mut turn,
                asked,
                flow: &attempt.link.listed.flow,
                timeouts,
                until_answer: false,
                stopping: &self.worker.shared.life.stopping,
            };
            tokio::select! {
                biased;
                _ = carry.run(self.timer.as_mut()) => {}
                () = attempt.link.listed.flow.close.notified() => {
                    self.end_flow(&attempt.link, FlowEnd::Drained);
                    return self.abort(client, &leased.lease, "drained", attempt.host.status);
                }
            }
        }
        match (turn.next(), attempt) {
            (NextStep::Finished(ending), attempt) => self.finish(request, ending, client, attempt, leased).await,
            (NextStep::Tunnel, Some(attempt)) => {
                let policy = self.tunnel_policy(&self.worker.shared.snapshot.load(), timeouts.tunnel);
                AfterRequest::Tunnel(Box::new(Tunnel::new(client, attempt, leased.lease, policy)))
            }
            // No other attempt is made once an answer has begun.
            (NextStep::Tunnel | NextStep::Connect { .. } | NextStep::Exchange { .. }, _) => AfterRequest::Closed,
        }
    }
}

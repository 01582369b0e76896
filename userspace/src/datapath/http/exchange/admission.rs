//! Admission of requests: which addresses a route serves, and the limits of each client's connections and requests.

use std::sync::Arc;

use signalbox_core::limits::limit::{self, SourceCells};
use signalbox_core::limits::request_limit::RequestLimitExceeded;
use signalbox_core::model::Route;
use signalbox_core::model::claimed::ConnectionLimits;
use signalbox_core::model::http::RequestLimits;

use super::connection::HttpConnection;
use super::counted::{CountedGuards, CountedRequest};
use super::refusal::Refusal;
use super::request_route::{ROOT, RequestRoute};
use crate::datapath::http::pages;
use crate::datapath::refuse::RefuseReason;

impl HttpConnection<'_> {
    /// Admits a request to a name's route, or says why not.
    pub(super) fn admit(&self, name: Option<&Route>, route: RequestRoute<'_>) -> Result<CountedGuards, Refusal> {
        let client = self.client.ip();
        if name.is_some_and(|name| !name.allows(client) || !name.has_cluster_for(route.allow, client)) {
            let why = RefuseReason::NotAllowed;
            let (status, text) = why.http().unwrap_or((403, pages::text(403)));
            return Err(Refusal::new(status, why.label(), text));
        }
        let as_connection = name.map_or(Ok(None), |name| self.admit_as_connection(name))?;
        let Some(scope) = route.limits else {
            return Ok([as_connection, None]);
        };
        let source = SourceCells::new(scope.seed(self.worker.shared.seed), client);
        Ok([as_connection, self.count(source, scope.limits, "request_rate")?])
    }

    /// Applies the limits of the name's connections to a request. The connection's first request for the name counts as
    /// a new connection; each request in flight counts as an open one.
    fn admit_as_connection(&self, name: &Route) -> Result<Option<CountedRequest>, Refusal> {
        let limits = name.connection_limits();
        if limits == ConnectionLimits::default() {
            return Ok(None);
        }
        let shared = &self.worker.shared;
        let source = shared.route_source(&name.hostname, self.client.ip());
        let label = limit::seed_of_path(shared.seed, &name.hostname, ROOT);
        let is_new = self.counted_for.get() != Some(label);
        let limits = RequestLimits {
            requests: limits.rate.filter(|_| is_new),
            concurrent: limits.concurrent,
        };
        let counted = self.count(source, &limits, RefuseReason::ConnectionRate.label())?;
        self.counted_for.set(Some(label));
        Ok(counted)
    }

    /// Counts a request of a source for limits. `None`: the limits do not count requests in flight.
    fn count(
        &self,
        source: SourceCells,
        limits: &RequestLimits,
        rate_reason: &'static str,
    ) -> Result<Option<CountedRequest>, Refusal> {
        let shared = &self.worker.shared;
        match shared.limits.requests.admit(source, limits, crate::sys::monotonic()) {
            Ok(()) if limits.concurrent == 0 => Ok(None),
            Ok(()) => Ok(Some(CountedRequest::new(Arc::clone(shared), source))),
            Err(RequestLimitExceeded::Rate(wait)) => Err(too_many(rate_reason, wait.as_secs() + 1)),
            Err(RequestLimitExceeded::Concurrent) => Err(too_many("request_concurrency", 1)),
        }
    }
}

fn too_many(reason: &'static str, wait_seconds: u64) -> Refusal {
    Refusal {
        retry_after_seconds: Some(wait_seconds),
        ..Refusal::new(429, reason, pages::text(429))
    }
}

//! Admission of requests: the addresses that a route serves, and the limits of each client's requests.

use std::sync::Arc;

use signalbox_core::limit::SourceCells;
use signalbox_core::model::Route;
use signalbox_core::request_limit::RequestLimitExceeded;

use super::client::HttpConnection;
use super::counted::CountedRequest;
use super::pages;
use super::refusal::Refusal;
use super::request_route::RequestRoute;
use crate::datapath::refuse::RefuseReason;

impl HttpConnection<'_> {
    /// Admits a request of a name's route, or says why not.
    pub(super) fn admit(
        &self,
        name: Option<&Route>,
        route: RequestRoute<'_>,
    ) -> Result<Option<CountedRequest>, Refusal> {
        if name.is_some_and(|name| !name.allows(self.client.ip())) {
            let why = RefuseReason::NotAllowed;
            let (status, text) = why.http().unwrap_or((403, pages::text(403)));
            return Err(Refusal::new(status, why.label(), text));
        }
        let Some(scope) = route.limits else { return Ok(None) };
        let shared = &self.worker.shared;
        let source = SourceCells::new(scope.seed(shared.seed), self.client.ip());
        let admitted = shared
            .request_limiter
            .admit(source, scope.limits, shared.started.elapsed());
        let (reason, wait_seconds) = match admitted {
            Ok(()) if scope.limits.concurrent == 0 => return Ok(None),
            Ok(()) => {
                return Ok(Some(CountedRequest::new(Arc::clone(shared), source)));
            }
            Err(RequestLimitExceeded::Rate(wait)) => ("request_rate", wait.as_secs() + 1),
            Err(RequestLimitExceeded::Concurrent) => ("request_concurrency", 1),
        };
        Err(Refusal {
            retry_after_seconds: Some(wait_seconds),
            ..Refusal::new(429, reason, pages::text(429))
        })
    }
}

//! Rotations on every balancer of a set. Successful when all have done them.

use serde_json::Value;
use signalbox_api::rotations::{JobAnswer, PeerResult, RotationBody};

use crate::control::Control;
use crate::control::rotation_jobs::{Job, RotateError, RotationRequest};
use crate::source::client::{ApiClient, ClientError};

impl Control {
    /// Rotates on all other balancers, then on this one, and returns the result of each.
    ///
    /// A failure does not roll anything back. A subject that is out of rotation on one balancer does no harm, and a
    /// repeated request changes nothing on balancers that have done it.
    pub async fn rotate_on_all_balancers(
        &self,
        request: RotationRequest,
    ) -> (Result<Job, RotateError>, Vec<PeerResult>) {
        let body = RotationBody {
            action: request.action,
            names: request.names.clone(),
            timeout: request.timeout.map(|timeout| timeout.as_secs_f64()),
            force: request.force,
            all_balancers: false,
            reason: request.reason.clone(),
        };
        let balancers = self.shared.snapshot.load().model.balancers.clone();
        // All balancers are asked at the same time, because each may be slow.
        let asked: Vec<_> = balancers
            .into_iter()
            .map(|balancer| {
                let (url, body) = (balancer.url.clone(), serde_json::to_string(&body).unwrap_or_default());
                let asking = async move {
                    ApiClient::Balancer(balancer)
                        .ask(hyper::Method::POST, "/api/v1/rotations", Some(body))
                        .await
                };
                (url, tokio::spawn(asking))
            })
            .collect();
        let mut parts = Vec::new();
        for (url, asking) in asked {
            let outcome = match asking.await {
                Ok(Ok(answer)) => serde_json::from_value::<JobAnswer>(answer)
                    .map(|answer| answer.job.id)
                    .map_err(|_| format!("{url} answers, but not as a signalbox does")),
                Ok(Err(error)) => Err(crate::sys::error_chain(&error)),
                Err(error) => Err(error.to_string()),
            };
            parts.push(match outcome {
                Ok(job) => PeerResult {
                    url,
                    job: Some(job),
                    error: None,
                },
                Err(error) => PeerResult {
                    url,
                    job: None,
                    error: Some(error),
                },
            });
        }
        (self.rotate(request).await, parts)
    }

    /// Returns a job of another balancer, in its API's form. `None` if the configuration does not have that balancer.
    pub async fn peer_job(&self, url: &str, id: u64) -> Option<Result<Value, ClientError>> {
        let balancers = self.shared.snapshot.load().model.balancers.clone();
        let balancer = balancers.into_iter().find(|balancer| balancer.url == url)?;
        let path = format!("/api/v1/jobs/{id}");
        Some(ApiClient::Balancer(balancer).ask(hyper::Method::GET, &path, None).await)
    }
}

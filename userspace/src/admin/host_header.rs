//! The `Host` of requests over TCP: a page of another site must not read the API by a name of its own that leads here
//! (DNS rebinding).
//!
//! An address in `Host` is safe, since the browser has connected to it; so is a name that the operator knows. Such a page
//! may set any header, but does not know the token. Probes and scrapers use whatever name their network has.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header, uri::Authority};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::json;

use super::auth::AdminAuth;
use super::problem::problem;
use super::tls::TcpPeer;

/// Paths that orchestrators and Prometheus ask for by any name. They show figures and names of hosts, and change nothing.
const PUBLIC_PATHS: [&str; 3] = ["/livez", "/readyz", "/metrics"];

/// Refuses requests whose `Host` is a name that nobody has given to this API.
pub(super) async fn require_known(
    State(admin_auth): State<Arc<AdminAuth>>,
    ConnectInfo(peer): ConnectInfo<TcpPeer>,
    request: Request,
    next: Next,
) -> Response {
    let (headers, shared) = (request.headers(), admin_auth.shared());
    let name = requested_name(headers).unwrap_or_default();
    let is_public = PUBLIC_PATHS.contains(&request.uri().path());
    if is_public || is_known(&name, &shared.snapshot.load().model.admin.names) {
        return next.run(request).await;
    }
    // Changes are authorized in any case, and a second time would count twice against their rate.
    let shows_credentials = peer.certified || headers.contains_key(header::AUTHORIZATION);
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if shows_credentials && (!is_read || admin_auth.authorize(peer, headers).is_ok()) {
        return next.run(request).await;
    }
    shared.admin.refused.inc("unknown_host");
    problem(
        StatusCode::MISDIRECTED_REQUEST,
        "The API is not known by this name",
        &format!("use its address, or add {name:?} to admin.names"),
        &json!({}),
    )
}

/// Returns the name in `Host`, in lower case and without its port.
fn requested_name(headers: &HeaderMap) -> Option<String> {
    let host: Authority = headers.get(header::HOST)?.to_str().ok()?.parse().ok()?;
    let name = host.host().trim_start_matches('[').trim_end_matches(']');
    Some(name.trim_end_matches('.').to_ascii_lowercase())
}

fn is_known(name: &str, names: &[String]) -> bool {
    name.parse::<IpAddr>().is_ok()
        || name == "localhost"
        || names.iter().any(|known| known.eq_ignore_ascii_case(name))
        || (!name.is_empty() && crate::sys::host_name().eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(host: &str) -> Option<String> {
        requested_name(&HeaderMap::from_iter([(header::HOST, host.parse().unwrap())]))
    }

    #[test]
    fn addresses_localhost_and_names_of_the_configuration_are_known_and_no_others() {
        let names = ["lb.example.com".to_owned()];
        for known in [
            "127.0.0.1:8089",
            "[::1]:8089",
            "localhost",
            "LB.example.com:8089",
            "lb.example.com.",
        ] {
            assert!(is_known(&name_of(known).unwrap(), &names), "{known}");
        }
        for unknown in [
            "evil.example",
            "lb.example.com.evil.example",
            "127.0.0.1.evil.example:8089",
        ] {
            assert!(!is_known(&name_of(unknown).unwrap(), &names), "{unknown}");
        }
        assert!(!is_known(
            &requested_name(&HeaderMap::new()).unwrap_or_default(),
            &names
        ));
    }
}

//! The `Host` of requests over TCP. A page of another site must not read the API through its own name that resolves to
//! this address (DNS rebinding).
//!
//! An address in `Host` is safe, since the browser has connected to it. So is a name that the operator knows. Such a
//! page may set any header, but does not know the token. Probes and scrapers use any name of their network.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header, uri::Authority};
use axum::middleware::Next;
use axum::response::Response;

use super::auth::AdminAuth;
use super::problem::problem;
use super::tls::TcpPeer;

/// Paths that orchestrators request with any name.
const PROBES: [&str; 2] = ["/livez", "/readyz"];

/// Path that Prometheus requests with any name of a private network. It contains host names.
const METRICS: &str = "/metrics";

/// Suffixes of names that cannot be registered: RFC 2606, 6761, 6762 and 8375; ICANN's `internal`, and those that ICANN
/// has postponed indefinitely; Kubernetes' services.
const PRIVATE_ENDS: [&str; 8] = [
    "local",
    "localhost",
    "test",
    "internal",
    "home.arpa",
    "corp",
    "home",
    "svc",
];

/// Refuses requests whose `Host` is a name that this API is not known by.
pub(super) async fn require_known(
    State(admin_auth): State<Arc<AdminAuth>>,
    ConnectInfo(peer): ConnectInfo<TcpPeer>,
    request: Request,
    next: Next,
) -> Response {
    let (headers, shared) = (request.headers(), admin_auth.shared());
    let name = requested_name(headers).unwrap_or_default();
    let path = request.uri().path();
    let is_open = PROBES.contains(&path) || (path == METRICS && is_private(&name));
    if is_open || is_known(&name, &shared.snapshot.load().model.admin.names) {
        return next.run(request).await;
    }
    // Changes are authorized in any case. A second check would count twice in their rate limit.
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

/// Whether a name belongs to a private network: an attacker's site has a registered name.
fn is_private(name: &str) -> bool {
    let ends_so = |end: &str| name.strip_suffix(end).is_some_and(|rest| rest.ends_with('.'));
    !name.is_empty() && (!name.contains('.') || PRIVATE_ENDS.into_iter().any(ends_so))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(host: &str) -> Option<String> {
        requested_name(&HeaderMap::from_iter([(header::HOST, host.parse().unwrap())]))
    }

    #[test]
    fn names_of_private_networks_are_no_names_of_an_attacker() {
        for private in [
            "signalbox",
            "lb.site.internal",
            "signalbox.lb.svc",
            "lb.ns.svc.cluster.local",
            "x.home.arpa",
        ] {
            assert!(is_private(private), "{private}");
        }
        for public in [
            "",
            "lb.example.com",
            "internal.evil.example",
            "evilinternal.example",
            "a.homearpa",
        ] {
            assert!(!is_private(public), "{public}");
        }
    }

    #[test]
    fn only_addresses_localhost_and_configured_names_are_known() {
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

//! Authorization of changes over TCP, and of reads if `admin.read` is `token`: by the token of `admin.token_file`, or
//! by a certificate signed by `admin.tls.client_ca`.
//!
//! The token is sent as `Authorization: Bearer TOKEN`, or as the password of HTTP basic authentication (RFC 7617). A
//! plugin of the prototype uses the latter when its URL is `http://plugin:TOKEN@balancer:8089`. A rate limit slows down
//! guesses.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use parking_lot::Mutex;

use super::mutate::{Requester, is_worth_a_line};
use super::problem::problem;
use super::tls::TcpPeer;
use crate::state::Shared;

/// Number of changes that a source address may request at once, and then in each second.
const BURST_CHANGES: f64 = 40.0;
const CHANGES_PER_SECOND: f64 = 20.0;
/// Number of changes for which a wrong token counts in [`BURST_CHANGES`].
const WRONG_TOKEN_COST: f64 = 8.0;
/// Maximum number of source addresses in the rate limit.
const MAX_SOURCES: usize = 1024;
/// Minimum and maximum length of a token in bytes: a shorter one can be guessed.
const TOKEN_LENGTHS: std::ops::RangeInclusive<usize> = 16..=4096;

/// Decides on requests over TCP.
pub(super) struct AdminAuth {
    token_file: Option<PathBuf>,
    throttle: Throttle,
    shared: Arc<Shared>,
}

/// Token buckets by source address: the remaining requests, and since when.
#[derive(Default)]
struct Throttle(Mutex<Vec<(IpAddr, f64, Instant)>>);

impl AdminAuth {
    pub(super) fn new(token_file: Option<PathBuf>, shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            token_file,
            throttle: Throttle::default(),
            shared,
        })
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Checks the credentials of a request that changes something.
    pub(super) fn authorize(&self, peer: TcpPeer, headers: &HeaderMap) -> Result<(), Box<Response>> {
        self.authorize_at(1.0, peer, headers)
    }

    /// Checks the credentials of a request that reads. The rate limit does not apply to reads with the right token.
    pub(super) fn authorize_read(&self, peer: TcpPeer, headers: &HeaderMap) -> Result<(), Box<Response>> {
        if self.token_file.is_none() && !peer.certified {
            return Err(Box::new(problem(
                StatusCode::FORBIDDEN,
                "Reads over this address need a token",
                "use the admin socket, for example `signalbox status` on the machine itself, or set admin.token_file; \
                 admin.read: open lets everybody read who reaches this address",
            )));
        }
        self.authorize_at(0.0, peer, headers)
    }

    fn authorize_at(&self, cost: f64, peer: TcpPeer, headers: &HeaderMap) -> Result<(), Box<Response>> {
        let source = peer.addr.ip().to_canonical();
        if peer.certified {
            return if self.throttle.take(source, cost) {
                Ok(())
            } else {
                Err(Box::new(too_many_requests()))
            };
        }
        let Some(file) = &self.token_file else {
            return Err(Box::new(problem(
                StatusCode::FORBIDDEN,
                "Changes are made over the unix socket",
                "this address is read-only: use the admin socket, for example `curl --unix-socket /run/signalbox/admin.sock ...`, or set admin.token_file",
            )));
        };
        if !self.throttle.take(source, cost) {
            return Err(Box::new(too_many_requests()));
        }
        let token = match std::fs::read_to_string(file) {
            Ok(token) if TOKEN_LENGTHS.contains(&token.trim().len()) => token,
            Ok(_) => {
                return Err(Box::new(unavailable(&format!(
                    "the token in {} must have {} to {} characters",
                    file.display(),
                    TOKEN_LENGTHS.start(),
                    TOKEN_LENGTHS.end()
                ))));
            }
            Err(error) => return Err(Box::new(unavailable(&format!("reading {}: {error}", file.display())))),
        };
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        if given.is_some_and(|given| has_token(given, token.trim())) {
            return Ok(());
        }
        // A missing token is no guess: pages send none until the user enters it.
        if given.is_some() {
            self.throttle.take(source, WRONG_TOKEN_COST);
        }
        let mut response: Response = problem(
            StatusCode::UNAUTHORIZED,
            "The token is missing or wrong",
            "send `Authorization: Bearer TOKEN` with the token of admin.token_file",
        );
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        Err(Box::new(response))
    }
}

impl Throttle {
    /// Takes `cost` from the bucket of a source; false if not enough is left.
    fn take(&self, source: IpAddr, cost: f64) -> bool {
        let mut sources = self.0.lock();
        let now = Instant::now();
        let at = sources
            .iter()
            .position(|(known, ..)| *known == source)
            .unwrap_or_else(|| {
                if sources.len() >= MAX_SOURCES {
                    // The source that has been quiet longest is removed.
                    let oldest = (0..sources.len()).min_by_key(|&i| sources[i].2).unwrap_or(0);
                    sources.swap_remove(oldest);
                }
                sources.push((source, BURST_CHANGES, now));
                sources.len() - 1
            });
        let (_, left, since) = &mut sources[at];
        *left = (*left + now.duration_since(*since).as_secs_f64() * CHANGES_PER_SECOND).min(BURST_CHANGES);
        *since = now;
        let may = *left >= 1.0;
        // A refused request costs nothing, unless its token is wrong: a source that asks too often still gets its
        // share.
        if may || cost == WRONG_TOKEN_COST {
            *left = (*left - cost).max(-BURST_CHANGES);
        }
        may
    }
}

fn too_many_requests() -> Response {
    problem(
        StatusCode::TOO_MANY_REQUESTS,
        "Too many changes",
        "wait a second; a wrong token counts for several requests",
    )
}

fn unavailable(detail: &str) -> Response {
    tracing::error!(detail, "Changes over TCP cannot be allowed.");
    problem(StatusCode::SERVICE_UNAVAILABLE, "The token cannot be checked", detail)
}

/// Returns whether a header contains this token.
fn has_token(given: &str, token: &str) -> bool {
    let Some((scheme, value)) = given.split_once(' ') else {
        return false;
    };
    let value = value.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return constant_time_eq(value.as_bytes(), token.as_bytes());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return false;
    }
    let Ok(pair) = BASE64_STANDARD.decode(value) else {
        return false;
    };
    let password = pair
        .iter()
        .position(|&byte| byte == b':')
        .map(|colon| &pair[colon + 1..]);
    password.is_some_and(|password| constant_time_eq(password, token.as_bytes()))
}

/// Compares in constant time, so that a token cannot be guessed byte by byte.
fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b));
    std::hint::black_box(difference) == 0 && a.len() == b.len()
}

/// Names a caller over TCP: its address, and how it proved that it may make changes.
fn requester(peer: TcpPeer) -> Requester {
    let proof = if peer.certified { "client certificate" } else { "token" };
    Requester(format!("{} ({proof})", peer.addr.ip().to_canonical()))
}

/// Whether a path can be read without credentials, regardless of `admin.read`: the paths for orchestrators and
/// Prometheus, and the files of the web UI, which are the same everywhere.
fn is_open(path: &str) -> bool {
    matches!(path, "/" | "/livez" | "/readyz" | "/metrics" | "/ui") || path.starts_with("/ui/")
}

/// Allows reads unless they need the token, and changes with the right credentials. Changes are logged.
pub(super) async fn require_auth(
    State(admin_auth): State<Arc<AdminAuth>>,
    ConnectInfo(peer): ConnectInfo<TcpPeer>,
    mut request: Request,
    next: Next,
) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        let needs_token = admin_auth.shared().snapshot.load().model.admin.reads_need_token;
        if needs_token
            && !is_open(request.uri().path())
            && let Err(refused) = admin_auth.authorize_read(peer, request.headers())
        {
            admin_auth.shared.admin.refused.inc("unauthorized_read");
            return *refused;
        }
        return next.run(request).await;
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = match admin_auth.authorize(peer, request.headers()) {
        Ok(()) => {
            request.extensions_mut().insert(requester(peer));
            next.run(request).await
        }
        Err(refused) => {
            admin_auth.shared.admin.denied.inc();
            *refused
        }
    };
    let status = response.status().as_u16();
    if is_worth_a_line(&path, status) {
        tracing::info!(target: "signalbox::audit", client = %peer.addr, certified = peer.certified, %method, path, status, "Change requested.");
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    #[test]
    fn a_token_is_presented_as_bearer_or_as_a_password() {
        assert!(has_token("Bearer 0123456789abcdef", TOKEN));
        assert!(has_token("bearer  0123456789abcdef ", TOKEN));
        // plugin:0123456789abcdef
        assert!(has_token("Basic cGx1Z2luOjAxMjM0NTY3ODlhYmNkZWY=", TOKEN));
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Basic 0123456789abcdef",
            "Basic MDEyMzQ1Njc4OWFiY2RlZg==",
            "Digest 0123456789abcdef",
        ] {
            assert!(!has_token(wrong, TOKEN), "{wrong}");
        }
    }

    #[test]
    fn probes_metrics_and_pages_are_open() {
        assert!(["/", "/metrics", "/livez", "/ui/app.js"].into_iter().all(is_open));
        assert!(!["/api/v1/status", "/ws", "/uix", "/metricsx"].into_iter().any(is_open));
    }

    #[test]
    fn reads_are_free_until_a_source_has_used_up_its_token_guesses() {
        let throttle = Throttle::default();
        let source = IpAddr::from([10, 0, 0, 1]);
        assert!((0..10_000).all(|_| throttle.take(source, 0.0)));
        while throttle.take(source, WRONG_TOKEN_COST) {}
        assert!(!throttle.take(source, 0.0));
    }

    #[test]
    fn guesses_run_out_and_others_go_on() {
        let throttle = Throttle::default();
        let source = |n: u8| IpAddr::from([10, 0, 0, n]);
        let tries = (0..1000)
            .take_while(|_| throttle.take(source(1), 1.0) && throttle.take(source(1), WRONG_TOKEN_COST))
            .count();
        assert!((3..8).contains(&tries), "{tries}");
        assert!(throttle.take(source(2), 1.0));
        for n in 0..5000u32 {
            throttle.take(IpAddr::from(n.to_be_bytes()), 1.0);
        }
        assert!(throttle.0.lock().len() <= MAX_SOURCES);
    }
}

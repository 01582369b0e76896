//! TLS policy of a request: whether it may be served on its connection, and the protocol to the host.

use signalbox_core::model::tls::{InsecurePolicy, Termination};
use signalbox_core::model::{Listener, Model, Protocol, Route};
use signalbox_core::wire::http1::method::Method;

use super::attempt::Request;
use super::refusal::Refusal;
use crate::datapath::http::pages;
use crate::datapath::refuse::RefuseReason;

/// Finds the host's protocol for a request to a listener, in TLS or not. Returns the answer if no host gets the
/// request.
pub(super) fn host_protocol(
    request: &Request,
    is_tls: bool,
    listener: Option<&Listener>,
    route: Option<&Route>,
    model: &Model,
) -> Result<Protocol, Refusal> {
    if is_tls {
        let termination = listener.map_or(Termination::Edge, |listener| listener.termination(route));
        return match termination {
            Termination::Edge => Ok(Protocol::Http),
            Termination::Reencrypt => Ok(Protocol::Tls),
            // A browser that reuses the connection of another name (RFC 9110, section 15.5.20).
            Termination::Passthrough => Err(Refusal::new(421, "misdirected", pages::text(421))),
        };
    }
    let path = request.head.path(&request.bytes);
    match route.map_or(InsecurePolicy::Allow, |route| route.insecure(path)) {
        InsecurePolicy::Allow => Ok(Protocol::Http),
        InsecurePolicy::Redirect => Err(redirect(request, listener, model)),
        InsecurePolicy::None => {
            let why = RefuseReason::NoRoute;
            let (status, text) = why.http().unwrap_or((404, pages::text(404)));
            Err(Refusal::new(status, why.label(), text))
        }
    }
}

/// Redirects the client to the same URL with `https`. A method with a body is kept.
fn redirect(request: &Request, listener: Option<&Listener>, model: &Model) -> Refusal {
    let (root, rest) = request.head.path_and_query(&request.bytes);
    // The parser checks that a target has graphic ASCII characters only. `*` of OPTIONS has no URL.
    let path = [root, rest].concat();
    let path = std::str::from_utf8(&path).ok().filter(|path| path.starts_with('/'));
    let Some((host, path)) = request.name().zip(path) else {
        return Refusal::new(400, "no_url", pages::text(400));
    };
    let said = listener.and_then(|listener| listener.http.redirect_port);
    let port = match said.or_else(|| model.https_port()) {
        None | Some(443) => String::new(),
        Some(port) => format!(":{port}"),
    };
    let status = match request.head.method {
        Method::Get | Method::Head => 302,
        _ => 307,
    };
    Refusal {
        location: Some(format!("https://{}{port}{path}", host.as_str())),
        ..Refusal::new(status, "redirected", pages::text(status))
    }
}

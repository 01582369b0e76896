//! TLS termination and HTTP by request: the decoded settings, and the message of each rule when it is broken.

use std::time::Duration;

use signalbox_core::model::Protocol;
use signalbox_core::model::http::AffinityScope;
use signalbox_core::model::http::{AmbiguousPaths, HeaderEdits};
use signalbox_core::model::tls::{CertificatePlace, HttpVersion, InsecurePolicy, SessionTickets, Termination};
use signalbox_core::wire::http::forwarded::ForwardedPolicy;
use signalbox_core::wire::http1::edit::{FieldEdit, FieldName};

use super::{only_mistakes, right};

/// File with pieces in place of a listener's, a cluster's and a route's keys, and of further lines.
fn file(listener: &str, cluster: &str, route: &str, more: &str) -> String {
    format!(
        "version: 1\nlisteners:\n  - {{ name: edge, protocol: https, listen: [\"10.1.0.1:443\"]{listener} }}\nclusters:\n  \
         - {{ name: east, hosts: [{{ name: e1, address: 10.2.0.1, http: 80, https: 443 }}]{cluster} }}\nroutes:\n  \
         - {{ host: app.test, clusters: {{ east: 1 }}{route} }}\n{more}"
    )
}

#[test]
fn a_listener_that_ends_tls() {
    let text = file(
        ", termination: edge, strict_sni: true, client_certificates: { ca: ca.pem, fields: x-ssl }, request_id: X-Id, forwarded: { policy: replace, trusted: [10.0.0.0/8] }",
        ", h2c: true, backend_tls: { ca: east.pem, name: router.test, alpn: [h2, http/1.1] }",
        ", tls: { termination: reencrypt, insecure: redirect, hsts: \"max-age=60; includeSubDomains\" }, allow: [192.0.2.0/24]",
        "  - { host: app.test, path: /api, clusters: { east: 7 } }\ncertificates: [{ cert: a.pem, default: true }, { directory: d }]\ntls: { profile: modern, groups: [X25519], tickets: false }\n",
    );
    let model = right(&text).model;
    let listener = &model.listeners[0];
    assert_eq!((listener.protocol, listener.protocol_name()), (Protocol::Tls, "https"));
    let tls = listener.tls.as_ref().unwrap();
    assert!(tls.has_strict_sni && tls.clients.as_ref().unwrap().is_required);
    assert_eq!(listener.termination(None), Termination::Edge);
    assert_eq!(listener.http.forwarded, ForwardedPolicy::Replace);
    assert_eq!(model.routes.len(), 1, "paths belong to their name's route");
    let route = &model.routes[0];
    assert_eq!(listener.termination(Some(route)), Termination::Reencrypt);
    assert_eq!(route.tls.as_ref().unwrap().insecure, Some(InsecurePolicy::Redirect));
    assert_eq!((&*route.paths[0].path, route.paths[0].clusters[0].1), ("/api", 7));
    assert!(route.allows([192, 0, 2, 1].into()) && !route.allows([192, 0, 3, 1].into()));
    let [
        CertificatePlace::Files { cert, key, .. },
        CertificatePlace::Directory(_),
    ] = &model.tls.certificates[..]
    else {
        panic!("{:?}", model.tls.certificates)
    };
    assert_eq!(cert, key, "one file holds both");
    let cluster = &model.clusters[0];
    assert!(cluster.backend_tls.is_verified && model.tls.tickets == SessionTickets::Off && cluster.h2c);
    assert_eq!(cluster.backend_tls.alpn, [HttpVersion::Http2, HttpVersion::Http11]);
    assert_eq!(model.https_port(), Some(443));
}

#[test]
fn treatment_of_requests() {
    let text = file(
        "",
        "",
        ", affinity: { cookie: sb, to: host }, headers: { request: { add: { X-A: \"\" }, remove: [X-A] } }, timeouts: { tunnel: 2h }",
        "  - { host: app.test, path: /api, clusters: { east: 7 }, rewrite: /, headers: {}, timeouts: { answer: 1s } }\n",
    );
    let text = text.replace("[\"10.1.0.1:443\"]", "[\"10.1.0.1:443\"], termination: edge");
    let route = right(&text).model.routes.remove(0);
    assert_eq!(route.requests.affinity.as_ref().unwrap().scope, AffinityScope::Host);
    let name = FieldName::parse("X-A").unwrap();
    let edits = [FieldEdit::Remove(name.clone()), FieldEdit::Add(name, Vec::new())];
    assert_eq!(
        route.requests.headers.as_ref().unwrap().request,
        edits,
        "removed before it is added"
    );
    let path = &route.paths[0].requests;
    assert_eq!(path.affinity, route.requests.affinity, "as the name says");
    assert_eq!(path.headers, Some(HeaderEdits::default()), "as the path says");
    assert_eq!(
        (path.rewrite.as_deref(), route.requests.rewrite.as_deref()),
        (Some("/"), None)
    );
    let (answer, tunnel) = (Duration::from_secs(1), Duration::from_secs(7200));
    assert_eq!(
        (path.timeouts.answer, path.timeouts.tunnel),
        (Some(answer), Some(tunnel))
    );
    assert!(route.needs_request_routing());
}

#[test]
fn a_listener_without_tls_settings_uses_tls_passthrough() {
    let model = right(&file("", "", "", "")).model;
    assert_eq!(
        model.listeners[0].termination(Some(&model.routes[0])),
        Termination::Passthrough
    );
    assert!(model.routes[0].allows([203, 0, 113, 1].into()));
}

#[test]
fn mistakes_of_listeners() {
    only_mistakes(
        &|keys| file(keys, "", "", ""),
        "
        , termination: egde | listeners[0].termination | did you mean `edge`?
        , strict_sni: maybe | listeners[0].strict_sni | is not a boolean
        , client_certificates: { ca: a.pem, fields: all } | listeners[0].client_certificates.fields | allowed: client-cert, x-ssl or off
        , client_certificates: { required: true } | listeners[0].client_certificates | the key `ca` is missing
        , routing: request | listeners[0].routing | has no effect with `protocol: https`
        , request_id: \"a b\" | listeners[0].request_id | is not a field that may be set
        , request_id: Content-Length | listeners[0].request_id | is not a field that may be set
        , ambiguous_paths: reject | listeners[0].ambiguous_paths | is not a treatment of ambiguous paths
        , redirect_port: 8443 | listeners[0].redirect_port | needs `protocol: http`
        , forwarded: { policy: keep } | listeners[0].forwarded.policy | is not a policy
        ",
    );
    let plain =
        |keys: &str| file("", "", "", "").replace("protocol: https, listen", &format!("protocol: tls{keys}, listen"));
    only_mistakes(
        &plain,
        "
        , termination: edge | listeners[0].termination | needs `protocol: https`: tls is not decrypted
        , strict_sni: true | listeners[0].strict_sni | needs `protocol: https`
        , request_id: X-Id | listeners[0].request_id | needs `routing: request` or `protocol: https`
        , ambiguous_paths: pass | listeners[0].ambiguous_paths | needs `protocol: http` or `https`
        ",
    );
    let plain = |keys: &str| plain(keys).replace("protocol: tls", "protocol: http");
    only_mistakes(
        &plain,
        "
        , redirect_port: 0 | listeners[0].redirect_port | from 1 to 65535
        , request_id: X-Id | listeners[0].request_id | needs `routing: request` or `protocol: https`
        ",
    );
    let http = &right(&plain(", ambiguous_paths: normalize, redirect_port: 8443"))
        .model
        .listeners[0]
        .http;
    assert_eq!(
        (http.ambiguous_paths, http.redirect_port),
        (AmbiguousPaths::Normalize, Some(8443))
    );
}

#[test]
fn pages() {
    let model = right(&file("", "", "", "pages: { 404: /a.html, 503: /b }\n"));
    let files: Vec<_> = model
        .model
        .pages
        .iter()
        .map(|(status, path)| (*status, path.to_str().unwrap()))
        .collect();
    assert_eq!(files, [(404, "/a.html"), (503, "/b")]);
    only_mistakes(
        &|pages| file("", "", "", &format!("pages: {pages}\n")),
        "
        /503.html | pages | write status codes with files
        { 200: /a } | pages.200 | is not a status code of the balancer's own
        { x: /a } | pages.x | is not a status code of the balancer's own
        { 503: a.html } | pages.503 | absolute path
        ",
    );
}

#[test]
fn mistakes_of_routes_and_clusters() {
    only_mistakes(
        &|keys| file("", "", keys, ""),
        "
        , tls: { hsts: forever } | routes[0].tls.hsts | is not a value of Strict-Transport-Security
        , tls: { hsts: \"max-age=1\", termination: passthrough } | routes[0].tls.hsts | needs TLS to end here
        , tls: { insecure: never } | routes[0].tls.insecure | is not a treatment of plain HTTP
        , path: api | routes[0].path | is not a path: begin it with `/`
        , path: /a?b | routes[0].path | write no query
        , \"path\": /a, drain: 1m | routes[0].drain | holds for a name as a whole
        , connections: {} | routes[0].connections | write `rate: 100`, `concurrent: 50` or both
        , connections: { burst: 5, concurrent: 5 } | routes[0].connections | `burst` belongs to `rate`
        , connections: { rate: 0 } | routes[0].connections.rate | 1 to 1000000
        , path: /a, connections: { rate: 1 } | routes[0].connections | holds for a name as a whole
        , allow: [] | routes[0].allow | an empty list serves nobody
        , affinity: { to: host } | routes[0].affinity | the key `cookie` is missing
        , affinity: { cookie: \"a b\" } | routes[0].affinity.cookie | is not the name of a cookie
        , affinity: { cookie: sb, to: pod } | routes[0].affinity.to | is not a part of a route
        , affinity: { cookie: sb, same_site: never } | routes[0].affinity.same_site | is not a value of SameSite
        , limits: {} | routes[0].limits | write `requests: { rate: 100
        , limits: { concurrent: 0 } | routes[0].limits.concurrent | 1 to 1000000
        , limits: { requests: { burst: 2 } } | routes[0].limits.requests | the key `rate` is missing
        , limits: { requests: 5 } | routes[0].limits.requests |
        , affinity: { cookie: sb }, tls: { termination: passthrough } | routes[0].affinity | no request can be read
        , headers: { request: { set: { Host: x.test } } } | routes[0].headers.request.set.Host | cannot be changed: app
        , headers: { request: { remove: [cookie] } } | routes[0].headers.request.remove[0] | belong to clients
        , headers: { response: { add: { Content-Length: 1 } } } | routes[0].headers.response.add.Content-Length | controls where
        , headers: { response: { set: { \"a b\": c } } } | routes[0].headers.response.set[\"a b\"] | is not the name of a field
        , headers: { response: { set: { a: \"b\\nc\" } } } | routes[0].headers.response.set.a | is one line
        , headers: { response: { set: [a] } } | routes[0].headers.response.set | names of fields with values
        , rewrite: api | routes[0].rewrite | is not a path
        , timeouts: { answer: 5 } | routes[0].timeouts.answer | has no unit
        ",
    );
    only_mistakes(
        &|keys| file("", keys, "", ""),
        "
        , backend_tls: { cert: a.pem } | clusters[0].backend_tls | `cert` and `key` go together
        , backend_tls: { ca: a.pem, verify: false } | clusters[0].backend_tls.ca | has no effect with `verify: false`
        , backend_tls: { name: \"a b\" } | clusters[0].backend_tls.name | a b
        , backend_tls: { alpn: [h3] } | clusters[0].backend_tls.alpn[0] | allowed: h2
        , backend_tls: { alpn: [h2, h2] } | clusters[0].backend_tls.alpn[1] | in the list already
        , backend_tls: { alpn: [] } | clusters[0].backend_tls.alpn | the list of versions is empty
        , answers: loose | clusters[0].answers | a way to read answers
        , h2c: 2 | clusters[0].h2c | is not a boolean
        ",
    );
}

#[test]
fn mistakes_of_certificates_and_settings() {
    only_mistakes(
        &|lines| file("", "", "", lines),
        "
        certificates: [{ key: a.pem }] | certificates[0] | a certificate is { cert: FILE, key: FILE }
        certificates: [{ cert: a.pem, directory: d }] | certificates[0] | `directory` allows no other key
        tls: { profile: old } | tls.profile | the profile `old` is not available
        tls: { groups: [] } | tls.groups | the list of groups is empty
        tls: { groups: [X25519, X25519] } | tls.groups[1] | in the list already
        tls: { http2: always } | tls.http2 | always
        ",
    );
    let twice = "  - { host: app.test, path: /a, clusters: { east: 1 } }\n  - { host: App.Test, path: /a, clusters: { east: 1 } }\n";
    super::only_mistake(
        &file("", "", "", twice),
        "routes[2].host",
        "already has a route for /a on line 8",
    );
}

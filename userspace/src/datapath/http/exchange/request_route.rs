//! Effects of a route on a request: the cookie that keeps a client at its host, changed fields, another path.

use signalbox_core::limits::limit;
use signalbox_core::model::Protocol;
use signalbox_core::model::claimed::ClusterAllow;
use signalbox_core::model::http::AffinityScope;
use signalbox_core::model::http::{RequestLimits, RequestPolicy};
use signalbox_core::routing::affinity::{Stickiness, cookie_value};
use signalbox_core::routing::view::Destination;
use signalbox_core::wire::hostname::HostnamePattern;
use signalbox_core::wire::http::path;
use signalbox_core::wire::http1::edit::{FieldEdit, FieldName};

use super::attempt::Request;
use crate::datapath::choose::Lease;
use crate::state::Snapshot;

const CACHE_CONTROL: FieldName = FieldName::constant("Cache-Control");

/// Path of a route without one: all paths are below it.
pub(in crate::datapath) const ROOT: &str = "/";

/// Limits of a client's requests, and the route that sets them: for all requests of its name, or of one of its paths.
#[derive(Clone, Copy)]
pub(super) struct LimitScope<'a> {
    pub(super) limits: &'a RequestLimits,
    name: &'a HostnamePattern,
    path: &'a str,
}

impl LimitScope<'_> {
    /// Mixes the route into a seed, so that each route counts its sources separately.
    pub(super) fn seed(self, seed: u64) -> u64 {
        limit::seed_of_path(seed, self.name, self.path)
    }
}

/// Route of a request: the parts that apply to requests.
#[derive(Clone, Copy)]
pub(super) struct RequestRoute<'a> {
    pub(super) policy: &'a RequestPolicy,
    pub(super) limits: Option<LimitScope<'a>>,
    /// Clients that each cluster serves.
    pub(super) allow: &'a [ClusterAllow],
    path: &'a str,
    clusters: &'a [(usize, u32)],
}

impl<'a> RequestRoute<'a> {
    /// Leaves requests unchanged.
    const NONE: Self = Self {
        policy: &RequestPolicy::NONE,
        limits: None,
        allow: &[],
        path: ROOT,
        clusters: &[],
    };

    /// Finds the route of a destination, for a request with a path. A destination without a route leaves requests
    /// unchanged.
    pub(super) fn find(snapshot: &'a Snapshot, to: Destination, request_path: &[u8]) -> Self {
        let (at, path) = match to {
            Destination::Route(at) => (at, None),
            Destination::Path(at, path) => (at, Some(path)),
            _ => return Self::NONE,
        };
        let Some(route) = snapshot.model.routes.get(at) else {
            return Self::NONE;
        };
        let scope = |policy: &'a RequestPolicy, path| {
            policy.limits.as_ref().map(|limits| LimitScope {
                limits,
                name: &route.hostname,
                path,
            })
        };
        let of_name = Self {
            policy: &route.requests,
            limits: scope(&route.requests, ROOT),
            allow: route.cluster_allow(),
            path: ROOT,
            clusters: &route.clusters,
        };
        if let Some(path) = path.and_then(|path| route.paths.get(path)) {
            return Self {
                policy: &path.requests,
                limits: scope(&path.requests, &path.path).or(of_name.limits),
                path: &path.path,
                clusters: &path.clusters,
                ..of_name
            };
        }
        let Some(claimed) = route.path_policy(request_path) else {
            return of_name;
        };
        // Settings in the configuration for the name apply to all its paths.
        let own_path = |is_of_name: bool| match claimed.path.as_str() {
            "" => ROOT,
            _ if is_of_name => ROOT,
            path => path,
        };
        Self {
            policy: &claimed.requests,
            limits: scope(&claimed.requests, own_path(route.requests.limits.is_some())),
            allow: &claimed.allow,
            path: own_path(route.requests.rewrite.is_some() || route.requests.affinity.is_some()),
            ..of_name
        }
    }

    /// Cluster and host named by the client's cookie, if they can take the request: the first such cookie counts.
    pub(super) fn stickiness(self, request: &Request, snapshot: &Snapshot, protocol: Protocol) -> Option<Stickiness> {
        let affinity = self.policy.affinity.as_ref()?;
        let mut values = affinity.cookie.values(&request.head.fields, &request.bytes);
        values.find_map(|value| {
            let view = &snapshot.view;
            view.stickiness(value, affinity.scope, self.clusters, protocol)
        })
    }

    /// Changes of the request's fields.
    pub(super) fn request_edits(self, request: &Request) -> impl Iterator<Item = FieldEdit> + use<'a> {
        let affinity = self.policy.affinity.as_ref();
        let hidden = affinity.and_then(|affinity| affinity.cookie.hide(&request.head.fields, &request.bytes));
        let headers = self.policy.headers.as_ref();
        let configured = headers.map_or(&[][..], |headers| &headers.request);
        hidden.into_iter().chain(configured.iter().cloned())
    }

    /// Target for the host; `None`: the client's target.
    pub(super) fn target(self, request: &Request) -> Option<Vec<u8>> {
        let rewrite = self.policy.rewrite.as_ref()?;
        let (root, rest) = request.head.path_and_query(&request.bytes);
        path::rewrite(self.path.as_bytes(), rewrite.as_bytes(), &[root, rest].concat())
    }

    /// Changes of an answer's fields, except for the cookie.
    pub(super) fn answer_edits(self) -> impl Iterator<Item = FieldEdit> + use<'a> {
        let headers = self.policy.headers.as_ref();
        headers.map_or(&[][..], |headers| &headers.response).iter().cloned()
    }

    /// Cookie for a client whose request has another cookie, or none. Caches in between must not give it to others.
    pub(super) fn cookie_edits(self, request: &Request, lease: &Lease, is_tls: bool) -> Vec<FieldEdit> {
        let Some(affinity) = &self.policy.affinity else {
            return Vec::new();
        };
        let host = (affinity.scope == AffinityScope::Host).then_some(&*lease.host.name);
        let value = cookie_value(&lease.cluster.name, host);
        let mut brought = affinity.cookie.values(&request.head.fields, &request.bytes);
        if brought.any(|brought| brought == value.as_bytes()) {
            return Vec::new();
        }
        let cookie = affinity.cookie.set(&value, self.path, is_tls);
        let private = FieldEdit::Add(CACHE_CONTROL, b"private".to_vec());
        cookie.into_iter().chain([private]).collect()
    }
}

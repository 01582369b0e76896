//! Settings that a Route asks of its router, by annotations and `httpHeaders`: decoded, and not judged yet. The cluster
//! decides whether its routers or this balancer obey them ([`crate::discovered::merge`]).

use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::is_false;
use crate::model::Balance;
use crate::model::tls::InsecurePolicy;
use crate::wire::http::cookie::{SameSite, StickyCookie};
use crate::wire::http::forwarded::ForwardedPolicy;
use crate::wire::http1::edit::{FieldEdit, FieldName};
use crate::wire::http1::grammar::is_field_value;

/// Most connections or requests that a limit may name: as in the configuration file.
pub const MAX_LIMIT: u32 = 1_000_000;

/// Settings of one Route. A field that is `None` was not asked for, or not in a way that makes sense.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RouteSettings {
    /// Route, as a person knows it.
    pub origin: String,
    /// Path of the Route; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Whether TLS ends after the router, which then sees no requests.
    #[serde(skip_serializing_if = "is_false")]
    pub passes_tls: bool,
    /// Whether TLS ends at the router.
    #[serde(skip_serializing_if = "is_false")]
    pub ends_tls: bool,
    /// Treatment of plain HTTP (`spec.tls.insecureEdgeTerminationPolicy`). It is the claim's where a name's Routes agree.
    #[serde(skip_serializing_if = "InsecurePolicy::is_allow")]
    pub insecure: InsecurePolicy,
    /// Prefixes of the clients that are served (`ip_allowlist`). Empty: no client is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Vec<String>>"))]
    pub allow: Option<Vec<IpNet>>,
    /// Most connections of a client at once (`rate-limit-connections.concurrent-tcp`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent_connections: Option<u32>,
    /// Connections that a client may begin in 3 seconds (`rate-limit-connections.rate-tcp`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_rate: Option<u32>,
    /// Requests that a client may send in 10 seconds (`rate-limit-connections.rate-http`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_rate: Option<u32>,
    /// Milliseconds without a byte of the server (`timeout`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Milliseconds without a byte of a tunnel, or of TLS that passes through (`timeout-tunnel`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel_timeout_ms: Option<u64>,
    /// Policy for `X-Forwarded-*` and `Forwarded` (`set-forwarded-headers`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarded: Option<ForwardedPolicy>,
    /// Name of the sticky cookie (`cookie_name`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie_name: Option<String>,
    /// Attribute `SameSite` of the cookie (`cookie-same-site`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_site: Option<SameSite>,
    /// Whether there is no sticky cookie (`disable_cookies`).
    #[serde(skip_serializing_if = "is_false")]
    pub disables_cookies: bool,
    /// Value of `Strict-Transport-Security` (`hsts_header`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hsts: Option<String>,
    /// Path for the server in place of [`Self::path`] (`rewrite-target`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rewrite: Option<String>,
    /// Changes of the requests that servers get (`httpHeaders.actions.request`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub request_headers: Vec<HeaderAction>,
    /// Changes of the answers that clients get (`httpHeaders.actions.response`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub response_headers: Vec<HeaderAction>,
    /// Balancing among servers (`balance`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balance: Option<Balance>,
    /// Most connections of a server at once (`pod-concurrent-connections`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_connections: Option<u32>,
    /// Annotations that only a router can obey, by their keys.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub router_only: Vec<String>,
}

/// Change of a field: it is set, or without a value removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeaderAction {
    /// Name of the field.
    pub name: String,
    /// Value of the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

impl HeaderAction {
    /// The change, where it is one that may be made.
    #[must_use]
    pub fn edit(&self) -> Option<FieldEdit> {
        let name = FieldName::parse(&self.name).filter(FieldName::is_editable)?;
        match &self.value {
            None => Some(FieldEdit::Remove(name)),
            Some(value) => is_field_value(value.as_bytes()).then(|| FieldEdit::Set(name, value.as_bytes().to_vec())),
        }
    }
}

impl RouteSettings {
    /// Whether the Route sets nothing apart from the place where TLS ends and the treatment of plain HTTP.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let bare = Self {
            origin: self.origin.clone(),
            path: self.path.clone(),
            passes_tls: self.passes_tls,
            ends_tls: self.ends_tls,
            insecure: self.insecure,
            ..Self::default()
        };
        *self == bare
    }

    /// Time without a byte of the server.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(Duration::from_millis)
    }

    /// Time without a byte of a tunnel.
    #[must_use]
    pub fn tunnel_timeout(&self) -> Option<Duration> {
        self.tunnel_timeout_ms.map(Duration::from_millis)
    }

    /// Sticky cookie; browsers take `None` where the Route says nothing, as the router has it.
    #[must_use]
    pub fn cookie(&self) -> Option<StickyCookie> {
        let name = self.cookie_name.as_ref().filter(|_| !self.disables_cookies)?;
        StickyCookie::new(name, Some(self.same_site.unwrap_or(SameSite::None)))
    }

    /// Changes of fields of requests and of answers.
    #[must_use]
    pub fn header_edits(&self) -> (Vec<FieldEdit>, Vec<FieldEdit>) {
        let edits = |actions: &[HeaderAction]| actions.iter().filter_map(HeaderAction::edit).collect();
        (edits(&self.request_headers), edits(&self.response_headers))
    }

    /// First promise of the fields that is broken, for settings that an agent reports.
    pub(super) fn invalid_field(&self) -> Option<&'static str> {
        let is_limit = |limit: &Option<u32>| limit.is_none_or(|limit| (1..=MAX_LIMIT).contains(&limit));
        let limits = [
            &self.concurrent_connections,
            &self.connection_rate,
            &self.request_rate,
            &self.server_connections,
        ];
        let has_cookie = |name: &String| StickyCookie::new(name, None).is_some();
        let is_path = |path: &String| crate::wire::http::path::is_route_path(path);
        let mut headers = self.request_headers.iter().chain(&self.response_headers);
        [
            (limits.into_iter().all(is_limit), "limits are 1 to 1000000"),
            (self.timeout_ms != Some(0), "timeout_ms is more than 0"),
            (self.tunnel_timeout_ms != Some(0), "tunnel_timeout_ms is more than 0"),
            (
                self.cookie_name.as_ref().is_none_or(has_cookie),
                "cookie_name is a token",
            ),
            (self.rewrite.as_ref().is_none_or(is_path), "rewrite is a path"),
            (self.path.is_empty() || is_path(&self.path), "path is a path"),
            (
                self.hsts.as_ref().is_none_or(|hsts| is_field_value(hsts.as_bytes())),
                "hsts is a field's value",
            ),
            (
                headers.all(|action| action.edit().is_some()),
                "headers are fields that may be changed",
            ),
        ]
        .into_iter()
        .find_map(|(is_kept, promise)| (!is_kept).then_some(promise))
    }
}

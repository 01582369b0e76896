//! Settings of listeners whose requests are routed one by one.

use ipnet::IpNet;

use crate::http::forwarded::ForwardedPolicy;

/// Treatment of requests at a listener that routes them one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpPolicy {
    /// Policy for `X-Forwarded-*` and `Forwarded`.
    pub forwarded: ForwardedPolicy,
    /// Prefixes of the proxies whose `X-Forwarded-*` and request ids are believed; `None`: everyone's.
    pub trusted: Option<Vec<IpNet>>,
    /// Field that holds the id of a request, which hosts and the log get; `None`: there is none.
    pub request_id: Option<String>,
}

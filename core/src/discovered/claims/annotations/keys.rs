//! Keys of the annotations that a router obeys, with their prefix.

pub(crate) const BALANCE: &str = "haproxy.router.openshift.io/balance";
pub(crate) const DISABLE_COOKIES: &str = "haproxy.router.openshift.io/disable_cookies";
pub(crate) const HSTS: &str = "haproxy.router.openshift.io/hsts_header";
pub(crate) const ALLOW: &str = "haproxy.router.openshift.io/ip_allowlist";
pub(crate) const ALLOW_BEFORE: &str = "haproxy.router.openshift.io/ip_whitelist";
pub(crate) const POD_CONCURRENT: &str = "haproxy.router.openshift.io/pod-concurrent-connections";
pub(crate) const LIMITS: &str = "haproxy.router.openshift.io/rate-limit-connections";
pub(crate) const CONCURRENT: &str = "haproxy.router.openshift.io/rate-limit-connections.concurrent-tcp";
pub(crate) const CONNECTION_RATE: &str = "haproxy.router.openshift.io/rate-limit-connections.rate-tcp";
pub(crate) const REQUEST_RATE: &str = "haproxy.router.openshift.io/rate-limit-connections.rate-http";
pub(crate) const REWRITE: &str = "haproxy.router.openshift.io/rewrite-target";
pub(crate) const FORWARDED: &str = "haproxy.router.openshift.io/set-forwarded-headers";
pub(crate) const TIMEOUT: &str = "haproxy.router.openshift.io/timeout";
pub(crate) const TUNNEL_TIMEOUT: &str = "haproxy.router.openshift.io/timeout-tunnel";
pub(crate) const ADJUST_CASE: &str = "haproxy.router.openshift.io/h1-adjust-case";
pub(crate) const COOKIE_NAME: &str = "router.openshift.io/cookie_name";
pub(crate) const SAME_SITE: &str = "router.openshift.io/cookie-same-site";
pub(crate) const HEALTH_INTERVAL: &str = "router.openshift.io/haproxy.health.check.interval";
pub(crate) const POOL_SIZE: &str = "router.openshift.io/pool-size";
/// Fields of a Route that are no annotations.
pub(crate) const HEADERS: &str = "spec.httpHeaders.actions";
pub(crate) const INSECURE: &str = "spec.tls.insecureEdgeTerminationPolicy";

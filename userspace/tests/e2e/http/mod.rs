//! HTTP by request, TLS that ends at the balancer, and what of both leaves userspace.

pub(crate) mod h2c;
mod http2_hosts;
pub(crate) mod https;
mod kept;
mod last_request;
pub(crate) mod late_cut;
pub(crate) mod request;

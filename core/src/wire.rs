//! Formats that others define: names, HTTP, the first bytes of TLS and of proxies, YAML.

pub mod address;
pub mod hostname;
pub mod http;
pub mod http1;
pub mod http2;
pub mod peek;
pub mod yaml;

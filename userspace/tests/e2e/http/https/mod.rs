//! Listeners with `protocol: https`.

mod aliases;
mod bodies;
mod certificates;
mod clients;
mod clusters;
mod edge;
mod handshakes;
mod host_certificates;
mod http2;
mod http2_streams;
mod http2_websocket;
mod http2_windows;
mod migration;
mod odd_names;
mod passthrough;
mod plain;
mod reencrypt;
mod replaced;
mod router_fields;
pub(crate) mod scene;
mod suites;
mod tickets;
pub(crate) mod websocket;
mod websocket_cases;

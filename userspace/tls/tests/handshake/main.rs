//! Handshakes over loopback sockets: rustls and Debian's `openssl s_client` as clients.
#![allow(clippy::unwrap_used, reason = "tests")]

mod client;
mod fixtures;
mod openssl;
mod profiles;
mod resumption;
mod rotation;
mod server;
mod sni;

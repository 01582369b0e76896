//! Limits and counts: of sources, requests, handshakes, descriptors; lists of clients.

pub mod connect_retry;
pub mod descriptors;
pub mod handshake_queue;
pub mod limit;
pub mod prefixes;
pub mod request_limit;
pub mod stats;

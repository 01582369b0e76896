//! HTTP/1 against what others make of the same bytes: hyper, and the corpus of http_desync_guardian.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;
mod corpus;
mod hyper_client;
mod hyper_server;
mod ours;
mod requests;
mod sent_on;
mod streams;
mod wire;

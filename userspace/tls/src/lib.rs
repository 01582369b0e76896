//! TLS termination of signalbox: certificates, their private keys, session tickets and server configurations.
//!
//! Owns: reading certificates and keys, which certificate a handshake gets, what a profile means to rustls. Never: a
//! listener, a route. Private keys stay in this crate: nothing here prints one, and their memory is zeroed when freed.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod accept;
pub mod certificate;
mod chain;
pub mod client;
pub mod directory;
#[cfg(test)]
#[path = "../tests/handshake/fixtures.rs"]
mod fixtures;
mod given;
pub mod host_fault;
pub mod keys;
pub mod nodes;
mod pem;
pub mod probe;
pub mod profile;
pub mod provider;
pub mod resolver;
mod roots;
pub mod server;
pub mod shown;
pub mod store;
pub mod stream;
pub mod tickets;
mod traditional;
mod verifiers;
pub mod watch;

pub use pem::PemError;

//! Path of a connection: accept, peek, choose, connect. Then its flow is cut, or relayed if it cannot be cut.
//!
//! A worker is a thread with its own runtime and listening sockets. A connection never leaves the thread that accepted
//! it. Workers read the snapshot, add to atomics, and take no lock.

pub mod accept;
mod arrival;
pub mod choose;
pub mod conn_guard;
pub mod connection;
pub mod cut;
mod dial;
pub mod flow;
mod greet;
mod http;
pub mod listen;
mod log_context;
mod passed_up;
pub mod peek;
pub mod pipe;
pub mod pump;
mod queue;
mod redispatch;
pub mod refuse;
pub mod relay;
pub mod repaired;
pub mod report;
mod route;
pub mod scratch;
pub mod socket;
pub mod sockmap;
pub mod sockmap_watch;
pub mod tracking;
pub mod worker;
pub mod worker_state;

pub use http::AMBIGUOUS_PATH;

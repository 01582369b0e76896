//! The brain of signalbox: which name a connection asks for, which route that is, which cluster and host take it.
//!
//! Owns: names, routes, weights, balancing, health hysteresis, ejection, peek parsers, plan and diff. Never: I/O, a
//! clock, randomness (time and random numbers come as arguments), a kernel map. Called by `userspace`, which feeds it
//! events and carries out its decisions.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod affinity;
pub mod balance;
pub mod claims;
pub mod descriptors;
pub mod diff;
pub mod discovery;
pub mod dns;
pub mod ejection;
pub mod export;
pub mod expose;
pub mod firewall;
pub mod ha;
pub mod health;
pub mod hostname;
pub mod http;
pub mod http1;
pub mod http2;
pub mod join;
pub mod labels;
pub mod limit;
pub mod maglev;
pub mod merge;
pub mod migration;
pub mod model;
pub mod peek;
pub mod plan;
pub mod prefixes;
pub mod request_limit;
pub mod rotation;
pub mod route_table;
pub mod schedule;
pub mod shown;
pub mod spi;
pub mod stats;
pub mod subset;
pub mod sync;
pub mod tls;
pub mod view;
pub mod yaml;

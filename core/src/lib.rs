//! The brain of signalbox: which name a connection asks for, which route that is, which cluster and host take it.
//!
//! Owns: names, routes, weights, balancing, health hysteresis, ejection, peek parsers, plan and diff. Its modules have
//! ranks (docs/architecture.md). Never: I/O, a clock, randomness (time and random numbers come as arguments), a kernel
//! map. Called by `userspace`, which feeds it events and carries out its decisions.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod availability;
pub mod discovered;
pub mod firewall;
pub mod limits;
pub mod model;
pub mod routing;
pub mod wire;

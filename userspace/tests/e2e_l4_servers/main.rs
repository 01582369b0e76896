//! Layer-4 services in front of servers that others wrote: databases, name servers, and iperf3 for the bytes between.
//! What they do with a connection was not thought out for a balancer's tests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod database;
mod dns;
mod east;
mod iperf;
#[path = "../lab/mod.rs"]
mod lab;
mod mariadb;
mod transfer;

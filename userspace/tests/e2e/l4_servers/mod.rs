//! Layer-4 services in front of servers that others wrote: databases, name servers, and iperf3 for the bytes between.
//! What they do with a connection was not thought out for a balancer's tests.

mod database;
mod dns;
mod east;
mod iperf;
pub(crate) mod mariadb;
mod transfer;

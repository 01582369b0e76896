//! Layer-4 services in front of real servers: databases, name servers, and iperf3 for the bytes between. They were not
//! written with a balancer's tests in mind.

mod database;
mod dns;
mod east;
mod iperf;
pub(crate) mod mariadb;
mod protocols;
mod shown;
mod transfer;

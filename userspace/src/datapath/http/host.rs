//! The way to a host: kept, shared and new connections. Of the client it knows the leg and the addresses: for a cut, for
//! a PROXY header, and to stop when the client leaves.

pub(super) mod cut_plan;
mod dialer;
pub(super) mod leg_a;
pub(in crate::datapath) mod pool;
mod tls;
pub(super) mod upstream;
pub(super) mod versions;

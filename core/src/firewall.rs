//! Firewall rules of this machine, judged: whether they would touch a listener's connections.
//!
//! Connections that are routed in the kernel bypass netfilter. So rules are read into one small form, and each base chain
//! in question is followed for each class of a listener's packets ([`judge()`]). All that is not understood counts as
//! *maybe*, and *maybe* with an effect after it is a reason: a rule is never missed by mistake.

mod class;
mod facts;
mod field;
mod form;
mod ipset;
pub mod ipvs;
mod judge;
mod left_clients;
pub mod nft;
mod pattern;
pub mod save;
mod values;
mod walk;

pub use facts::{HostWay, ListenerFacts};
pub use form::{FilterRuleset, FilterTable, IpFamily};
pub use ipset::IpSets;
pub use judge::{FilterReason, FilterVerdict, judge};
pub use left_clients::LeftClients;

#[cfg(test)]
mod tests;

//! High availability: which node has which virtual addresses, and keepalived's configuration of it.
//!
//! Owns: the grammar of address ranges, groups, priorities, virtual router ids, rendering, what keepalived reports, and
//! the addresses from which a group's owner connects to hosts. Never: processes, files.

pub mod addresses;
pub mod floating;
pub mod groups;
pub mod ids;
pub mod keepalived;
pub mod nat_sources;
pub mod notice;
pub mod priority;
pub mod ranges;
#[cfg(test)]
mod testing;

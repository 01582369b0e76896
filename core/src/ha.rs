//! High availability: which node has which virtual addresses, and keepalived's configuration of it.
//!
//! Owns: the grammar of address ranges, groups, floating source addresses, priorities, virtual router ids, rendering. Never: processes, files.

pub mod floating;
pub mod groups;
pub mod ids;
pub mod ranges;

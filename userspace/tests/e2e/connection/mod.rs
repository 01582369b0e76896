//! Connections that signalbox accepts: how they are routed, limited and refused, on every tier.

mod adverse;
pub(crate) mod backup;
mod backup_cluster;
pub(crate) mod connection_log;
mod crowd;
mod faults;
mod health;
mod peek;
mod sources;
mod subset;
pub(crate) mod tiers;

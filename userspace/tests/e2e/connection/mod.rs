//! Connections that signalbox accepts: how they are routed, limited and refused, on every tier.

pub(crate) mod access_log;
mod adverse;
pub(crate) mod backup;
mod backup_cluster;
mod crowd;
mod faults;
mod health;
mod peek;
mod silent_hosts;
mod sources;
mod subset;
pub(crate) mod tiers;

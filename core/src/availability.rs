//! Availability over nodes and clusters: virtual addresses, replication of flows, migrations.

pub mod ha;
pub mod migration;
pub mod sync;

//! The life of a process: start, stop, restart, upgrade, and what it may do on its machine.

pub(crate) mod lifecycle;
mod online;
mod pins;
mod refused;
mod restart;
mod rights;
mod successor;
pub(crate) mod upgrades;

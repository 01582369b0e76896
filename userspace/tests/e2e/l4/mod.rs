//! Layer-4 services.

mod crowd;
mod exposed;
mod health_udp;
mod refused;
pub(crate) mod servers;
pub(crate) mod services;

//! Sources of systems that came before Kubernetes: OpenShift 2's routing events, and plugins of the prototype.
//!
//! Each source reports to the store like those of `signalbox-sources`.

pub mod prototype;
pub mod routing_spi;

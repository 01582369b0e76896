//! Sources of systems that came before Kubernetes: OpenShift 2's routing events, and plugins of the prototype.
//!
//! They report to the store like the sources of `signalbox-sources`.

pub mod prototype;
pub mod routing_spi;

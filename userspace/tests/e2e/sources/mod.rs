//! Sources of routes and hosts other than Kubernetes, and a table that balancers share.

pub(crate) mod applications;
pub(crate) mod etcd;
mod events;
mod host_names;
mod labels;
mod learn;
mod routing_spi;

//! Kubernetes: its API as a source, and the packaged manifests on a cluster.

pub(crate) mod agent;
mod annotations;
mod apiserver;
mod back;
mod choice;
mod cluster;
mod shards;
pub(crate) mod source;
mod storm;
mod ways;

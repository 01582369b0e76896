//! signalbox: a kernel-assisted TCP/TLS/HTTP balancer in front of OpenShift and Kubernetes clusters.
//!
//! This crate does the I/O: the datapath, the admin API, the command line. `signalbox-kernel` loads the eBPF programs,
//! `signalbox-sources` watches clusters, `signalbox-compat` older systems, `signalbox-config` reads the file,
//! `signalbox-core` makes the decisions.
//!
//! The data flow: source -> store -> view -> workers -> counters -> admin.

pub mod admin;
pub mod app;
pub mod cli;
pub mod control;
pub mod datapath;
pub mod reconcile;
pub mod state;
pub mod sync;

pub use signalbox_compat as compat;
pub use signalbox_config as config;
pub use signalbox_kernel as kernel;
pub use signalbox_sources as source;
pub use signalbox_sys as sys;

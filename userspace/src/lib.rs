//! signalbox: a kernel-assisted TCP/TLS/HTTP balancer in front of OpenShift and Kubernetes clusters.
//!
//! This crate does the I/O: sources of configuration, the kernel, the datapath, the admin API, the command line.
//! `signalbox-core` makes the decisions. The data flow: source -> store -> view -> workers -> counters -> admin.

pub mod admin;
pub mod app;
pub mod cli;
pub mod control;
pub mod datapath;
pub mod kernel;
pub mod l4;
pub mod source;
pub mod state;
pub mod sys;

pub use signalbox_config as config;

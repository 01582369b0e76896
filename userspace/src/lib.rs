//! signalbox: a kernel-assisted TCP/TLS/HTTP balancer in front of OpenShift and Kubernetes clusters.
//!
//! This crate does the I/O: sources of configuration, the kernel, the datapath, the admin API, the command line.
//! What to do is decided in `signalbox-core`. The data flow: source -> store -> view -> workers -> counters -> admin.

pub mod admin;
pub mod agent;
pub mod app;
pub mod backoff;
pub mod cli;
pub mod connection_log;
pub mod control;
pub mod datapath;
pub mod degraded;
pub mod demo;
pub mod doctor;
pub mod etcd;
pub mod fanout;
pub mod features;
pub mod flow_gc;
pub mod health;
pub mod kernel;
pub mod layer4;
pub mod listener_set;
pub mod logging;
pub mod pem;
pub mod registry;
pub mod remote;
pub mod rotation_jobs;
pub mod route_stats;
pub mod source;
pub mod state;
pub mod state_db;
pub mod store;
pub mod takeover;

pub use signalbox_config as config;

/// Formats an error with its causes, on one line.
#[must_use]
pub fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some errors print their cause themselves.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    // The verifier's log fills pages: only `--log debug` shows it.
    match text.split_once(". Verifier output:") {
        Some((brief, verifier)) => {
            tracing::debug!(verifier, "The kernel's verifier refused a program.");
            brief.to_owned()
        }
        None => text,
    }
}

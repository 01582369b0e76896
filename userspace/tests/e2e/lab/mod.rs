//! The laboratory of the end-to-end tests: a client, the balancer and two clusters, each in a separate network
//! namespace, with real router hosts (HAProxy, nginx) and servers that misbehave on demand.
//!
//! Traffic never leaves the namespaces made here, so tests neither need nor disturb the machine's own network.

pub(crate) mod browser;
pub(crate) mod callers;
pub(crate) mod config;
pub(crate) mod crowd;
pub(crate) mod cut;
pub(crate) mod dice;
pub(crate) mod exchange;
pub(crate) mod flood;
pub(crate) mod frames;
pub(crate) mod hello;
pub(crate) mod http;
pub(crate) mod impair;
pub(crate) mod load;
pub(crate) mod raw;
pub(crate) mod router;
pub(crate) mod servers;
pub(crate) mod service_manager;
pub(crate) mod services;
pub(crate) mod signalbox;
pub(crate) mod syn;
pub(crate) mod terminal;
pub(crate) mod tiers;
pub(crate) mod topology;
pub(crate) mod transfers;
pub(crate) mod tun;
pub(crate) mod visitor;

use std::time::Duration;

pub(crate) use router::Router;
pub(crate) use servers::Server;
pub(crate) use signalbox::Signalbox;
pub(crate) use signalbox_lab::{Ns, Proc, StopOnDrop, eventually, lab_test, namespace};
pub(crate) use topology::Lab;

/// Long enough for anything that should happen soon, on a machine with two busy cores.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Whether the lab can be built here.
pub(crate) fn privileged(test: &str) -> bool {
    signalbox_lab::privileged(test, &["ip", "nsenter", "haproxy", "nginx", "curl"])
}

/// Whether these programs are here, as `(program, Debian's package)`; where they must be, their absence is a failure.
pub(crate) fn available(test: &str, programs: &[(&str, &str)]) -> bool {
    let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let is_there = |program: &str| folders.iter().any(|at| std::path::Path::new(at).join(program).exists());
    let Some((program, package)) = programs.iter().find(|(program, _)| !is_there(program)) else {
        return true;
    };
    cannot_run(test, &format!("no {program} here: apt-get install {package}"));
    false
}

/// Says why a test cannot run; where it must, that is a failure.
pub(crate) fn cannot_run(test: &str, why: &str) {
    let required = std::env::var("REQUIRE_PRIVILEGED_TESTS").is_ok_and(|v| v == "1");
    assert!(!required, "{test} cannot run: {why}");
    println!("SKIP {test} cannot run: {why}");
}

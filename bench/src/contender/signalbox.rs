//! signalbox with a given datapath tier; all other settings are defaults.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::hosts::NAME;
use crate::lab::{HOSTS, Lab, VIP};
use crate::load::bulk::PORT;
use crate::product;

pub(super) fn command(lab: &Lab, workers: usize, tier: &str, program: &Path) -> Result<Command> {
    let mut command = product::run(lab, program, &body(tier))?;
    command.args(["--workers", &workers.to_string()]);
    Ok(command)
}

/// Configuration with a tier.
pub(super) fn body(tier: &str) -> String {
    let host = |(i, host)| format!("      - {{ name: host{i}, address: {host}, http: 80, https: 443, tcp: {PORT} }}\n");
    let hosts: String = (1..).zip(HOSTS).map(host).collect();
    // The default is compared with other balancers; a tier of its own is for comparison with the default.
    let datapath = match tier {
        "auto" => String::new(),
        // Not a tier: connections have a socket until they are cut, as on kernels without what the kernel peek takes.
        "userspace" => "datapath: { peek: userspace }\n".to_owned(),
        tier => format!("datapath: {{ tier: {tier} }}\n"),
    };
    // `limits` only for what all traffic from one address would run into.
    format!(
        "{datapath}timeouts: {{ shutdown: 1s }}
limits: {{ per_source: {{ peeking: 0 }} }}
listeners:
  - {{ name: http, protocol: http, listen: [\"{VIP}:80\"] }}
  - {{ name: tls, protocol: tls, listen: [\"{VIP}:443\"] }}
  - {{ name: bulk, protocol: tcp, listen: [\"{VIP}:{PORT}\"], cluster: hosts }}
clusters:
  - name: hosts
    balance: least-connections
    health: {{ tcp: {{}}, interval: 5s, timeout: 2s }}
    hosts:
{hosts}routes:
  - {{ host: {NAME}, clusters: {{ hosts: 1 }} }}
unmatched: reject
",
    )
}

//! Failure of one of ten hosts.

use std::net::Ipv4Addr;

use anyhow::Result;
use serde::Serialize;
use signalbox_lab::Ns;

use crate::lab::{Lab, TEN_HOSTS};

/// How a host fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Failure {
    None,
    /// Connections are refused, as without a server.
    Refuses,
    /// No packet is answered, as without power.
    IsSilent,
}

/// The host that fails: the last one, which no address but its own goes to.
const FAILING: Ipv4Addr = TEN_HOSTS[TEN_HOSTS.len() - 1];

/// Failure of a host until dropped.
pub(super) struct FailingHost<'a>(&'a Ns);

impl<'a> FailingHost<'a> {
    /// Has the host fail from now on.
    pub(super) fn begin(lab: &'a Lab, failure: Failure) -> Result<Option<Self>> {
        let verdict = match failure {
            Failure::None => return Ok(None),
            Failure::Refuses => "reject with tcp reset",
            Failure::IsSilent => "drop",
        };
        let host = Self(&lab.hosts[1]);
        let rules = format!(
            "table ip failing {{\n  chain input {{\n    type filter hook input priority 0\n    ip daddr {FAILING} meta \
             l4proto tcp {verdict}\n  }}\n}}\n"
        );
        host.0.try_must(&["nft", "-f", "-"], &rules)?;
        Ok(Some(host))
    }
}

impl Drop for FailingHost<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.try_must(&["nft", "delete", "table", "ip", "failing"], "") {
            eprintln!("the failing host does not come back: {error:#}");
        }
    }
}

//! Rules of a packet filter in the balancer's namespace, for all contenders of a scenario.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use signalbox_lab::Ns;

use super::Condition;

/// The rules, in `bench/rivals`.
const RULES: &str = include_str!("../../rivals/netfilter.nft");

/// Tracked connections that have ended are forgotten after a second: at these rates the table would be full otherwise.
const SYSCTLS: [&str; 1] = ["net.netfilter.nf_conntrack_tcp_timeout_time_wait=1"];

/// A ruleset that is active until dropped.
pub(crate) struct Ruleset<'a>(&'a Ns);

impl<'a> Ruleset<'a> {
    /// Loads the rules if the condition asks for them.
    pub(crate) fn load(ns: &'a Ns, condition: Condition) -> Result<Option<Self>> {
        let rules = match condition {
            Condition::Netfilter => RULES.to_owned(),
            Condition::Site => RULES.to_owned() + &services(),
            _ => return Ok(None),
        };
        ns.try_must(&["nft", "-f", "-"], &rules)
            .context("bench/rivals/netfilter.nft")?;
        let ruleset = Self(ns);
        ns.sysctl(&SYSCTLS)?;
        Ok(Some(ruleset))
    }
}

/// Rules of a thousand services, each of one endpoint, as kube-proxy writes them for nftables.
fn services() -> String {
    let mut rules = String::new();
    for (a, b) in (0..4).flat_map(|a| (0..250).map(move |b| (a, b))) {
        let _ = writeln!(
            rules,
            "add chain ip services service-{a}-{b} {{ meta l4proto tcp dnat to 10.128.{a}.{b}:8080 ; }}\n\
             add element ip services service_ips {{ 10.97.{a}.{b} . tcp . 80 : goto service-{a}-{b} }}"
        );
    }
    rules
}

impl Drop for Ruleset<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.try_must(&["nft", "flush", "ruleset"], "") {
            eprintln!("the nftables rules cannot be removed: {error:#}");
        }
    }
}

//! The judge: follows a listener's packets through all chains that they bypass, and finds the first rule that would do
//! something to one of them.

use std::fmt;
use std::net::SocketAddr;

use super::class::{PacketClass, family_of};
use super::facts::ListenerFacts;
use super::form::{FilterRuleset, FilterTable, IpFamily};
use super::walk::Walk;

/// Rule that keeps a listener's connections from bypassing netfilter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterReason {
    /// Family, table, chain, and the rule's handle or number.
    pub place: String,
    /// The rule.
    pub text: String,
    /// Packets that it may match.
    pub class: &'static str,
    /// Effect that it may have on them.
    pub why: String,
}

impl fmt::Display for FilterReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}` ({}: {})", self.place, self.text, self.class, self.why)
    }
}

/// Most addresses that are tried one by one, if rules differ for them.
const MAX_SINGLE_ADDRESSES: usize = 16;

/// Returns the first rule that would do something to a listener's packets of an address family; `None` if its
/// connections may bypass netfilter.
#[must_use]
pub fn judge(ruleset: &FilterRuleset, facts: &ListenerFacts, family: IpFamily) -> Option<FilterReason> {
    let is_ours = |address: &SocketAddr| family_of(address.ip()) == family;
    let hosts: Vec<_> = facts.hosts.iter().filter(|host| is_ours(&host.address)).collect();
    let mut binds: Vec<_> = facts.binds.iter().copied().filter(is_ours).collect();
    binds.sort_unstable_by_key(|bind| (bind.port(), bind.ip()));
    let of_hosts = hosts.iter().map(|host| (host.address, "SYNs to hosts"));
    let of_clients = binds.iter().map(|bind| (*bind, "SYNs from clients"));
    if let Some(reason) = of_clients.chain(of_hosts).find_map(|end| of_ipvs(ruleset, end)) {
        return Some(reason);
    }
    let mut judge = Judge { ruleset, steps: 0 };
    let found = judge
        .judge_binds(&binds, facts)
        .and_then(|()| judge.judge_classes(&PacketClass::of_hosts(&hosts, facts)));
    found.err().map(|reason| *reason)
}

/// Whether IPVS forwards connections to an address.
fn of_ipvs(ruleset: &FilterRuleset, (address, class): (SocketAddr, &'static str)) -> Option<FilterReason> {
    // A service at port 0 has all ports.
    let is_of = |service: &SocketAddr| service.ip() == address.ip() && [0, address.port()].contains(&service.port());
    ruleset.virtual_services.iter().any(is_of).then(|| FilterReason {
        place: "IPVS".to_owned(),
        text: address.to_string(),
        class,
        why: "forwarded".to_owned(),
    })
}

pub(crate) type Found<T> = Result<T, Box<FilterReason>>;

struct Judge<'a> {
    ruleset: &'a FilterRuleset,
    steps: usize,
}

impl Judge<'_> {
    /// Judges the addresses of each port, together or else one by one.
    fn judge_binds(&mut self, binds: &[SocketAddr], facts: &ListenerFacts) -> Found<()> {
        for of_port in binds.chunk_by(|a, b| a.port() == b.port()) {
            let mut judge = |binds| self.judge_classes(&PacketClass::of_clients(binds, facts));
            let together = judge(of_port);
            if together.is_ok() || !(2..=MAX_SINGLE_ADDRESSES).contains(&of_port.len()) {
                together?;
            } else {
                of_port.chunks(1).try_for_each(judge)?;
            }
        }
        Ok(())
    }

    fn judge_classes(&mut self, classes: &[PacketClass]) -> Found<()> {
        for class in classes {
            let is_of = |table: &&FilterTable| table.of.is_none_or(|of| of == class.family);
            for table in self.ruleset.tables.iter().filter(is_of) {
                Walk::through(table, class, &mut self.steps)?;
            }
        }
        Ok(())
    }
}

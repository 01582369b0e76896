//! The judge: follows a listener's packets through all chains that they bypass, and finds the first rule that would do
//! something to one of them, and the clients that such rules are about.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use super::class::{PacketClass, any_unicast, family_of};
use super::facts::ListenerFacts;
use super::form::{FilterRuleset, FilterTable, IpFamily};
use super::left_clients::LeftClients;
use super::pattern::NumberRanges;
use super::walk::{Walk, WalkNotes};

/// Verdict on the connections of a listener, over one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterVerdict {
    /// All connections may bypass netfilter.
    Free,
    /// All connections may, except those of these clients.
    FreeExcept(LeftClients),
    /// A rule may do something to the connections of any client.
    Left(Box<FilterReason>),
}

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

/// Most times that groups of clients are judged. Each rule about one client takes two.
const MAX_JUDGED_GROUPS: usize = 8192;

/// Judges a listener's connections of an address family.
#[must_use]
pub fn judge(ruleset: &FilterRuleset, facts: &ListenerFacts, family: IpFamily) -> FilterVerdict {
    let is_ours = |address: &SocketAddr| family_of(address.ip()) == family;
    let hosts: Vec<_> = facts.hosts.iter().filter(|host| is_ours(&host.address)).collect();
    let mut binds: Vec<_> = facts.binds.iter().copied().filter(is_ours).collect();
    binds.sort_unstable_by_key(|bind| (bind.port(), bind.ip()));
    let of_hosts = hosts.iter().map(|host| (host.address, "SYNs to hosts"));
    let of_clients = binds.iter().map(|bind| (*bind, "SYNs from clients"));
    if let Some(reason) = of_clients.chain(of_hosts).find_map(|end| of_ipvs(ruleset, end)) {
        return FilterVerdict::Left(Box::new(reason));
    }
    let mut judge = Judge {
        ruleset,
        notes: WalkNotes::default(),
    };
    let all = any_unicast(family);
    let of_clients = judge.judge_binds(&all, &binds, facts);
    let of_hosts = judge.judge_classes(&PacketClass::of_hosts(&hosts, facts));
    let of_clients = match of_clients {
        Ok(()) => FilterVerdict::Free,
        Err(reason) => judge
            .judge_by_client(all, &binds, facts)
            .unwrap_or(FilterVerdict::Left(reason)),
    };
    match (of_clients, of_hosts) {
        (FilterVerdict::Free | FilterVerdict::FreeExcept(_), Err(reason)) => FilterVerdict::Left(reason),
        (verdict, _) => verdict,
    }
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
    notes: WalkNotes,
}

impl Judge<'_> {
    /// Judges groups of clients, which it divides where rules differ for them. `None`: there are too many groups, or
    /// a list of clients would be too long.
    fn judge_by_client(
        &mut self,
        all: NumberRanges,
        binds: &[SocketAddr],
        facts: &ListenerFacts,
    ) -> Option<FilterVerdict> {
        let (mut left, mut free) = (BTreeMap::<String, Vec<_>>::new(), Vec::new());
        // If no client is free, the reason of most clients is told.
        let mut largest: Option<(u128, Box<FilterReason>)> = None;
        let mut groups = vec![all];
        for _ in 0..MAX_JUDGED_GROUPS {
            let Some(group) = groups.pop() else {
                break;
            };
            self.notes.some_clients = None;
            let Err(reason) = self.judge_binds(&group, binds, facts) else {
                free.extend(group.ranges());
                continue;
            };
            let divided = self.notes.some_clients.take();
            let divided = divided.map(|some| [group.common(&some), group.without(&some)]);
            match divided.filter(|parts| !parts.iter().any(NumberRanges::is_empty)) {
                Some(parts) => groups.extend(parts),
                None => {
                    left.entry(reason.to_string()).or_default().extend(group.ranges());
                    if largest.as_ref().is_none_or(|(count, _)| *count < group.count()) {
                        largest = Some((group.count(), reason));
                    }
                }
            }
        }
        if !groups.is_empty() {
            return None;
        }
        if free.is_empty() {
            return largest.map(|(_, reason)| FilterVerdict::Left(reason));
        }
        if left.is_empty() {
            return Some(FilterVerdict::Free);
        }
        let family = family_of(binds.first()?.ip());
        LeftClients::new(left, &free.into_iter().collect(), family).map(FilterVerdict::FreeExcept)
    }

    /// Judges the addresses of each port, together or else one by one.
    fn judge_binds(&mut self, clients: &NumberRanges, binds: &[SocketAddr], facts: &ListenerFacts) -> Found<()> {
        for of_port in binds.chunk_by(|a, b| a.port() == b.port()) {
            let mut judge = |binds| self.judge_classes(&PacketClass::of_clients(clients, binds, facts));
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
                Walk::through(table, class, &mut self.notes)?;
            }
        }
        Ok(())
    }
}

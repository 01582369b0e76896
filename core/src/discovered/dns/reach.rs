//! Addresses at which clients reach listeners.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::model::Bind;

/// Place where a listener that routes by name takes connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedBind {
    /// Name of the listener.
    pub listener: String,
    /// Address or prefix, and port.
    pub bind: Bind,
}

/// Addresses for records, with hints for a person.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Addresses, each once.
    pub addresses: Vec<IpAddr>,
    /// Hints, a line each.
    pub notes: Vec<String>,
}

impl Reached {
    fn add(&mut self, address: IpAddr) {
        let address = address.to_canonical();
        if !self.addresses.contains(&address) {
            self.addresses.push(address);
        }
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

/// Finds the addresses at which clients reach listeners: those that are given by an operator, else the virtual addresses
/// at which some listener listens, else the listeners' own.
#[must_use]
pub fn reached_at(binds: &[NamedBind], vips: &[IpAddr], given: &[IpAddr]) -> Reached {
    let mut reached = Reached::default();
    let has_listener = |address: &&IpAddr| binds.iter().any(|named| named.bind.prefix.contains(*address));
    given.iter().for_each(|address| reached.add(*address));
    if given.is_empty() {
        vips.iter()
            .filter(has_listener)
            .for_each(|address| reached.add(*address));
    }
    if reached.addresses.is_empty() {
        binds.iter().for_each(|bind| add_bind(&mut reached, bind));
    }
    for address in reached.addresses.clone() {
        if let Some(note) = unserved_ports(binds, &reached.addresses, address) {
            reached.note(note);
        }
    }
    reached
}

/// Adds the address of a bind, or a note that says why there is none.
fn add_bind(reached: &mut Reached, NamedBind { listener, bind }: &NamedBind) {
    let Some(at) = bind.single() else {
        let what = if bind.prefix.prefix_len() == 0 {
            "every address"
        } else {
            "all addresses of a prefix"
        };
        reached.note(format!(
            "listener {listener} listens at {what} ({bind}): give those that clients use by --address"
        ));
        return;
    };
    if is_local(at.ip()) {
        reached.note(format!(
            "listener {listener}: {} is left out, because other machines do not reach it: give the address \
             that they reach by --address",
            at.ip()
        ));
        return;
    }
    reached.add(at.ip());
}

/// Whether an address is this machine's, or this link's, alone.
fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local(),
    }
}

/// Note on ports that an address lacks, and other addresses of the same names have.
fn unserved_ports(binds: &[NamedBind], all: &[IpAddr], address: IpAddr) -> Option<String> {
    let ports_at = |address: &IpAddr| -> BTreeSet<u16> {
        let covering = binds.iter().filter(|named| named.bind.prefix.contains(address));
        covering.map(|named| named.bind.port).collect()
    };
    let own = ports_at(&address);
    if own.is_empty() {
        return Some(format!(
            "no listener has {address}: nothing answers there, unless NAT maps it to a listener's address"
        ));
    }
    let elsewhere: BTreeSet<u16> = all.iter().flat_map(ports_at).collect();
    let lacking: Vec<String> = elsewhere.difference(&own).map(u16::to_string).collect();
    (!lacking.is_empty()).then(|| {
        format!(
            "no listener has {address} at port {}, which other addresses have: clients of {address} are refused there",
            lacking.join(", ")
        )
    })
}

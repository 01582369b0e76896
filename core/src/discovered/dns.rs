//! DNS records of a table: the names that are routed, at the addresses where listeners take connections for them.
//!
//! All listeners that route by name serve all names, so that each name has the same addresses.

mod bind;
mod dnsmasq;
mod names;
mod reach;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

pub use bind::{NameServer, ZoneHead};
pub use names::{OwnerNames, is_in_zone, is_owner_name, owner_names};
pub use reach::{NamedBind, Reached, reached_at};

use crate::wire::hostname::{Hostname, HostnamePattern};

/// Largest time to live, in seconds (RFC 2181, section 8).
pub const MAX_TTL: u32 = 0x7fff_ffff;

/// Records of names, ready to be written.
pub struct DnsTable {
    /// Names that have records.
    pub names: Vec<HostnamePattern>,
    /// Addresses that each name has.
    pub addresses: Vec<IpAddr>,
    /// Time to live of the records, in seconds.
    pub ttl: u32,
    /// Zone that all names are in; `None`: they may be in several.
    pub zone: Option<Hostname>,
    /// Hints for a person, a line each.
    pub notes: Vec<String>,
}

/// Address record of a name.
pub struct AddressRecord<'a> {
    /// Name of the record's owner.
    pub name: &'a HostnamePattern,
    /// Type of the record: `A` or `AAAA`.
    pub kind: &'static str,
    /// Address of the name.
    pub address: IpAddr,
}

impl DnsTable {
    /// All records, name by name.
    pub fn records(&self) -> impl Iterator<Item = AddressRecord<'_>> {
        self.names.iter().flat_map(|name| {
            self.addresses.iter().map(move |&address| AddressRecord {
                name,
                kind: record_type(address),
                address,
            })
        })
    }

    /// Notes as comments.
    fn comments(&self, mark: &str) -> String {
        self.notes.iter().map(|note| format!("{mark} {note}\n")).collect()
    }
}

/// Type of the record that holds an address.
const fn record_type(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "A",
        IpAddr::V6(_) => "AAAA",
    }
}

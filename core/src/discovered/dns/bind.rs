//! Records in the format of zone files (RFC 1035, section 5), which BIND and most other name servers read.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::{DnsTable, is_in_zone, is_owner_name, record_type};
use crate::wire::hostname::{Hostname, HostnamePattern};

/// Seconds after which a secondary name server looks for a new serial, tries again, and gives up.
const TRANSFER_SECONDS: [u32; 3] = [3600, 600, 1_209_600];

/// Longest time, in seconds, for which resolvers keep that a name does not exist.
const MAX_NEGATIVE_TTL: u32 = 300;

/// Head of a zone: its name servers and its version.
pub struct ZoneHead {
    /// Name servers, of which the first is the primary one; at least one.
    pub servers: Vec<NameServer>,
    /// Serial number of the zone.
    pub serial: u32,
}

/// Name server of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameServer {
    /// Name of the server.
    pub name: Hostname,
    /// Addresses of a server whose name is in the zone.
    pub addresses: Vec<IpAddr>,
}

impl DnsTable {
    /// Whole zone file with a [`ZoneHead`], else records for one.
    ///
    /// # Errors
    ///
    /// A name server is none that the zone can have.
    pub fn bind_text(&self, head: Option<&ZoneHead>) -> Result<String, String> {
        let mut text = self.comments(";");
        let Some(zone) = &self.zone else {
            let absolute = |name: &HostnamePattern| format!("{name}.");
            self.write_records(&mut text, absolute);
            return Ok(text);
        };
        let _ = writeln!(text, "$ORIGIN {zone}.\n$TTL {}", self.ttl);
        match head {
            Some(head) => self.write_head(&mut text, zone, head)?,
            None => {
                text += "; without SOA and NS: for $INCLUDE by the zone's file, or give --name-server for all of it\n";
            }
        }
        self.write_records(&mut text, |name| relative(&name.to_string(), zone));
        Ok(text)
    }

    fn write_records(&self, text: &mut String, written: impl Fn(&HostnamePattern) -> String) {
        for record in self.records() {
            let name = written(record.name);
            let _ = writeln!(text, "{name} {} IN {} {}", self.ttl, record.kind, record.address);
        }
    }

    fn write_head(&self, text: &mut String, zone: &Hostname, head: &ZoneHead) -> Result<(), String> {
        let Some(primary) = head.servers.first() else {
            return Err("a zone needs a name server".to_owned());
        };
        let [refresh, retry, expire] = TRANSFER_SECONDS;
        let negative = self.ttl.min(MAX_NEGATIVE_TTL);
        let _ = writeln!(
            text,
            "@ IN SOA {}. hostmaster.{zone}. {} {refresh} {retry} {expire} {negative}",
            primary.name, head.serial
        );
        for server in &head.servers {
            self.check_server(zone, server)?;
            let _ = writeln!(text, "@ IN NS {}.", server.name);
        }
        for NameServer { name, addresses } in &head.servers {
            for &address in addresses {
                let owner = relative(name.as_str(), zone);
                let _ = writeln!(text, "{owner} IN {} {address}", record_type(address));
            }
        }
        Ok(())
    }

    fn check_server(&self, zone: &Hostname, server: &NameServer) -> Result<(), String> {
        let NameServer { name, addresses } = server;
        let pattern = HostnamePattern::Exact(name.clone());
        if !is_owner_name(&pattern) {
            return Err(format!("{name} is not a valid name of a name server"));
        }
        match (
            is_in_zone(name, zone),
            self.names.contains(&pattern),
            addresses.is_empty(),
        ) {
            (true, false, true) => Err(format!("{name} is in the zone: give its address, {name}=192.0.2.53")),
            (true, true, false) => Err(format!("{name} is routed and has the listeners' addresses: give none")),
            (false, _, false) => Err(format!(
                "{name} is not in {zone}: its own zone has its addresses, so give none"
            )),
            _ => Ok(()),
        }
    }
}

/// Name as it is written in a zone that it is in.
fn relative(name: &str, zone: &Hostname) -> String {
    match name.strip_suffix(zone.as_str()) {
        Some("") => "@".to_owned(),
        Some(rest) => rest.trim_end_matches('.').to_owned(),
        None => format!("{name}."),
    }
}

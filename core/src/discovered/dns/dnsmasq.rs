//! Records in the format of dnsmasq's configuration.

use std::fmt::Write as _;

use super::DnsTable;
use crate::wire::hostname::HostnamePattern;

impl DnsTable {
    /// Lines for a file that `conf-file` or `conf-dir` names. The stars need dnsmasq 2.86 or later.
    #[must_use]
    pub fn dnsmasq_text(&self) -> String {
        let mut text = self.comments("#");
        // Of answers by `address`; those by `host-record` have their own.
        let _ = writeln!(text, "local-ttl={}", self.ttl);
        for name in &self.names {
            for address in &self.addresses {
                let _ = match name {
                    HostnamePattern::Exact(name) => writeln!(text, "host-record={name},{address},{}", self.ttl),
                    HostnamePattern::Wildcard(_) => writeln!(text, "address=/{name}/{address}"),
                };
            }
            // Otherwise a question for the type that has no address goes to another name server.
            if matches!(name, HostnamePattern::Wildcard(_)) {
                let _ = writeln!(text, "local=/{name}/");
            }
        }
        text
    }
}

//! The client: curl, with a configuration that all commands share.

use std::path::PathBuf;

use anyhow::Result;

use super::network::VIP;
use super::site::Site;

/// Writes curl's configuration: every name is at the balancer, and only certificates of the lab are trusted. The
/// balancer's certificate is for the names whose TLS ends there: an answer for another name shows that its TLS was not
/// ended on the way.
pub(super) fn write_config(site: &Site) -> Result<()> {
    let ca = site.path("ca.pem");
    let text = format!(
        "silent\nshow-error\nnoproxy = \"*\"\nconnect-to = \"::{VIP}:\"\ncacert = \"{}\"\n",
        ca.display()
    );
    Ok(std::fs::write(config(site), text)?)
}

/// Path of curl's configuration.
pub(super) fn config(site: &Site) -> PathBuf {
    site.path("curlrc")
}

/// Beginning of the command with which an operator runs curl in the client's namespace.
pub(super) fn curl(site: &Site) -> String {
    format!(
        "ip netns exec {} curl -K {}",
        site.namespace("client"),
        config(site).display()
    )
}

//! Debian packages that a run needs: only those that are missing are installed.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail, ensure};
use signalbox_lab::is_installed;

/// A program or file, the package that brings it, and the service that Debian starts with it.
pub(crate) type Needed = (&'static str, &'static str, Option<&'static str>);

const HAPROXY: Needed = ("haproxy", "haproxy", Some("haproxy.service"));
const IP: Needed = ("ip", "iproute2", None);
const SYSCTL: Needed = ("sysctl", "procps", None);
const SETPRIV: Needed = ("setpriv", "util-linux", None);

/// Packages that a benchmark needs.
pub(crate) const BENCH: [Needed; 6] = [
    // The hosts are nginx; `cargo xtask rivals` installs the contenders.
    ("nginx", "nginx-light", Some("nginx.service")),
    ("h2load", "nghttp2-client", None),
    ("nft", "nftables", None),
    IP,
    SYSCTL,
    SETPRIV,
];
/// Packages that measurements of services' packets need.
pub(crate) const PACKETS: [Needed; 5] = [
    ("nft", "nftables", None),
    ("ethtool", "ethtool", None),
    IP,
    SYSCTL,
    SETPRIV,
];
/// Packages that the lab needs, and its users.
pub(crate) const LAB: [Needed; 4] = [HAPROXY, ("curl", "curl", None), IP, SETPRIV];

/// Installs missing packages, or fails with their names.
pub(crate) fn ensure_installed(needed: &[Needed], may_install: bool) -> Result<()> {
    let missing: Vec<_> = needed.iter().filter(|(what, ..)| !is_installed(what)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(|(_, package, _)| *package).collect();
    if !may_install || !is_installed("apt-get") {
        bail!("missing: {}", names.join(", "));
    }
    let apt = |words: &[&str]| -> Result<()> {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").arg("-qq").args(words);
        ensure!(
            command.stdout(Stdio::null()).status()?.success(),
            "apt-get {} failed",
            words.join(" ")
        );
        Ok(())
    };
    eprintln!("installing {}", names.join(", "));
    apt(&["update"])?;
    apt(&[&["install", "-y", "--no-install-recommends"], names.as_slice()].concat())?;
    // We start our own, in namespaces; a service that came with the package would only use CPU and ports.
    if Path::new("/run/systemd/system").is_dir() {
        for service in missing.iter().filter_map(|(.., service)| *service) {
            let _ = Command::new("systemctl").args(["disable", "--now", service]).output();
        }
    }
    Ok(())
}

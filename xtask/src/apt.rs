//! Debian packages: finds missing ones, and installs those and no others.

use anyhow::Result;

use crate::exec::{Run, find_program, is_root};

/// A package, and equivalent alternatives.
#[derive(Clone, Copy)]
pub(crate) struct AptPackage {
    pub(crate) name: &'static str,
    pub(crate) or: &'static [&'static str],
}

pub(crate) const fn package(name: &'static str) -> AptPackage {
    AptPackage { name, or: &[] }
}

pub(crate) fn is_there() -> bool {
    find_program("apt-get").is_some() && find_program("dpkg-query").is_some()
}

/// Whether packages can be installed without asking anyone for a password.
pub(crate) fn may_install() -> bool {
    is_there() && (is_root() || Run::new("sudo").is_ok_and(|run| run.args(["-n", "true"]).answer().is_some()))
}

pub(crate) fn missing(packages: &[AptPackage]) -> Result<Vec<&'static str>> {
    let mut missing = Vec::new();
    for package in packages {
        let mut installed = false;
        for name in std::iter::once(&package.name).chain(package.or) {
            installed |= is_installed(name)?;
        }
        if !installed {
            missing.push(package.name);
        }
    }
    Ok(missing)
}

/// Installs `names`. Services that Debian starts with a package are stopped again and kept from starting: they would
/// hold ports, and the tests start their own. A service that was there before is not touched.
pub(crate) fn install(names: &[&'static str]) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let apt = || {
        Ok::<_, anyhow::Error>(Run::as_root("env")?.args([
            "DEBIAN_FRONTEND=noninteractive",
            "apt-get",
            "-qq",
            // On a fresh machine unattended upgrades may hold the lock.
            "-o",
            "DPkg::Lock::Timeout=600",
        ]))
    };
    apt()?.args(["update"]).run()?;
    apt()?
        .args(["install", "-y", "--no-install-recommends"])
        .args(names)
        .run()?;
    let systemd = std::path::Path::new("/run/systemd/system").is_dir();
    for name in names.iter().filter(|_| systemd) {
        let service = match *name {
            "haproxy" => "haproxy.service",
            "nginx" | "nginx-light" => "nginx.service",
            "bind9" => "named.service",
            "bird2" => "bird.service",
            "prometheus" => "prometheus.service",
            _ => continue,
        };
        Run::as_root("systemctl")?.args(["mask", "--now", service]).run()?;
    }
    Ok(())
}

fn is_installed(name: &str) -> Result<bool> {
    let status = Run::new("dpkg-query")?.args(["-W", "-f=${Status}", name]).answer();
    Ok(status.is_some_and(|status| status.ends_with(" installed")))
}

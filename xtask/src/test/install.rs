//! Stage `install`: installs the packages and tools that the tests need and that are missing.

use anyhow::{Result, bail};

use crate::{
    apt::{self, AptPackage, package},
    exec::Run,
    lint, suites,
};

/// Debian packages that tests need. The C compiler is for crates with C in them (aws-lc-sys); the rest are peers and
/// probes.
const PACKAGES: [AptPackage; 36] = [
    package("build-essential"),
    package("chromium"),
    package("chromium-driver"),
    package("haproxy"),
    AptPackage {
        name: "nginx-light",
        or: &["nginx", "nginx-core", "nginx-full", "nginx-extras"],
    },
    package("libnginx-mod-stream"),
    package("openssl"),
    package("curl"),
    package("nghttp2-client"),
    package("nghttp2-server"),
    package("python3-grpcio"),
    package("iproute2"),
    package("ethtool"),
    package("procps"),
    package("socat"),
    package("python3"),
    package("ca-certificates"),
    package("bpftool"),
    package("activemq"),
    package("etcd-server"),
    package("bind9"),
    package("bird2"),
    package("keepalived"),
    // The following packages have no service, or one that does not start on installation.
    package("mariadb-server-core"),
    package("mariadb-client-core"),
    package("dnsmasq-base"),
    package("bind9-dnsutils"),
    package("bind9-utils"),
    package("iperf3"),
    package("nftables"),
    package("iptables"),
    package("ipset"),
    package("faketime"),
    // For `lint`: systemd-analyze, promtool, and the tools for installing kubernetes-validate.
    package("systemd"),
    package("prometheus"),
    package("python3-venv"),
];

/// Version of nextest that `.config/nextest.toml` was written for.
const NEXTEST: &str = "0.9.143";

pub(super) fn run() -> Result<()> {
    packages(&PACKAGES)?;
    for component in ["rustfmt", "clippy"] {
        let tool = if component == "rustfmt" { "fmt" } else { "clippy" };
        if Run::cargo([tool, "--version"])?.answer().is_none() {
            Run::new("rustup")?.args(["component", "add", component]).run()?;
        }
    }
    if Run::cargo(["nextest", "--version"])?.answer().is_none() {
        // Without optimisation: nextest is built in half the time, and waits for tests just as well.
        let cargo = Run::cargo(["install", "cargo-nextest", "--version", NEXTEST, "--locked", "--debug"])?;
        cargo.without_env("RUSTFLAGS").without_env("CARGO_TARGET_DIR").run()?;
    }
    lint::install();
    suites::install();
    if Run::new("cc")?.args(["--version"]).answer().is_none() {
        bail!("there is no C compiler; on Debian: apt-get install build-essential");
    }
    Ok(())
}

/// Installs the packages that are missing, or prints the tests that skip without them.
pub(super) fn packages(wanted: &[AptPackage]) -> Result<()> {
    if !apt::is_there() {
        let names: Vec<&str> = wanted.iter().map(|package| package.name).collect();
        println!(
            "not a Debian system; what is needed is, by Debian's names: {}",
            names.join(" ")
        );
        return Ok(());
    }
    let missing = apt::missing(wanted)?;
    if missing.is_empty() {
        println!("all packages are installed");
    } else if apt::may_install() {
        apt::install(&missing)?;
    } else {
        println!("not root and no sudo without a password; tests that need these packages will skip:");
        println!("  apt-get install {}", missing.join(" "));
    }
    Ok(())
}

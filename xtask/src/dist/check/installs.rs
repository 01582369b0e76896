//! Installs, upgrades, removes and purges packages in a separate Debian, where no systemd runs.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};

use super::sandbox::{Sandbox, left_behind};

const CONFIGURATION: &str = "/etc/signalbox/signalbox.yaml";
const ENABLED: &str = "/etc/systemd/system/multi-user.target.wants/signalbox.service";
const PROGRAM: &str = "/usr/bin/signalbox";
/// Pins of a program that outlives the command, on an interface of the sandbox.
const UNWRAP: &str = "ip_pins() { find /sys/fs/bpf/signalbox -type f; }; signalbox unwrap lo >/dev/null; \
                      [ -n \"$(ip_pins)\" ] || { echo nothing is pinned; exit 1; }; ";
/// A systemd that knows of a main process and of another unit that runs, and keeps a log.
const STAND_IN: &str = "#!/bin/sh\necho \"$*\" >>/run/said\ncase \"$*\" in \
    *MainPID*) cat /run/main ;; *USR2*) kill -USR2 \"$(cat /run/main)\" ;; esac\n";
const WITH_STAND_IN: &str = "mkdir -p /run/systemd/system /run/programs; \
    for name in systemctl deb-systemd-invoke; do \
        cp /packages/systemctl /run/programs/$name; chmod 755 /run/programs/$name; \
    done; \
    sh -c 'trap \"echo taken over >>/run/said; echo 1 >/run/main\" USR2; while :; do sleep 0.1; done' & \
    echo $! >/run/main; PATH=/run/programs:$PATH";
const NO_PINS: &str = "; [ -z \"$(ip_pins 2>/dev/null)\" ] || { echo left; ip_pins; exit 1; }";

/// A package of this version and one of the next.
pub(super) struct Versions<'a> {
    pub(super) first: &'a Path,
    pub(super) next: &'a Path,
    pub(super) next_version: &'a str,
}

/// The life of the deb package. `has_systemd`: whether its programs are there; none of them runs as a service manager.
pub(super) fn deb(directory: &Path, versions: &Versions<'_>, has_systemd: bool) -> Result<()> {
    let sandbox = Sandbox::new(directory)?;
    if !has_systemd {
        sandbox.run("dpkg --purge systemd")?;
    }
    let before = sandbox.state()?;
    let (first, next) = (sandbox.take(versions.first)?, sandbox.take(versions.next)?);

    sandbox.run(&format!("dpkg --install {first}"))?;
    must_work(&sandbox)?;
    sandbox.must_have(ENABLED)?;
    sandbox.must_lack(CONFIGURATION)?;
    // Purged before anyone has configured it: nothing is left.
    sandbox.run("dpkg --purge signalbox")?;
    nothing_left(&before, &sandbox)?;

    sandbox.run(&format!("dpkg --install {first}"))?;
    let configuration = configure(&sandbox)?;
    // The administrator's word holds through an upgrade.
    if has_systemd {
        sandbox.run("systemctl disable signalbox")?;
    }
    replaces_the_running_process(&sandbox, &format!("dpkg --install {next}"))?;
    let version = sandbox.run("dpkg-query --show --showformat='${Version}' signalbox")?;
    ensure!(version == versions.next_version, "upgraded to {version}");
    must_work(&sandbox)?;
    must_be_kept(&sandbox, &configuration)?;
    if has_systemd {
        sandbox.must_lack(ENABLED)?;
    } else {
        sandbox.must_have(ENABLED)?;
    }
    let changed = sandbox.run("dpkg --verify signalbox")?;
    ensure!(changed.is_empty(), "dpkg --verify says {changed}");

    sandbox.run(&format!("{UNWRAP}dpkg --remove signalbox{NO_PINS}"))?;
    sandbox.must_lack(PROGRAM)?;
    must_be_kept(&sandbox, &configuration)?;
    sandbox.must_have("/var/lib/signalbox/state")?;

    sandbox.run("dpkg --purge signalbox")?;
    must_be_kept(&sandbox, &configuration)?;
    fs::remove_dir_all(sandbox.path("/etc/signalbox"))?;
    nothing_left(&before, &sandbox)?;
    notices_what_is_left(&before, &sandbox)
}

/// The life of the rpm package, whose scripts run in the same Debian.
pub(super) fn rpm(directory: &Path, versions: &Versions<'_>) -> Result<()> {
    let sandbox = Sandbox::new(directory)?;
    // Of Red Hat's package `filesystem`.
    fs::create_dir_all(sandbox.path("/usr/share/licenses"))?;
    let before = sandbox.state()?;
    sandbox.rpm(&[
        "--install",
        "--nodeps",
        "--nosignature",
        &versions.first.to_string_lossy(),
    ])?;
    must_work(&sandbox)?;
    sandbox.must_have(ENABLED)?;
    sandbox.must_lack(CONFIGURATION)?;
    let configuration = configure(&sandbox)?;
    sandbox.run("systemctl disable signalbox")?;
    sandbox.rpm(&[
        "--upgrade",
        "--nodeps",
        "--nosignature",
        &versions.next.to_string_lossy(),
    ])?;
    let version = sandbox.rpm(&["--query", "--queryformat", "%{VERSION}", "signalbox"])?;
    ensure!(version == versions.next_version, "upgraded to {version}");
    must_work(&sandbox)?;
    must_be_kept(&sandbox, &configuration)?;
    sandbox.must_lack(ENABLED)?;
    let changed = sandbox.rpm(&["--verify", "--nodeps", "signalbox"])?;
    ensure!(changed.is_empty(), "rpm --verify says {changed}");
    sandbox.rpm(&["--erase", "signalbox"])?;
    sandbox.must_lack(PROGRAM)?;
    must_be_kept(&sandbox, &configuration)?;
    // rpm never removes these.
    for left in ["/etc/signalbox", "/var/lib/signalbox"] {
        fs::remove_dir_all(sandbox.path(left))?;
    }
    nothing_left(&before, &sandbox)
}

/// Upgrades while stand-ins exist for systemd and for a process that lets another one take over: it does, and no unit
/// is restarted. Without them, nothing happens.
fn replaces_the_running_process(sandbox: &Sandbox, upgrade: &str) -> Result<()> {
    fs::write(sandbox.path("/packages/systemctl"), STAND_IN)?;
    let log = sandbox.run(&format!("{WITH_STAND_IN} {upgrade} >/dev/null; cat /run/said"))?;
    let has = |word: &str| log.lines().any(|line| line.contains(word));
    ensure!(
        has("taken over") && !has("restart") && !has("stop "),
        "an upgrade beside a running process: {log}"
    );
    Ok(())
}

/// The program runs, its pages are there, and its user owns only the files that it must read.
fn must_work(sandbox: &Sandbox) -> Result<()> {
    for page in ["signalbox", "signalbox-run", "signalbox-ha-run"] {
        sandbox.must_have(&format!("/usr/share/man/man8/{page}.8.gz"))?;
    }
    let said = sandbox.run("stat --format='%a %U:%G' /etc/signalbox; getent passwd signalbox")?;
    ensure!(
        said.starts_with("750 root:signalbox\n"),
        "/etc/signalbox and the user are {said}"
    );
    sandbox.run("signalbox check --config /usr/share/doc/signalbox/examples/signalbox.yaml")?;
    // Exits with 1 or 2 where the machine lacks something, which is not the package's fault.
    let report = sandbox.run("signalbox doctor --output json || [ $? -le 2 ]")?;
    let report: serde_json::Value = serde_json::from_str(&report).context("what `signalbox doctor` says")?;
    let is_empty = report.as_object().is_none_or(serde_json::Map::is_empty);
    ensure!(!is_empty, "`signalbox doctor` says {report}");
    Ok(())
}

/// Does the work of an administrator and a running signalbox.
fn configure(sandbox: &Sandbox) -> Result<String> {
    let example = sandbox.path("/usr/share/doc/signalbox/examples/signalbox.yaml");
    let configuration = format!("# by the administrator\n{}", fs::read_to_string(example)?);
    fs::write(sandbox.path(CONFIGURATION), &configuration)?;
    fs::create_dir_all(sandbox.path("/var/lib/signalbox"))?;
    fs::write(sandbox.path("/var/lib/signalbox/state"), "")?;
    Ok(configuration)
}

fn must_be_kept(sandbox: &Sandbox, configuration: &str) -> Result<()> {
    let now = fs::read_to_string(sandbox.path(CONFIGURATION)).context("the configuration is gone")?;
    ensure!(
        now == configuration,
        "the configuration is not as the administrator has written it: {now}"
    );
    Ok(())
}

fn nothing_left(before: &std::collections::BTreeSet<String>, sandbox: &Sandbox) -> Result<()> {
    let left = left_behind(before, &sandbox.state()?);
    ensure!(left.is_empty(), "the removed package has left {left:?}");
    Ok(())
}

fn notices_what_is_left(before: &std::collections::BTreeSet<String>, sandbox: &Sandbox) -> Result<()> {
    fs::write(sandbox.path("/usr/share/signalbox.left"), "")?;
    if nothing_left(before, sandbox).is_ok() {
        bail!("a file that a removed package has left is not noticed");
    }
    Ok(())
}

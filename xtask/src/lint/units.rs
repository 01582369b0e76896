//! Units of systemd: how exposed they are, whether systemd knows all keys, and that they have the capabilities that the
//! product asks for and no others.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use super::{Lint, broken::Broken, files::CAPABILITIES};
use crate::exec::Run;

const DIRECTORY: &str = "packaging/systemd";
/// Units, and the exposure that `systemd-analyze security` may find at most, in tenths.
const UNITS: [(&str, u8); 2] = [("signalbox.service", 20), ("signalbox-ha.service", 34)];
/// Programs that units start: systemd looks whether they are there.
const PROGRAMS: [&str; 5] = ["signalbox", "chmod", "chown", "install", "kill"];

pub(super) const LINT: Lint = Lint {
    tools: &["systemd-analyze"],
    prepare: || Ok(()),
    check,
    broken: &[
        Broken {
            file: "packaging/systemd/signalbox.service",
            from: "ProtectClock=yes\n",
            to: "",
            says: "signalbox.service: exposure",
        },
        Broken {
            file: "packaging/systemd/signalbox-ha.service",
            from: "SystemCallFilter=@system-service\n",
            to: "",
            says: "signalbox-ha.service: exposure",
        },
        Broken {
            file: "packaging/systemd/signalbox.service",
            from: "KillMode=",
            to: "KillMood=",
            says: "Unknown key",
        },
        Broken {
            file: "packaging/systemd/signalbox-ha.service",
            from: "ExecStart=/usr/bin/signalbox",
            to: "ExecStart=/usr/bin/signalbocks",
            says: "not executable",
        },
        Broken {
            file: "packaging/systemd/signalbox.service",
            from: "AmbientCapabilities=CAP_BPF ",
            to: "AmbientCapabilities=",
            says: "AmbientCapabilities",
        },
        Broken {
            file: CAPABILITIES,
            from: "name: \"CAP_PERFMON\"",
            to: "name: \"CAP_SYS_PTRACE\"",
            says: "CapabilityBoundingSet",
        },
        Broken {
            file: "packaging/systemd/signalbox-ha.service",
            from: "CapabilityBoundingSet=CAP_NET_ADMIN",
            to: "CapabilityBoundingSet=CAP_SYS_ADMIN",
            says: "CAP_SYS_ADMIN",
        },
        Broken {
            file: "packaging/systemd/signalbox-ha.service",
            from: "User=signalbox",
            to: "User=root",
            says: "User=root",
        },
    ],
};

fn check(root: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let table = capabilities(root)?;
    let read = |name: &str| {
        let file = root.join(DIRECTORY).join(name);
        fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))
    };
    let users = read("signalbox.sysusers.conf")?;
    for (unit, exposure) in UNITS {
        let text = read(unit)?;
        let file = root.join(DIRECTORY).join(unit);
        let threshold = format!("--threshold={exposure}");
        let analyse = Run::new("systemd-analyze")?.args(["security", "--no-pager", "--offline=true", &threshold]);
        let (is_fine, said) = analyse.args([&file]).outcome()?;
        if !is_fine {
            let overall = said.lines().find(|line| line.contains("Overall")).unwrap_or(&said);
            problems.push(format!("{unit}: exposure of more than {exposure} tenths: {overall}"));
        }
        let (bounding, ambient) = (
            values(&text, "CapabilityBoundingSet"),
            values(&text, "AmbientCapabilities"),
        );
        if bounding != ambient {
            problems.push(format!(
                "{unit}: AmbientCapabilities={ambient:?}, CapabilityBoundingSet={bounding:?}"
            ));
        }
        if unit == "signalbox.service" && bounding != table {
            problems.push(format!(
                "{unit}: CapabilityBoundingSet={bounding:?}, {CAPABILITIES} has {table:?}"
            ));
        }
        for name in bounding.iter().filter(|name| !table.contains(name)) {
            problems.push(format!("{unit}: {name} is none of {CAPABILITIES}"));
        }
        let user = values(&text, "User").join(" ");
        if !users.lines().any(|line| line.starts_with(&format!("u {user} "))) {
            problems.push(format!("{unit}: User={user} is not made by signalbox.sysusers.conf"));
        }
    }
    problems.extend(verify(root)?);
    Ok(problems)
}

/// Has systemd read the units in a separate root, with the programs that they start. It succeeds even with findings,
/// and prints them.
fn verify(root: &Path) -> Result<Vec<String>> {
    let scratch = crate::root::root()?.join("target/lint/systemd");
    let (programs, units) = (scratch.join("usr/bin"), scratch.join("usr/lib/systemd/system"));
    for directory in [&programs, &units] {
        fs::create_dir_all(directory)?;
    }
    for program in PROGRAMS {
        fs::copy("/bin/true", programs.join(program))?;
    }
    let mut words = vec![
        "verify".to_owned(),
        "--man=no".to_owned(),
        format!("--root={}", scratch.display()),
    ];
    for (unit, _) in UNITS {
        fs::copy(root.join(DIRECTORY).join(unit), units.join(unit))?;
        words.push(unit.to_owned());
    }
    for target in [
        "network-online",
        "network",
        "basic",
        "sysinit",
        "shutdown",
        "multi-user",
    ] {
        fs::write(units.join(format!("{target}.target")), "[Unit]\n")?;
    }
    let (_, said) = Run::new("systemd-analyze")?.args(words).outcome()?;
    Ok(said.lines().map(str::to_owned).collect())
}

/// Capabilities of the product's table, in its order.
pub(super) fn capabilities(root: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(root.join(CAPABILITIES)).with_context(|| format!("reading {CAPABILITIES}"))?;
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("name: \"CAP_"));
    Ok(names
        .filter_map(|rest| Some(format!("CAP_{}", rest.strip_suffix("\",")?)))
        .collect())
}

/// Words of a key of a unit.
pub(super) fn values(unit: &str, key: &str) -> Vec<String> {
    let lines = unit
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.flat_map(str::split_ascii_whitespace).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_another_name_or_in_a_comment_is_none() {
        let unit = "#User=a\nUserX=b\nUser=c d\n[Install]\nUser=e\n";
        assert_eq!(values(unit, "User"), ["c", "d", "e"]);
        assert!(values(unit, "Group").is_empty());
    }
}

//! A Debian whose systemd runs, in virtual machines: packages live there as on an operator's machine, and the
//! tutorial's commands are given unchanged.

mod page;
mod system;

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{
    accel,
    job::Job,
    kernels,
    machine::Machine,
    outcome::{self, Outcome},
};
use crate::{apt, dist, exec::is_root, root::root};

const TUTORIAL: &str = "docs/tutorial.md";
const INSTALLED: &str = "xtask/src/vm/debian/installed.sh";

/// Steps, and the seconds that each may take where the processor is emulated.
const STEPS: [(&str, u32); 2] = [("installed", 2400), ("tutorial", 2400)];

/// Job of the machine, which systemd starts.
const HEAD: &str = "exec >/dev/ttyS0 2>&1 </dev/null
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
cd /root; cp /job/first/*.deb .
echo 1 > /proc/sys/kernel/printk
step() { echo \"@@ begin $1\"; timeout \"$2\" bash \"/job/$1\"; echo \"@@ end $1 $?\"; }
echo \"@@ kernel $(cat /proc/version)\"
";

/// Fails where the machine cannot be made here.
pub(crate) fn can_run() -> Result<()> {
    super::can_run().map_err(anyhow::Error::msg)?;
    let missing = apt::missing(&dist::PACKAGES)?;
    ensure!(
        missing.is_empty(),
        "`cargo xtask test --only install` installs what is missing: {}",
        missing.join(" ")
    );
    ensure!(
        is_root(),
        "the root file system of the machine has files of root; run this as root"
    );
    Ok(())
}

/// Boots the machine with packages of the program `built`; fails if anything fails in it. `only` names steps, or none
/// for all. Returns how many tests passed.
pub(crate) fn run(built: &Path, only: &[String]) -> Result<usize> {
    let root = root()?;
    let [first, next] = dist::debs(built, &root.join("target/machines/packages"))?;
    let kernel = kernels::find(system::KERNEL)?;
    let image = system::make()?;
    let page = fs::read_to_string(root.join(TUTORIAL)).with_context(|| format!("reading {TUTORIAL}"))?;
    let scripts = [
        (
            "installed",
            fs::read_to_string(root.join(INSTALLED)).with_context(|| format!("reading {INSTALLED}"))?,
        ),
        ("tutorial", page::script(&page, "tutorial").context(TUTORIAL)?),
    ];
    let below = super::logs()?.join("scripts");
    fs::create_dir_all(&below)?;
    let name = |deb: &Path| deb.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut files = vec![
        (first.clone(), format!("first/{}", name(&first))),
        (next.clone(), format!("next/{}", name(&next))),
    ];
    for (name, text) in scripts {
        fs::write(below.join(name), text)?;
        files.push((below.join(name), name.to_owned()));
    }
    let accel = accel::choose(&kernel)?;
    // Both at once: a machine is mostly one busy processor.
    let mut machines = Vec::new();
    for (step, limit) in STEPS {
        if only.is_empty() || only.iter().any(|other| other == step) {
            let job = job(step, limit);
            let name = format!("debian-{step}");
            let machine = Machine::boot_with(&kernel, &name, accel, &image, &files, &job)?;
            machines.push((name, job, machine, Instant::now()));
        }
    }
    let (mut failures, mut passed) = (Vec::new(), 0);
    for (name, job, machine, begun) in machines {
        let log = machine.wait(job.limit)?;
        let outcome = Outcome::read_named(&kernel, &name, &job, &log, begun.elapsed());
        let file = super::logs()?.join(format!("{name}.log"));
        fs::write(&file, &log)?;
        println!("{}", outcome.text());
        if !outcome.failures().is_empty() {
            println!("the complete console is in {}", file.display());
            print!("{}", outcome::tail(&log, 120));
        }
        failures.extend(outcome.failures());
        passed += outcome.passed();
    }
    if !failures.is_empty() {
        bail!("{}", failures.join("\n"));
    }
    Ok(passed)
}

fn job(step: &'static str, limit: u32) -> Job {
    Job {
        script: format!("{HEAD}step {step} {limit}\necho '@@ done'\nsystemctl poweroff --force --force\n"),
        limit: Duration::from_secs(u64::from(limit) + 300),
        steps: vec![step],
    }
}

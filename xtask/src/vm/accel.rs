//! Acceleration of machines: the processor's virtualisation, or emulation.

use std::{env, fs, path::Path, time::Duration};

use anyhow::{Result, bail};

use super::{kernels::Kernel, machine, store};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Accel {
    /// Virtualisation by the processor.
    Kvm,
    /// Emulation in software.
    Tcg,
}

/// Chooses by `SIGNALBOX_MACHINE_ACCEL`, or by trying: /dev/kvm may be there and hang.
pub(super) fn choose(kernel: &Kernel) -> Result<Accel> {
    match env::var("SIGNALBOX_MACHINE_ACCEL").ok().as_deref() {
        Some("kvm") => return Ok(Accel::Kvm),
        Some("tcg") => return Ok(Accel::Tcg),
        Some(other) => bail!("SIGNALBOX_MACHINE_ACCEL is {other:?}; kvm and tcg are known"),
        None => {}
    }
    if !Path::new("/dev/kvm").exists() {
        return Ok(Accel::Tcg);
    }
    let known = store::dir("accel")?.join("kvm-hangs");
    if known.exists() {
        return Ok(Accel::Tcg);
    }
    println!("trying /dev/kvm for ten seconds");
    if machine::starts(kernel, Accel::Kvm, Duration::from_secs(10))? {
        return Ok(Accel::Kvm);
    }
    fs::write(known, "remove this file to have /dev/kvm tried again\n")?;
    Ok(Accel::Tcg)
}

//! Finds a toolchain that can compile `core` for BPF: a compiler with nightly features, the sources of the library that
//! belong to that very compiler, and bpf-linker.
//!
//! Two kinds work: rustup's nightly with `rust-src`, and Debian's `rustc-web` with `rust-web-src` (a stable compiler
//! that accepts nightly features because of RUSTC_BOOTSTRAP). Debian's has the advantage that everyone can install the
//! same version again.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};

use super::{install, record::Record};
use crate::exec::{Run, find_program};

pub(super) const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
/// Oldest compiler that supports edition 2024 and the language features of aya-ebpf.
const OLDEST: (u32, u32) = (1, 90);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    RustupNightly,
    Debian,
}

/// A complete toolchain.
pub(super) struct Toolchain {
    pub(super) kind: Kind,
    pub(super) sysroot: PathBuf,
    /// Library of the LLVM that this rustc runs on; bpf-linker must be able to read that LLVM's output.
    pub(super) llvm: Option<PathBuf>,
    pub(super) linker: OsString,
    pub(super) rustc_version: String,
    pub(super) linker_version: String,
}

/// Chooses the toolchain that built the recorded object if it is here, else the first that is complete.
pub(super) fn choose(recorded: Option<&Record>) -> Result<Toolchain> {
    let mut complete = Vec::new();
    let mut lacks = Vec::new();
    for kind in [Kind::RustupNightly, Kind::Debian] {
        match find(kind) {
            Ok(toolchain) => complete.push(toolchain),
            Err(missing) => lacks.push(format!("  {}: {missing}", kind.name())),
        }
    }
    let same = complete
        .iter()
        .position(|toolchain| recorded.is_some_and(|record| record.is_by(toolchain)));
    if complete.is_empty() {
        bail!(
            "no toolchain here can build the eBPF programs.\n{}\n{}",
            lacks.join("\n"),
            install::REMEDY
        );
    }
    Ok(complete.swap_remove(same.unwrap_or(0)))
}

/// Finds a toolchain of a kind; `Err` lists the missing parts, for a human.
pub(super) fn find(kind: Kind) -> Result<Toolchain, String> {
    let mut missing = Vec::new();
    let rustc = rustc(kind);
    let sysroot = rustc.as_ref().map_err(String::clone).and_then(|(sysroot, _)| {
        let library = sysroot.join("lib/rustlib/src/rust/library/core/Cargo.toml");
        if library.is_file() {
            Ok(sysroot)
        } else {
            Err(format!("the library's sources ({})", kind.sources()))
        }
    });
    if let Err(what) = &sysroot {
        missing.push(what.clone());
    }
    let linker = linker();
    if linker.is_none() {
        missing.push("bpf-linker".to_owned());
    }
    match (rustc, linker) {
        (Ok((sysroot, rustc_version)), Some((linker, linker_version))) if missing.is_empty() => Ok(Toolchain {
            kind,
            llvm: llvm_of(&sysroot),
            sysroot,
            linker,
            rustc_version,
            linker_version,
        }),
        _ => Err(format!("missing {}", missing.join(", "))),
    }
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::RustupNightly => "rustup's nightly",
            Self::Debian => "Debian's rustc-web",
        }
    }

    fn sources(self) -> &'static str {
        match self {
            Self::RustupNightly => "component rust-src",
            Self::Debian => "package rust-web-src",
        }
    }
}

/// Sysroot and version of the compiler.
fn rustc(kind: Kind) -> Result<(PathBuf, String), String> {
    let ask = |arg: &[&str]| {
        let run = match kind {
            Kind::RustupNightly => Run::new("rustup").map(|run| run.args(["run", "nightly", "rustc"])),
            Kind::Debian => Run::new(DEBIAN_RUSTC),
        };
        run.ok().and_then(|run| run.args(arg).answer())
    };
    let (Some(verbose), Some(sysroot)) = (ask(&["-vV"]), ask(&["--print", "sysroot"])) else {
        return Err(match kind {
            Kind::RustupNightly => "rustup with a nightly toolchain".to_owned(),
            Kind::Debian => format!("{DEBIAN_RUSTC} (package rustc-web)"),
        });
    };
    let version = version_of(&verbose).ok_or("a rustc that prints its version")?;
    if version.0 < OLDEST {
        let (major, minor) = OLDEST;
        return Err(format!("a rustc of {major}.{minor} or later (this is {})", version.1));
    }
    Ok((PathBuf::from(sysroot.trim()), version.1))
}

/// Parses `rustc -vV`: numbers to compare, and one line to record. The commit in the first line distinguishes
/// nightlies.
fn version_of(verbose: &str) -> Option<((u32, u32), String)> {
    let line = verbose.lines().next()?;
    let mut numbers = line.split_whitespace().nth(1)?.split('.').map(str::parse);
    let version = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    let llvm = verbose.lines().find_map(|line| line.strip_prefix("LLVM version: "))?;
    Some((version, format!("{line}, LLVM {llvm}")))
}

fn linker() -> Option<(OsString, String)> {
    let linker = find_program("bpf-linker")?;
    let version = Run::new(&linker).ok()?.args(["--version"]).answer()?;
    Some((linker, version.lines().next()?.trim().to_owned()))
}

/// Finds rustc's LLVM by the dynamic loader: the library's place and name differ between distributions and releases.
fn llvm_of(sysroot: &Path) -> Option<PathBuf> {
    let libraries = Run::new("ldd").ok()?.args([sysroot.join("bin/rustc")]).answer()?;
    let line = libraries
        .lines()
        .find(|line| line.trim_start().starts_with("libLLVM"))?;
    let path = line.split("=>").nth(1)?.split_whitespace().next()?;
    PathBuf::from(path).canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_compared_as_numbers_and_recorded_as_text() {
        let verbose = "rustc 1.97.0-nightly (e50aa6fba 2026-05-19)\nbinary: rustc\nLLVM version: 22.1.4\n";
        let (numbers, text) = version_of(verbose).unwrap();
        assert_eq!(numbers, (1, 97));
        assert!(numbers > OLDEST && (1, 9) < OLDEST);
        assert_eq!(text, "rustc 1.97.0-nightly (e50aa6fba 2026-05-19), LLVM 22.1.4");
        assert_eq!(version_of("no compiler"), None);
    }
}

//! Compilation of `ebpf/`: equal sources and an equal toolchain give equal bytes, in any directory.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use super::{
    OBJECTS, Objects, strip,
    toolchain::{DEBIAN_RUSTC, Kind, Toolchain},
    wrapper,
};
use crate::exec::{Run, cargo_home};

const TARGET: &str = "bpfel-unknown-none";
/// Separator of flags in CARGO_ENCODED_RUSTFLAGS: paths may hold blanks.
const SEPARATOR: &str = "\x1f";

/// Builds the objects with these features of their crate, and returns their bytes.
pub(super) fn build(toolchain: &Toolchain, root: &Path, features: &[&str]) -> Result<Objects> {
    let target_dir = root.join("target/ebpf");
    let cargo = match toolchain.kind {
        Kind::RustupNightly => Run::new("rustup")?
            .args(["run", "nightly", "cargo"])
            .without_env("RUSTC"),
        Kind::Debian => Run::cargo([])?.env("RUSTC", DEBIAN_RUSTC).env("RUSTC_BOOTSTRAP", "1"),
    };
    forget_our_crates(&target_dir);
    let me = env::current_exe().context("the path of xtask is unknown")?;
    cargo
        .args(["build", "--release", "--locked", "--target", TARGET, "-Z", "build-std=core"])
        .args(["--features", &features.join(",")])
        .dir(&root.join("ebpf"))
        .env("CARGO_TARGET_DIR", &target_dir)
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &toolchain.linker)
        .env("CARGO_ENCODED_RUSTFLAGS", flags(toolchain, root)?.join(SEPARATOR))
        .env("RUSTC_WRAPPER", me)
        .env(wrapper::MARK, llvm_dir(toolchain, &target_dir)?)
        .without_env("RUSTC_WORKSPACE_WRAPPER")
        .run()
        .context("the eBPF programs do not build (`cargo update --manifest-path ebpf/Cargo.toml -p signalbox-common` updates an outdated lock file)")?;
    let private = private_paths(toolchain, root);
    let built = |name: &'static str| {
        let path = target_dir.join(TARGET).join("release").join(name);
        let object = fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
        let object = strip::strip(&object)?;
        if let Some(found) = private_path(&object, &private) {
            bail!(
                "object {name} names a path of this machine, {found}; add it to the remapped ones in \
                 xtask/src/ebpf/compile.rs"
            );
        }
        Ok((name, object))
    };
    OBJECTS.into_iter().map(built).collect()
}

/// Removes build results of our two crates, so that they are compiled each time: cargo goes by time stamps, and a
/// restored or copied tree has old ones. An older build must not pass a check of bytes.
fn forget_our_crates(target_dir: &Path) {
    let fingerprints = target_dir.join(TARGET).join("release/.fingerprint");
    let ours = fs::read_dir(fingerprints).into_iter().flatten().flatten();
    for entry in ours.filter(|entry| entry.file_name().to_string_lossy().starts_with("signalbox-")) {
        // A file that cannot be removed is not there, or fails the build with a better message.
        let _ = fs::remove_dir_all(entry.path());
    }
}

fn flags(toolchain: &Toolchain, root: &Path) -> Result<Vec<String>> {
    let mut flags = vec![
        // aya would put the build machine's architecture here; the programs read no registers, so any value works.
        "--cfg=bpf_target_arch=\"x86_64\"".to_owned(),
        // Copies of a known size become loads and stores: otherwise LLVM calls functions that go byte by byte, which is slow
        // in the kernel, and slow to verify.
        "-Clink-arg=--disable-expand-memcpy-in-order".to_owned(),
        format!("--remap-path-prefix={}=/signalbox", text(root)?),
        format!(
            "--remap-path-prefix={}/lib/rustlib/src/rust=/rust",
            text(&toolchain.sysroot)?
        ),
    ];
    // Debian's sources of the library are a link.
    if let Ok(real) = toolchain.sysroot.join("lib/rustlib/src/rust").canonicalize() {
        flags.push(format!("--remap-path-prefix={}=/rust", text(&real)?));
    }
    if let Some(home) = cargo_home() {
        flags.push(format!("--remap-path-prefix={}=/cargo", text(&home)?));
    }
    Ok(flags)
}

/// Makes a folder with nothing in it but this compiler's LLVM: bpf-linker opens the first library named so that it
/// finds.
fn llvm_dir(toolchain: &Toolchain, target_dir: &Path) -> Result<PathBuf> {
    let dir = target_dir.join("llvm");
    if let Some(llvm) = &toolchain.llvm {
        fs::create_dir_all(&dir).with_context(|| format!("{} cannot be created", dir.display()))?;
        let link = dir.join("libLLVM.so");
        if fs::read_link(&link).ok().as_ref() != Some(llvm) {
            let _ = fs::remove_file(&link);
            symlink(llvm, &link).with_context(|| format!("{} cannot be linked", link.display()))?;
        }
    }
    Ok(dir)
}

fn private_paths(toolchain: &Toolchain, root: &Path) -> Vec<PathBuf> {
    let home = env::var_os("HOME").map(PathBuf::from);
    let sources = toolchain.sysroot.join("lib/rustlib");
    let real = sources.join("src/rust").canonicalize().ok();
    // A home of "/" would find every path.
    let is_specific = |path: &PathBuf| path.components().count() > 1;
    [Some(root.to_owned()), cargo_home(), home, Some(sources), real]
        .into_iter()
        .flatten()
        .filter(is_specific)
        .collect()
}

fn private_path(object: &[u8], paths: &[PathBuf]) -> Option<String> {
    let names = paths
        .iter()
        .filter_map(|path| path.to_str())
        .filter(|name| !name.is_empty());
    names
        .into_iter()
        .find(|name| object.windows(name.len()).any(|at| at == name.as_bytes()))
        .map(str::to_owned)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not UTF-8; move the checkout", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_the_machine_in_the_object_is_found() {
        let paths = [PathBuf::from("/home/someone/signalbox")];
        assert_eq!(private_path(b"\0/signalbox/ebpf/src/main.rs\0", &paths), None);
        let found = private_path(b"\0/home/someone/signalbox/ebpf/src/main.rs\0", &paths);
        assert_eq!(found.as_deref(), Some("/home/someone/signalbox"));
    }
}

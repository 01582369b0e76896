//! Parts of the packages: the program without its debug symbols, the symbols, and the manual pages and completions that
//! the program writes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{notices, release::Release};
use crate::{exec::Run, root::root, vm::store::quietly};

/// Shells, and where Debian has their completions.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "signalbox.bash"),
    ("zsh", "_signalbox"),
    ("fish", "signalbox.fish"),
];

/// Files that were made of a program, below one directory.
#[derive(Clone)]
pub(super) struct Product {
    pub(super) directory: PathBuf,
    /// Identifies the program to debuggers.
    pub(super) build_id: String,
}

impl Product {
    /// Makes the parts from scratch.
    pub(super) fn make(built: &Path, directory: &Path, release: &Release) -> Result<Self> {
        if directory.exists() {
            fs::remove_dir_all(directory)?;
        }
        fs::create_dir_all(directory)?;
        let product = Self {
            directory: directory.to_owned(),
            build_id: build_id(built)?,
        };
        product.strip(built)?;
        let mut keep = Command::new("objcopy");
        keep.args(["--only-keep-debug", "--compress-debug-sections=zlib"]);
        quietly(keep.arg(built).arg(product.symbols()))?;
        let mut man = Command::new(product.program());
        quietly(man.args(["man", "--date", &release.date, "--out"]).arg(product.pages()))?;
        for (shell, file) in SHELLS {
            let script = quietly(Command::new(product.program()).args(["completions", shell]))?;
            fs::write(directory.join(file), script)?;
        }
        Ok(product)
    }

    /// Makes from scratch what images have: the program, and the licences.
    pub(super) fn of_images(built: &Path, directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let product = Self {
            directory: directory.to_owned(),
            build_id: build_id(built)?,
        };
        product.strip(built)?;
        Ok(product)
    }

    fn strip(&self, built: &Path) -> Result<()> {
        let mut strip = Command::new("strip");
        strip.args(["--remove-section=.comment", "-o"]).arg(self.program());
        quietly(strip.arg(built))?;
        Ok(fs::write(self.notices(), notices::of_libraries(&root()?)?)?)
    }

    pub(super) fn program(&self) -> PathBuf {
        self.directory.join("signalbox")
    }

    pub(super) fn symbols(&self) -> PathBuf {
        self.directory.join("signalbox.debug")
    }

    /// Licences of libraries.
    pub(super) fn notices(&self) -> PathBuf {
        self.directory.join("notices")
    }

    pub(super) fn pages(&self) -> PathBuf {
        self.directory.join("man")
    }
}

/// Builds the program, and returns its path.
pub(crate) fn build(profile: &str) -> Result<PathBuf> {
    Run::cargo(["build", "--locked", "-p", "signalbox", "--profile", profile])?.run()?;
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else::<Result<_>, _, _>(|| Ok(root()?.join("target")), |dir| Ok(PathBuf::from(dir)))?;
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(target.join(folder).join("signalbox"))
}

fn build_id(program: &Path) -> Result<String> {
    let notes = quietly(Command::new("readelf").arg("-n").arg(program))?;
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    id.map(str::to_owned)
        .context("the linker has given the program no build id")
}

/// The newest version of glibc that the program asks for.
pub(super) fn glibc(program: &Path) -> Result<String> {
    let symbols = quietly(Command::new("objdump").arg("-T").arg(program))?;
    newest_glibc(&symbols).context("the program needs no version of glibc")
}

fn newest_glibc(symbols: &str) -> Option<String> {
    let versions = symbols.lines().filter_map(|line| {
        let version = line.split_once("GLIBC_")?.1;
        let end = version
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(version.len());
        version.get(..end)
    });
    versions.max_by_key(|version| numbers(version)).map(str::to_owned)
}

/// Numbers of a version, to be compared.
pub(super) fn numbers(version: &str) -> Vec<u32> {
    version.split('.').filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_is_found_by_number() {
        let symbols = "0 DF *UND* 0 (GLIBC_2.4) __stack_chk_fail\n0 DF *UND* 0 (GLIBC_2.34) main\n\
                       0 DF *UND* 0 (GLIBC_2.3.4) x\n0 DF *UND* 0 (GCC_3.0) y\n";
        assert_eq!(newest_glibc(symbols).as_deref(), Some("2.34"));
        assert_eq!(newest_glibc("0 DF *UND* 0 (GCC_3.0) y\n"), None);
    }
}

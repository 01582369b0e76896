//! Parts of this machine's Debian that an image needs: shared libraries, and the records of their packages.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::vm::store::quietly;

/// A package of Debian that has a file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::dist) struct DebianPackage {
    pub(in crate::dist) name: String,
    /// Fields that dpkg knows, as in its file `status`.
    pub(in crate::dist) record: String,
}

impl DebianPackage {
    fn named(name: &str) -> Result<Self> {
        let record = quietly(Command::new("dpkg-query").args(["--status", name]))?;
        let plain = name.split(':').next().unwrap_or(name);
        Ok(Self {
            name: plain.to_owned(),
            record,
        })
    }

    /// Package that a file is from. Debian has moved `/lib` and `/bin` below `/usr`; some packages still name the old
    /// place.
    fn of_file(file: &Path) -> Result<Self> {
        let text = file.to_string_lossy();
        let text = text.strip_prefix("/usr").unwrap_or(&text);
        for place in [text.to_owned(), format!("/usr{text}")] {
            let found = Command::new("dpkg-query").args(["--search", &place]).output()?;
            let said = String::from_utf8_lossy(&found.stdout);
            let line = said.lines().find(|line| !line.starts_with("diversion "));
            if let Some((names, _)) = line.and_then(|line| line.rsplit_once(": ")) {
                return Self::named(names.split(", ").next().unwrap_or(names));
            }
        }
        bail!("no package of Debian has {text}: images are made on Debian, of its packages")
    }

    pub(super) fn copyright(&self) -> Result<Vec<u8>> {
        let file = format!("/usr/share/doc/{}/copyright", self.name);
        fs::read(&file).with_context(|| format!("reading {file}"))
    }

    /// The value of a field of its record.
    pub(in crate::dist) fn field(&self, key: &str) -> Option<&str> {
        let value = |line: &'_ str| Some(line.strip_prefix(key)?.strip_prefix(": ")?.len());
        let line = self.record.lines().find(|line| value(line).is_some())?;
        line.get(key.len() + 2..)
    }
}

/// Shared libraries that a program is linked with, and the loader, by their paths in a root where `/lib` is below
/// `/usr`.
pub(super) fn libraries(program: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let said = Command::new("ldd").arg(program).output()?;
    if String::from_utf8_lossy(&said.stderr).contains("not a dynamic executable") {
        return Ok(BTreeMap::new());
    }
    let said = String::from_utf8_lossy(&said.stdout);
    let paths = paths_of(&said).with_context(|| format!("libraries of {}", program.display()))?;
    Ok(paths.into_iter().map(|path| (merged(path), path.into())).collect())
}

/// Path of a file below `usr`, without the slash.
fn merged(path: &str) -> String {
    let path = path.trim_start_matches('/');
    if path.starts_with("usr/") {
        path.to_owned()
    } else {
        format!("usr/{path}")
    }
}

fn paths_of(said: &str) -> Result<Vec<&str>> {
    let mut paths = Vec::new();
    for line in said
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with("linux-vdso"))
    {
        let place = line.split_once(" => ").map_or(line, |(_, place)| place);
        match place.split_once(" (0x") {
            Some((path, _)) if path.starts_with('/') => paths.push(path),
            _ => bail!("ldd says `{line}`"),
        }
    }
    Ok(paths)
}

/// Packages that files are from, each once.
pub(super) fn packages_of(files: &[PathBuf]) -> Result<BTreeSet<DebianPackage>> {
    files.iter().map(|file| DebianPackage::of_file(file)).collect()
}

/// Authorities that Mozilla trusts, as Debian's package has them, without those that an administrator has added to this
/// machine.
pub(super) fn authorities() -> Result<(DebianPackage, Vec<u8>)> {
    let package = DebianPackage::named("ca-certificates")?;
    let files = quietly(Command::new("dpkg-query").args(["--listfiles", "ca-certificates"]))?;
    let certificates: BTreeSet<&str> = files.lines().filter(|file| file.ends_with(".crt")).collect();
    if certificates.is_empty() {
        bail!("Debian's ca-certificates has no certificates");
    }
    let mut bundle = Vec::new();
    for file in certificates {
        let text = fs::read(file).with_context(|| format!("reading {file}"))?;
        bundle.extend_from_slice(text.trim_ascii_end());
        bundle.push(b'\n');
    }
    Ok((package, bundle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_ldd() {
        let said = "\tlinux-vdso.so.1 (0x00007efd)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007efd)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007efd)\n";
        let paths = paths_of(said).unwrap();
        assert_eq!(
            paths,
            ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"]
        );
        assert!(paths_of("\tlibx.so.1 => not found\n").is_err());
        assert_eq!(merged("/lib64/ld.so"), "usr/lib64/ld.so");
        assert_eq!(merged("/usr/lib/a.so"), "usr/lib/a.so");
    }

    #[test]
    fn fields_of_a_record_are_found_by_their_whole_name() {
        let package = DebianPackage {
            name: "x".to_owned(),
            record: "Package: x\nSource-Version: 2\nVersion: 1:1.2-3\n".to_owned(),
        };
        assert_eq!(package.field("Version"), Some("1:1.2-3"));
        assert_eq!(package.field("Homepage"), None);
    }
}

//! `SHA256SUMS` of all artefacts, in the format of `sha256sum --check`.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

/// Writes the file beside the artefacts, and returns its path. Directories, of manual pages, are left out.
pub(super) fn write(out: &Path, made: &[PathBuf]) -> Result<PathBuf> {
    let mut sums = BTreeMap::new();
    for file in made.iter().filter(|file| file.is_file()) {
        let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        sums.insert(file.strip_prefix(out).unwrap_or(file), hex(&bytes));
    }
    let mut text = String::new();
    for (file, sum) in sums {
        writeln!(text, "{sum}  {}", file.display())?;
    }
    let path = out.join("SHA256SUMS");
    fs::write(&path, text)?;
    Ok(path)
}

/// SHA-256 in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sha256sum_accepts_what_is_written() {
        let directory = std::env::temp_dir().join(format!("signalbox-checksums-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let files = ["b", "a"].map(|name| directory.join(name));
        files.iter().for_each(|file| fs::write(file, "x").unwrap());
        write(&directory, &files).unwrap();
        let check = || {
            let mut sum = std::process::Command::new("sha256sum");
            sum.args(["--check", "--strict", "SHA256SUMS"]).current_dir(&directory);
            sum.output().unwrap().status.success()
        };
        assert!(check());
        fs::write(&files[0], "y").unwrap();
        assert!(!check());
        fs::remove_dir_all(directory).unwrap();
    }
}

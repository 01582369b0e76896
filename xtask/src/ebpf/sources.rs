//! Hash over everything the eBPF object is made from.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// Sources of the objects, files and folders.
const SOURCES: [&str; 6] = [
    "common/Cargo.toml",
    "common/src",
    "ebpf/Cargo.lock",
    "ebpf/Cargo.toml",
    "ebpf/build.rs",
    "ebpf/src",
];

/// Hashes the sources below `root`: their names and bytes, not where `root` is or when a file was touched.
pub(super) fn hash(root: &Path) -> Result<String> {
    let mut files = Vec::new();
    for source in SOURCES {
        collect(&root.join(source), &mut files)?;
    }
    let mut named = Vec::with_capacity(files.len());
    for file in files {
        let name = file.strip_prefix(root).context("a source outside the checkout")?;
        named.push((name.to_string_lossy().into_owned(), file));
    }
    named.sort();
    let mut hash = Sha256::new();
    for (name, file) in named {
        let bytes = fs::read(&file).with_context(|| format!("{} cannot be read", file.display()))?;
        // Lengths first: no two different sets of files give the same stream.
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(&name);
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(&bytes);
    }
    Ok(format!("{:x}", hash.finalize()))
}

/// Whether the compiler can see a file: an editor's backup beside a source must not change the hash.
fn is_source(path: &Path) -> bool {
    path.extension()
        .is_some_and(|ext| ext == "rs" || ext == "toml" || ext == "lock")
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path).with_context(|| format!("{} cannot be listed", path.display()))? {
            collect(&entry?.path(), files)?;
        }
    } else if !path.exists() {
        anyhow::bail!(
            "{} is missing; it is checked in: `git checkout -- {0}` brings it back",
            path.display()
        );
    } else if is_source(path) {
        files.push(path.to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("xtask-sources-{}-{name}", std::process::id()));
        for file in [
            "common/Cargo.toml",
            "common/src/lib.rs",
            "ebpf/Cargo.lock",
            "ebpf/Cargo.toml",
            "ebpf/build.rs",
            "ebpf/src/steering.rs",
        ] {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        root
    }

    #[test]
    fn the_hash_follows_contents_and_names_and_not_the_place() {
        let (a, b) = (tree("a"), tree("b"));
        let first = hash(&a).unwrap();
        assert_eq!(first, hash(&b).unwrap());
        fs::write(b.join("ebpf/src/steering.rs~"), "backup").unwrap();
        assert_eq!(first, hash(&b).unwrap(), "an editor's backup is no source");
        fs::rename(b.join("ebpf/src/steering.rs"), b.join("ebpf/src/other.rs")).unwrap();
        assert_ne!(first, hash(&b).unwrap(), "a renamed file");
        fs::write(a.join("common/src/lib.rs"), "changed").unwrap();
        assert_ne!(first, hash(&a).unwrap(), "a changed file");
        fs::remove_file(a.join("ebpf/Cargo.lock")).unwrap();
        assert!(hash(&a).unwrap_err().to_string().contains("Cargo.lock is missing"));
        fs::remove_dir_all(a).unwrap();
        fs::remove_dir_all(b).unwrap();
    }
}

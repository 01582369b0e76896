//! Proof that a lint can fail: copies of the files, each broken in one place.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};

use super::{Lint, files};

/// A file with one place of it replaced, and part of the message that the lint must print then.
pub(super) struct Broken {
    pub(super) file: &'static str,
    pub(super) from: &'static str,
    pub(super) to: &'static str,
    pub(super) says: &'static str,
}

/// Fails unless the lint notices each of its broken files.
pub(super) fn notices_all(root: &Path, name: &str, lint: &Lint) -> Result<()> {
    let copy = root.join("target/lint").join(name);
    if copy.exists() {
        fs::remove_dir_all(&copy).with_context(|| format!("removing {}", copy.display()))?;
    }
    copy_directory(&root.join("packaging"), &copy.join("packaging"))?;
    for file in files::ALL {
        copy_file(&root.join(file), &copy.join(file))?;
    }
    for broken in lint.broken {
        let file = copy.join(broken.file);
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        if !text.contains(broken.from) {
            bail!("lint {name}: {} has no `{}` to be broken", broken.file, broken.from);
        }
        fs::write(&file, text.replacen(broken.from, broken.to, 1))?;
        let said = (lint.check)(&copy)?;
        fs::write(&file, text)?;
        if !said.iter().any(|problem| problem.contains(broken.says)) {
            bail!(
                "lint {name} does not say `{}` where {} has `{}` instead of `{}`; it says {said:?}",
                broken.says,
                broken.file,
                broken.to,
                broken.from
            );
        }
    }
    Ok(())
}

fn copy_directory(from: &Path, to: &Path) -> Result<()> {
    let entries = fs::read_dir(from).with_context(|| format!("reading {}", from.display()))?;
    for entry in entries {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_directory(&entry.path(), &to)?;
        } else {
            copy_file(&entry.path(), &to)?;
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> Result<()> {
    if let Some(directory) = to.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    Ok(())
}

//! Images of single programs of Debian, for tests.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::{
    debian, file_name,
    layer::{self, ImageFiles},
    layout::{Labels, Layout},
};
use crate::{
    dist::{Effort, release::Release},
    root::root,
};

/// Makes an image of a program and the libraries that it is linked with, which is called with `args`.
pub(crate) fn of_program_at(name: &str, program: &Path, path: &str, args: &[&str], out: &Path) -> Result<PathBuf> {
    let release = Release::of_checkout(&root()?)?;
    let mut files = ImageFiles::default();
    let read = |file: &Path| fs::read(file).with_context(|| format!("reading {}", file.display()));
    files.file(path.trim_start_matches('/'), 0o755, read(program)?);
    for link in ["lib", "lib64"] {
        files.directory(&format!("usr/{link}"), 0o755, 0);
        files.link(link, &format!("usr/{link}"));
    }
    for (library, from) in debian::libraries(program)? {
        files.file(&library, 0o755, read(&from)?);
    }
    let entrypoint: Vec<&str> = std::iter::once(path).chain(args.iter().copied()).collect();
    let labels = Labels {
        name,
        title: "a program of Debian, for tests",
        release: &release,
        entrypoint: &entrypoint,
        user: 0,
    };
    let layer = layer::tar(&files, release.epoch)?;
    let archive = out.join(file_name(name, &release.version));
    let layout = Layout::new(&labels, &[&layer], Effort::Quick.of_gzip())?;
    fs::write(&archive, layout.archive(release.epoch)?)?;
    Ok(archive)
}

//! Images of a cluster, which has no registry: nodes import archives.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{dist, kube, lint::k8s, root::root, vm};

/// Writes archives `NAME.tar`, each with the image's name in `NAME.name`.
pub(super) fn make(dir: &Path, program: Option<PathBuf>) -> Result<()> {
    fs::create_dir_all(dir)?;
    let program = match program {
        Some(program) => program
            .canonicalize()
            .with_context(|| format!("{}", program.display()))?,
        None => vm::build::build_product(&root()?)?,
    };
    for (name, archive) in dist::image::of_program(&program, dir)? {
        put(dir, name, &archive, &k8s::image(name))?;
    }
    let busybox = kube::programs()?.join("node/bin/busybox");
    let haproxy = ["/usr/sbin/haproxy", "/usr/local/sbin/haproxy"].map(PathBuf::from);
    let haproxy = haproxy.into_iter().find(|path| path.is_file());
    let haproxy = haproxy.context("no haproxy here: `cargo xtask test --only install` installs it")?;
    for (name, program, path, args) in [
        ("pause", busybox, "/bin/busybox", &["sleep", "2147483647"][..]),
        (
            "router",
            haproxy,
            "/usr/sbin/haproxy",
            &["-W", "-db", "-f", "/etc/haproxy/haproxy.cfg"],
        ),
    ] {
        let archive = dist::image::of_program_at(name, &program, path, args, dir)?;
        put(dir, name, &archive, &format!("lab.test/{name}:1"))?;
    }
    Ok(())
}

fn put(dir: &Path, name: &str, archive: &Path, full_name: &str) -> Result<()> {
    fs::rename(archive, dir.join(format!("{name}.tar")))?;
    fs::write(dir.join(format!("{name}.name")), full_name)?;
    Ok(())
}

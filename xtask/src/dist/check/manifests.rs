//! Manifests of Kubernetes in a package: overlays name other directories by relative paths, and must find them there.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};

use crate::{lint, vm::store::quietly};

/// Builds each overlay in the files of a package and in the checkout; both must be the same.
pub(super) fn check(root: &Path, staged: &Path) -> Result<()> {
    let kustomize = lint::kustomize()?;
    let build = |overlays: &Path, name: &str| {
        let directory = overlays.join(name);
        quietly(Command::new(&kustomize).arg("build").arg(&directory))
            .with_context(|| format!("building {}", directory.display()))
    };
    for overlay in lint::OVERLAYS {
        let ours = build(&root.join("packaging/k8s/overlays"), overlay)?;
        let packaged = build(&staged.join("usr/share/signalbox/k8s/overlays"), overlay)?;
        ensure!(
            !ours.is_empty() && ours == packaged,
            "the packaged overlay {overlay} builds something else"
        );
    }
    Ok(())
}

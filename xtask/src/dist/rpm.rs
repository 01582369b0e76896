//! Packages for Red Hat's distributions: the program, and apart from it its debug symbols.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{
    Format, Packing,
    release::architectures,
    tree::{self, PackagedFile},
};
use crate::vm::store::quietly;

/// Directories that go with the package if nothing else is in them.
const OWN: [&str; 27] = [
    LICENCES,
    // Not every distribution has the shells that these are for.
    "usr/share/fish",
    "usr/share/fish/vendor_completions.d",
    "usr/share/zsh/site-functions",
    "usr/share/signalbox",
    "usr/share/signalbox/grafana",
    "usr/share/signalbox/prometheus",
    "usr/share/signalbox/k8s",
    "usr/share/signalbox/k8s/base",
    "usr/share/signalbox/k8s/components",
    "usr/share/signalbox/k8s/components/ha",
    "usr/share/signalbox/k8s/components/monitoring",
    "usr/share/signalbox/k8s/components/openshift",
    "usr/share/signalbox/k8s/components/routers",
    "usr/share/signalbox/k8s/monitoring",
    "usr/share/signalbox/k8s/overlays",
    "usr/share/signalbox/k8s/overlays/agent",
    "usr/share/signalbox/k8s/overlays/certificates",
    "usr/share/signalbox/k8s/overlays/openshift",
    "usr/share/signalbox/k8s/overlays/openshift-agent",
    "usr/share/signalbox/k8s/overlays/openshift-ha",
    "usr/share/signalbox/k8s/overlays/plain",
    "usr/share/signalbox/k8s/overlays/plain-ha",
    "usr/share/signalbox/k8s/rbac",
    "usr/lib/signalbox",
    "usr/share/doc/signalbox",
    "usr/share/doc/signalbox/examples",
];
const LICENCES: &str = "usr/share/licenses/signalbox";

pub(super) fn pack(packing: &Packing<'_>) -> Result<Vec<PathBuf>> {
    let release = packing.release;
    let main = tree::main_files(packing.root, packing.product, release, Format::Rpm)?;
    let debug = tree::debug_files(packing.product)?;
    let (scratch, lists) = (packing.scratch.join("rpm"), packing.scratch.join("rpm-lists"));
    let staged = scratch.join("staged");
    let mut all: Vec<PackagedFile> = Vec::new();
    let (main_list, debug_list) = (list(&main, &OWN), list(&debug, &[]));
    all.extend(main);
    all.extend(debug);
    tree::stage(&all, &staged, release)?;
    fs::create_dir_all(&lists)?;
    fs::write(lists.join("main"), main_list)?;
    fs::write(lists.join("debug"), debug_list)?;
    let spec = packing.root.join("packaging/rpm/signalbox.spec");
    let top = scratch.join("top");
    if top.exists() {
        fs::remove_dir_all(&top)?;
    }
    let mut build = Command::new("rpmbuild");
    build
        .env("SOURCE_DATE_EPOCH", release.epoch.to_string())
        .env("TZ", "UTC");
    for (name, value) in [
        ("_topdir", path(&top)),
        ("_rpmdir", path(&top.join("packages"))),
        ("staged", path(&staged)),
        ("lists", path(&lists)),
        ("version_string", release.version.clone()),
        ("homepage", release.homepage.clone()),
        ("payload", packing.effort.of_rpm().to_owned()),
    ] {
        build.args(["--define", &format!("{name} {value}")]);
    }
    quietly(build.arg("-bb").arg("--buildroot").arg(top.join("root")).arg(spec))?;
    let (_, architecture) = architectures()?;
    let names = ["signalbox", "signalbox-debuginfo"];
    names
        .iter()
        .map(|name| {
            let file = format!("{name}-{}-1.{architecture}.rpm", release.version);
            let (from, to) = (
                top.join("packages").join(architecture).join(&file),
                packing.out.join(&file),
            );
            fs::copy(&from, &to).with_context(|| format!("rpmbuild has not made {}", from.display()))?;
            Ok(to)
        })
        .collect()
}

/// Lines of `%files`.
fn list(files: &[PackagedFile], own: &[&str]) -> String {
    let mut lines: Vec<String> = own.iter().map(|directory| format!("%dir /{directory}")).collect();
    for PackagedFile { path, .. } in files {
        let kind = if path.starts_with(LICENCES) { "%license " } else { "" };
        lines.push(format!("{kind}/{path}"));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

//! Rules for dependencies between the crates of the checkout: `common <- ebpf`, `common <- core <- userspace <- bench`.
//! Tests of userspace use the lab of bench, which depends on none of them.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::exec::Run;

/// A crate, and the crates of this checkout that it may depend on.
const ALLOWED: [(&str, &[&str]); 18] = [
    ("signalbox-common", &[]),
    ("signalbox-core", &["signalbox-common"]),
    ("signalbox-ebpf", &["signalbox-common"]),
    ("signalbox-api", &["signalbox-core"]),
    ("signalbox-config", &["signalbox-common", "signalbox-core"]),
    ("signalbox-sys", &[]),
    (
        "signalbox-kernel",
        &["signalbox-common", "signalbox-core", "signalbox-sys"],
    ),
    (
        "signalbox-sources",
        &[
            "signalbox-common",
            "signalbox-core",
            "signalbox-api",
            "signalbox-sys",
            "signalbox-tls",
        ],
    ),
    (
        "signalbox-compat",
        &["signalbox-core", "signalbox-api", "signalbox-sys", "signalbox-sources"],
    ),
    (
        "signalbox-ha",
        &[
            "signalbox-core",
            "signalbox-api",
            "signalbox-config",
            "signalbox-sys",
            "signalbox-sources",
        ],
    ),
    ("signalbox-tls", &["signalbox-core"]),
    (
        "signalbox-cli",
        &[
            "signalbox-common",
            "signalbox-core",
            "signalbox-api",
            "signalbox-config",
            "signalbox-ha",
            "signalbox-sys",
            "signalbox-kernel",
            "signalbox-sources",
        ],
    ),
    (
        "signalbox",
        &[
            "signalbox-common",
            "signalbox-core",
            "signalbox-api",
            "signalbox-cli",
            "signalbox-compat",
            "signalbox-config",
            "signalbox-sys",
            "signalbox-kernel",
            "signalbox-sources",
            "signalbox-tls",
        ],
    ),
    ("signalbox-lab", &["signalbox-lab-attribute"]),
    ("signalbox-lab-attribute", &[]),
    (
        "signalbox-bench",
        &["signalbox-common", "signalbox-core", "signalbox", "signalbox-lab"],
    ),
    (
        "signalbox-fuzz",
        &["signalbox-common", "signalbox-core", "signalbox-config"],
    ),
    ("xtask", &[]),
];

/// Crates of this checkout that are only for tests of another one, and that other one.
const FOR_TESTS: [(&str, &str); 3] = [
    ("signalbox-lab", "signalbox"),
    ("signalbox-lab", "signalbox-ha"),
    ("signalbox-config", "signalbox-sources"),
];

/// Crates that the core may not use, since it is pure: no runtime, no kernel, no API server.
const NOT_IN_CORE: [&str; 4] = ["tokio", "aya", "nix", "rustls"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<CargoPackage>,
}

#[derive(Deserialize)]
pub(super) struct CargoPackage {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `dev` for a dependency of tests alone.
    kind: Option<String>,
    /// Path of the dependency, if it is a crate of this checkout.
    path: Option<String>,
    #[serde(default)]
    features: Vec<String>,
}

/// Reads the manifests as cargo understands them, those outside the workspace, too.
pub(super) fn read(root: &Path) -> Result<Vec<CargoPackage>> {
    let mut packages = Vec::new();
    for manifest in ["Cargo.toml", "ebpf/Cargo.toml", "fuzz/Cargo.toml"] {
        if !root.join(manifest).exists() {
            continue;
        }
        let cargo = Run::cargo([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--manifest-path",
            manifest,
        ])?;
        let answer = cargo.answer().with_context(|| {
            format!("{manifest} cannot be understood; `cargo metadata --no-deps --manifest-path {manifest}` says why")
        })?;
        packages.extend(serde_json::from_str::<Metadata>(&answer)?.packages);
    }
    Ok(packages)
}

pub(super) fn check(packages: &[CargoPackage]) -> Vec<String> {
    let mut faults = Vec::new();
    for CargoPackage { name, dependencies } in packages {
        let Some((_, allowed)) = ALLOWED.iter().find(|(package, _)| package == name) else {
            faults.push(format!(
                "{name} is not in the table of xtask/src/deps/edges.rs; say there what it may depend on"
            ));
            continue;
        };
        for dependency in dependencies {
            let edge = format!("{name} -> {}", dependency.name);
            let for_tests = dependency.kind.as_deref() == Some("dev")
                && FOR_TESTS.contains(&(dependency.name.as_str(), name.as_str()));
            if dependency.path.is_some() && !allowed.contains(&dependency.name.as_str()) && !for_tests {
                faults.push(format!("{edge}: not an allowed edge (allowed: {})", list(allowed)));
            }
            if name == "signalbox-core" && NOT_IN_CORE.contains(&dependency.name.as_str()) {
                faults.push(format!(
                    "{edge}: the core is pure; code that needs it belongs in userspace"
                ));
            }
            if name == "signalbox-core" && dependency.features.iter().any(|feature| feature == "user") {
                faults.push(format!("{edge}: feature `user` brings aya into the core"));
            }
        }
    }
    faults
}

fn list(names: &[&str]) -> String {
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(json: &str) -> Vec<String> {
        check(&serde_json::from_str::<Metadata>(json).unwrap().packages)
    }

    #[test]
    fn allowed_edges_and_other_peoples_crates_pass() {
        let json = r#"{"packages":[
            {"name":"signalbox","dependencies":[{"name":"signalbox-core","path":"/x"},{"name":"tokio","path":null}]},
            {"name":"signalbox-core","dependencies":[{"name":"signalbox-common","path":"/x","features":[]}]}]}"#;
        assert_eq!(faults(json), Vec::<String>::new());
    }

    #[test]
    fn the_offending_edge_is_named() {
        let back = r#"{"packages":[{"name":"signalbox-core","dependencies":[{"name":"signalbox","path":"/x"}]}]}"#;
        assert!(faults(back)[0].starts_with("signalbox-core -> signalbox: not an allowed edge"));
        let lab =
            r#"{"packages":[{"name":"signalbox","dependencies":[{"name":"signalbox-lab","path":"/x","kind":"dev"}]}]}"#;
        assert_eq!(faults(lab), Vec::<String>::new());
        assert!(faults(&lab.replace("\"dev\"", "null"))[0].starts_with("signalbox -> signalbox-lab: not an allowed"));
        let xtask = r#"{"packages":[{"name":"xtask","dependencies":[{"name":"signalbox-common","path":"/x"}]}]}"#;
        assert!(faults(xtask)[0].contains("xtask -> signalbox-common"));
    }

    #[test]
    fn the_core_stays_pure_and_a_new_crate_has_to_be_placed() {
        let tokio = r#"{"packages":[{"name":"signalbox-core","dependencies":[{"name":"tokio","path":null}]}]}"#;
        assert!(faults(tokio)[0].contains("pure"));
        assert!(faults(&tokio.replace("tokio", "nix"))[0].contains("pure"));
        let user = r#"{"packages":[{"name":"signalbox-core","dependencies":
            [{"name":"signalbox-common","path":"/x","features":["user"]}]}]}"#;
        assert!(faults(user)[0].contains("feature `user`"));
        assert!(faults(r#"{"packages":[{"name":"new","dependencies":[]}]}"#)[0].contains("not in the table"));
    }
}

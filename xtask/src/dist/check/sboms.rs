//! Bills of materials: each crate of the program is in them, with the fields that readers look for, and each crate
//! whose source the program's debug information names.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{dist::image, exec::Run};

/// Checks the bill of each artefact of the program `built`.
pub(super) fn check(root: &Path, built: &Path, artefacts: &[PathBuf], bills: &[PathBuf]) -> Result<()> {
    let (listed, compiled) = (listed(root)?, compiled(&fs::read(built)?));
    ensure!(
        compiled.len() > 100,
        "the debug information of {} names {} crates",
        built.display(),
        compiled.len()
    );
    ensure!(
        bills.len() == artefacts.len() + 1,
        "{} bills of {} artefacts and the program",
        bills.len(),
        artefacts.len()
    );
    for bill in bills {
        let text = fs::read_to_string(bill).with_context(|| format!("reading {}", bill.display()))?;
        let found = crates(&serde_json::from_str(&text)?).with_context(|| bill.display().to_string())?;
        let missing: Vec<&String> = compiled.difference(&found).chain(listed.difference(&found)).collect();
        ensure!(
            missing.is_empty(),
            "{} lacks crates of the program: {missing:?}",
            bill.display()
        );
        ensure!(
            found == listed,
            "{} has {} crates, `cargo tree` {}",
            bill.display(),
            found.len(),
            listed.len()
        );
        let of_debian = text.contains("\"pkg:deb/debian/libc6@");
        ensure!(
            of_debian == image::is_image(&bill.with_extension("").with_extension("")),
            "{}: Debian's libc6",
            bill.display()
        );
    }
    Ok(())
}

/// Crates of a bill as NAME-VERSION, each of which must have a URL and a licence.
fn crates(bill: &Value) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let components = bill["components"].as_array().context("no components")?;
    for component in components.iter().chain([&bill["metadata"]["component"]]) {
        let purl = component["purl"].as_str().context("a component without a URL")?;
        let Some(rest) = purl.strip_prefix("pkg:cargo/") else {
            continue;
        };
        let (name, version) = rest.split_once('@').with_context(|| format!("{purl} has no version"))?;
        let version = version.split('?').next().unwrap_or(version).replace("%2B", "+");
        ensure!(component["name"] == name, "{purl} is called {}", component["name"]);
        let licence = component["licenses"][0]["expression"].as_str().unwrap_or_default();
        ensure!(!licence.is_empty(), "{purl} has no licence");
        ensure!(found.insert(format!("{name}-{version}")), "{purl} comes twice");
    }
    Ok(found)
}

/// Crates that cargo links into program and eBPF objects.
fn listed(root: &Path) -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for (manifest, package) in [("Cargo.toml", "signalbox"), ("ebpf/Cargo.toml", "signalbox-ebpf")] {
        let tree = Run::cargo(["tree", "--locked", "--manifest-path", manifest, "-p", package])?.dir(root);
        let tree = tree.args(["-e", "normal", "--prefix", "none", "--no-dedupe", "-f", "{p}"]);
        let said = tree.answer().context("`cargo tree` fails")?;
        all.extend(said.lines().filter_map(|line| {
            let (name, rest) = line.split_once(" v")?;
            Some(format!("{name}-{}", rest.split_whitespace().next()?))
        }));
    }
    Ok(all)
}

/// Crates of the registry whose sources debug information names, as NAME-VERSION.
fn compiled(program: &[u8]) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(program);
    let sources = text.split("/registry/src/").skip(1);
    sources
        .filter_map(|rest| rest.split('/').nth(1))
        .filter(|name| name.len() < 80 && name.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.+".contains(&c)))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_found_in_debug_information_and_in_bills() {
        let program =
            b"\0/home/x/.cargo/registry/src/index-1/a-b-1.0.0/src/lib.rs\0/registry/src/index-1/c-2.0.0+x/y\0";
        let found: Vec<String> = compiled(program).into_iter().collect();
        assert_eq!(found, ["a-b-1.0.0", "c-2.0.0+x"]);
        let component = |name: &str, licence: &str| {
            serde_json::json!({
                "name": name,
                "purl": format!("pkg:cargo/{name}@1.0.0"),
                "licenses": [{ "expression": licence }],
            })
        };
        let bill = |component: Value, subject: Value| {
            crates(&serde_json::json!({ "components": [component], "metadata": { "component": subject } }))
        };
        let right = bill(component("a", "MIT"), component("b", "MIT")).unwrap();
        assert_eq!(right.into_iter().collect::<Vec<_>>(), ["a-1.0.0", "b-1.0.0"]);
        assert!(bill(component("a", ""), component("b", "MIT")).is_err());
        assert!(bill(component("a", "MIT"), component("a", "MIT")).is_err());
    }
}

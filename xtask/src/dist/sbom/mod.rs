//! Bills of materials (SBOM) in CycloneDX 1.6, beside each package: the crates in the program and, of an image, the
//! packages of Debian. All of it follows from the commit and the artefact: the same ones have the same bytes.

pub(super) mod crates;

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{
    Packing,
    checksums::hex,
    image::{self, DebianPackage},
    release::Release,
};
use crates::{CrateGraph, CrateId, LinkedCrate};

/// Writes one beside each artefact, and one of the program alone.
pub(super) fn pack(packing: &Packing<'_>, artefacts: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let graph = crates::linked(packing.root)?;
    let program = packing.product.program();
    let own = packing
        .out
        .join(format!("signalbox-{}.cdx.json", packing.release.version));
    let mut written = vec![write(packing.release, &graph, &program, &BTreeSet::new(), own)?];
    for artefact in artefacts.iter().filter(|artefact| artefact.is_file()) {
        let debian = if image::is_image(artefact) {
            image::packages(packing, artefact)?
        } else {
            BTreeSet::new()
        };
        let mut name: OsString = artefact.clone().into();
        name.push(".cdx.json");
        written.push(write(packing.release, &graph, artefact, &debian, name.into())?);
    }
    Ok(written)
}

fn write(
    release: &Release,
    graph: &CrateGraph,
    artefact: &Path,
    debian: &BTreeSet<DebianPackage>,
    to: PathBuf,
) -> Result<PathBuf> {
    let bytes = fs::read(artefact).with_context(|| format!("reading {}", artefact.display()))?;
    let mut document = document(release, graph, &hex(&bytes), debian)?;
    // A serial number is random elsewhere; ours names the contents.
    let serial = uuid(&serde_json::to_vec(&document)?);
    document["serialNumber"] = json!(format!("urn:uuid:{serial}"));
    fs::write(&to, serde_json::to_string_pretty(&document)? + "\n")?;
    Ok(to)
}

fn document(release: &Release, graph: &CrateGraph, artefact: &str, debian: &BTreeSet<DebianPackage>) -> Result<Value> {
    let is_subject = |id: &CrateId| id.0 == "signalbox";
    let (subject, linked) = graph
        .crates
        .iter()
        .find(|(id, _)| is_subject(id))
        .context("signalbox is not among its crates")?;
    let mut metadata = component(release, subject, linked);
    metadata["type"] = json!("application");
    metadata["version"] = json!(release.version);
    metadata["hashes"] = json!([{ "alg": "SHA-256", "content": artefact }]);
    let others = graph.crates.iter().filter(|(id, _)| !is_subject(id));
    let mut components: Vec<Value> = others.map(|(id, linked)| component(release, id, linked)).collect();
    for package in debian {
        components.push(debian_component(package)?);
    }
    let dependencies: Vec<Value> = graph
        .crates
        .iter()
        .map(|(id, linked)| {
            let needed = graph.needs.get(id).into_iter().flatten();
            let needed = needed.filter_map(|other| Some(purl(release, other, graph.crates.get(other)?)));
            json!({ "ref": purl(release, id, linked), "dependsOn": needed.collect::<Vec<_>>() })
        })
        .collect();
    Ok(json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": release.time,
            "tools": { "components": [{ "type": "application", "name": "cargo xtask dist sbom" }] },
            "component": metadata,
        },
        "components": components,
        "dependencies": dependencies,
    }))
}

fn component(release: &Release, id: &CrateId, linked: &LinkedCrate) -> Value {
    let purl = purl(release, id, linked);
    let mut component = json!({
        "type": "library",
        "bom-ref": purl,
        "name": id.0,
        "version": id.1,
        "purl": purl,
        "licenses": [{ "expression": linked.licence }],
    });
    if let Some(checksum) = &linked.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if !linked.repository.is_empty() {
        component["externalReferences"] = json!([{ "type": "vcs", "url": linked.repository }]);
    }
    component
}

/// A package's URL. Crates of our own are in no registry: they are named with repository and revision.
fn purl(release: &Release, (name, version): &CrateId, linked: &LinkedCrate) -> String {
    let version = version.replace('+', "%2B");
    if linked.checksum.is_some() {
        return format!("pkg:cargo/{name}@{version}");
    }
    let place = format!("git+{}@{}", release.homepage, release.revision);
    let place = place.replace('+', "%2B").replace('/', "%2F").replace('@', "%40");
    format!("pkg:cargo/{name}@{version}?vcs_url={place}")
}

fn debian_component(package: &DebianPackage) -> Result<Value> {
    let field = |key: &str| {
        let value = package.field(key);
        value.with_context(|| format!("dpkg knows no {key} of {}", package.name))
    };
    let (version, architecture) = (field("Version")?, field("Architecture")?);
    let escaped = version.replace('+', "%2B").replace(':', "%3A").replace('~', "%7E");
    let purl = format!("pkg:deb/debian/{}@{escaped}?arch={architecture}", package.name);
    Ok(json!({
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": version,
        "purl": purl,
    }))
}

/// A UUID of contents: version 8 of RFC 9562, which leaves its bits to us.
fn uuid(bytes: &[u8]) -> String {
    let mut digits: Vec<char> = hex(bytes).chars().take(32).collect();
    digits[12] = '8';
    digits[16] = 'a';
    for at in [20, 16, 12, 8] {
        digits.insert(at, '-');
    }
    digits.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_serial_number_is_a_uuid_of_the_contents() {
        let first = uuid(b"x");
        assert_eq!(first, uuid(b"x"));
        assert_ne!(first, uuid(b"y"));
        let lengths: Vec<usize> = first.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
    }
}

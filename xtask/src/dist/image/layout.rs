//! The layout of OCI images: layers, configuration, manifest and index, each named by its digest, in one archive
//! (image-spec 1.1; what skopeo and podman call `oci-archive`).

use std::{collections::BTreeMap, fs::File, io::Read as _, path::Path};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::layer::{self, ImageFiles};
use crate::dist::{
    checksums::hex,
    release::{Release, architectures},
    tree::gzip,
};

/// Facts that an image states about itself.
pub(super) struct Labels<'a> {
    pub(super) name: &'a str,
    pub(super) title: &'a str,
    pub(super) release: &'a Release,
    pub(super) entrypoint: &'a [&'a str],
    /// Number of the user and group that it runs as by default.
    pub(super) user: u32,
}

impl Labels<'_> {
    fn json(&self) -> Value {
        let release = self.release;
        json!({
            "org.opencontainers.image.created": release.time,
            "org.opencontainers.image.description": self.title,
            "org.opencontainers.image.documentation": release.homepage,
            "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            "org.opencontainers.image.revision": release.revision,
            "org.opencontainers.image.source": release.homepage,
            "org.opencontainers.image.title": self.name,
            "org.opencontainers.image.version": release.version,
        })
    }
}

/// An image, blob by blob.
pub(super) struct Layout {
    /// Blobs by the digest after `sha256:`.
    blobs: BTreeMap<String, Vec<u8>>,
    index: Value,
}

impl Layout {
    /// An image of layers, which are archives that are not compressed yet; `level` is gzip's.
    pub(super) fn new(labels: &Labels<'_>, layers: &[&Vec<u8>], level: &str) -> Result<Self> {
        let mut blobs = BTreeMap::new();
        let mut described = Vec::new();
        for layer in layers {
            let packed = gzip(layer, level)?;
            described.push(describe(&mut blobs, "layer.v1.tar+gzip", packed));
        }
        let differences: Vec<String> = layers.iter().map(|layer| sha256(layer)).collect();
        let configuration = configuration(labels, &differences)?;
        let configuration = describe(&mut blobs, "config.v1+json", bytes(&configuration)?);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": media_type("manifest.v1+json"),
            "config": configuration,
            "layers": described,
            "annotations": labels.json(),
        });
        let mut manifest = describe(&mut blobs, "manifest.v1+json", bytes(&manifest)?);
        manifest["platform"] = json!({ "architecture": architectures()?.0, "os": "linux" });
        manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": tag(&labels.release.version) });
        let index = json!({
            "schemaVersion": 2,
            "mediaType": media_type("index.v1+json"),
            "manifests": [manifest],
        });
        Ok(Self { blobs, index })
    }

    pub(super) fn archive(self, epoch: u64) -> Result<Vec<u8>> {
        let mut files = ImageFiles::default();
        for (name, blob) in self.blobs {
            files.file(&format!("blobs/sha256/{name}"), 0o644, blob);
        }
        files.file("index.json", 0o644, bytes(&self.index)?);
        files.file("oci-layout", 0o644, bytes(&json!({ "imageLayoutVersion": "1.0.0" }))?);
        layer::tar(&files, epoch)
    }
}

fn configuration(labels: &Labels<'_>, differences: &[String]) -> Result<Value> {
    let history: Vec<Value> = differences
        .iter()
        .map(|_| json!({ "created": labels.release.time, "created_by": "cargo xtask dist image" }))
        .collect();
    Ok(json!({
        "created": labels.release.time,
        "architecture": architectures()?.0,
        "os": "linux",
        "config": {
            "User": format!("{0}:{0}", labels.user),
            "Env": ["PATH=/usr/sbin:/usr/bin"],
            "Entrypoint": labels.entrypoint,
            "WorkingDir": "/",
            "StopSignal": "SIGTERM",
            "Labels": labels.json(),
        },
        "rootfs": { "type": "layers", "diff_ids": differences },
        "history": history,
    }))
}

/// Keeps a blob, and returns its descriptor.
fn describe(blobs: &mut BTreeMap<String, Vec<u8>>, kind: &str, blob: Vec<u8>) -> Value {
    let (digest, size) = (sha256(&blob), blob.len());
    blobs.insert(digest.trim_start_matches("sha256:").to_owned(), blob);
    json!({ "mediaType": media_type(kind), "digest": digest, "size": size })
}

fn media_type(kind: &str) -> String {
    format!("application/vnd.oci.image.{kind}")
}

fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(bytes))
}

fn bytes(value: &Value) -> Result<Vec<u8>> {
    Ok(serde_json::to_vec(value)?)
}

/// A version as tags are written: they have neither `~` nor `+`.
fn tag(version: &str) -> String {
    version.replace(['~', '+'], "-")
}

/// The digest of an archive's image, by which registries know it.
pub(in crate::dist) fn digest(archive: &Path) -> Result<String> {
    let file = File::open(archive).with_context(|| format!("reading {}", archive.display()))?;
    for entry in tar::Archive::new(file).entries()? {
        let mut entry = entry?;
        if entry.path()?.as_os_str() == "index.json" {
            let mut text = String::new();
            entry.read_to_string(&mut text)?;
            let index: Value = serde_json::from_str(&text)?;
            let digest = index["manifests"][0]["digest"].as_str();
            return digest.map(str::to_owned).context("the index names no image");
        }
    }
    anyhow::bail!("{} has no index.json", archive.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_descriptor_names_a_blob_by_its_digest_and_size() {
        let release = Release::example("0.1.0~20300102030405.gabc");
        let labels = Labels {
            name: "x",
            title: "y",
            release: &release,
            entrypoint: &["/x"],
            user: 65532,
        };
        let (one, two) = (b"layer one".to_vec(), b"layer two".to_vec());
        let layout = Layout::new(&labels, &[&one, &two], "-1n").unwrap();
        let blob = |descriptor: &Value| -> Vec<u8> {
            let digest = descriptor["digest"].as_str().unwrap();
            let blob = &layout.blobs[digest.strip_prefix("sha256:").unwrap()];
            assert_eq!(
                (sha256(blob), json!(blob.len())),
                (digest.to_owned(), descriptor["size"].clone())
            );
            blob.clone()
        };
        let described = &layout.index["manifests"][0];
        assert_eq!(
            described["annotations"]["org.opencontainers.image.ref.name"],
            "0.1.0-20300102030405.gabc"
        );
        let manifest: Value = serde_json::from_slice(&blob(described)).unwrap();
        let layers = manifest["layers"].as_array().unwrap();
        assert_eq!(layers.len(), 2);
        layers.iter().for_each(|layer| drop(blob(layer)));
        let configuration: Value = serde_json::from_slice(&blob(&manifest["config"])).unwrap();
        assert_eq!(configuration["rootfs"]["diff_ids"], json!([sha256(&one), sha256(&two)]));
        assert_eq!(configuration["config"]["User"], "65532:65532");
    }

    #[test]
    fn an_archive_has_the_digest_of_its_manifest() {
        let release = Release::example("0.1.0~20300102030405.gabc");
        let labels = Labels {
            name: "x",
            title: "y",
            release: &release,
            entrypoint: &["/x"],
            user: 65532,
        };
        let layer = b"layer".to_vec();
        let layout = Layout::new(&labels, &[&layer], "-1n").unwrap();
        let expected = layout.index["manifests"][0]["digest"].clone();
        let file = std::env::temp_dir().join(format!("signalbox-layout-{}.oci.tar", std::process::id()));
        std::fs::write(&file, layout.archive(release.epoch).unwrap()).unwrap();
        let found = digest(&file);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(json!(found.unwrap()), expected);
    }
}

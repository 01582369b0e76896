//! `record.json`: record of the sources and versions that the checked-in objects were built from.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Objects, toolchain::Toolchain};

#[derive(Serialize, Deserialize, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// Hash of the sources, by `sources::hash`.
    pub(super) sources_sha256: String,
    /// Hashes of the objects themselves, by name: they catch an object that was replaced without its record.
    pub(super) objects_sha256: BTreeMap<String, String>,
    /// Hashes of the objects with the next version of the maps, which tests of upgrades run.
    pub(super) next_abi_sha256: BTreeMap<String, String>,
    /// First line and LLVM version of `rustc -vV`.
    pub(super) rustc: String,
    pub(super) bpf_linker: String,
}

impl Record {
    pub(super) fn new(sources_sha256: String, [objects, next_abi]: [&Objects; 2], toolchain: &Toolchain) -> Self {
        Self {
            sources_sha256,
            objects_sha256: hashes(objects),
            next_abi_sha256: hashes(next_abi),
            rustc: toolchain.rustc_version.clone(),
            bpf_linker: toolchain.linker_version.clone(),
        }
    }

    pub(super) fn read(path: &Path) -> Result<Self> {
        let remedy = || {
            format!(
                "{} cannot be read; `cargo xtask build-ebpf` writes it again",
                path.display()
            )
        };
        serde_json::from_slice(&fs::read(path).with_context(remedy)?).with_context(remedy)
    }

    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        super::write(path, text.as_bytes())
    }

    /// Whether `toolchain` must give exactly the same bytes.
    pub(super) fn is_by(&self, toolchain: &Toolchain) -> bool {
        self.rustc == toolchain.rustc_version && self.bpf_linker == toolchain.linker_version
    }
}

/// Hashes of objects, by name.
pub(super) fn hashes(objects: &Objects) -> BTreeMap<String, String> {
    let hash = |(name, bytes): &(&str, Vec<u8>)| ((*name).to_owned(), sha256(bytes));
    objects.iter().map(hash).collect()
}

fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

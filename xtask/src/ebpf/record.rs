//! `signalbox.bpf.json`: record of the sources and versions that the checked-in object was built from.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::toolchain::Toolchain;

#[derive(Serialize, Deserialize, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// Hash of the sources, by `sources::hash`.
    pub(super) sources_sha256: String,
    /// Hash of the object itself: catches an object that was replaced without its record.
    pub(super) object_sha256: String,
    /// First line and LLVM version of `rustc -vV`.
    pub(super) rustc: String,
    pub(super) bpf_linker: String,
}

impl Record {
    pub(super) fn new(sources_sha256: String, object: &[u8], toolchain: &Toolchain) -> Self {
        Self {
            sources_sha256,
            object_sha256: sha256(object),
            rustc: toolchain.rustc_version.clone(),
            bpf_linker: toolchain.linker_version.clone(),
        }
    }

    pub(super) fn read(path: &Path) -> Result<Self> {
        let remedy = || {
            format!(
                "{} cannot be read; `cargo xtask build-ebpf` writes it anew",
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

    /// Whether `toolchain` has to give the very same bytes.
    pub(super) fn is_by(&self, toolchain: &Toolchain) -> bool {
        self.rustc == toolchain.rustc_version && self.bpf_linker == toolchain.linker_version
    }
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

//! The certificates of aliases as files that only signalbox may read.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use signalbox_core::discovered::spi::{AppKey, Application};
use signalbox_sys::{private_directory, sync_directory, write_private};

use signalbox_sources::alias_file::file_name;

/// Directory of certificate files: `DIR/NAMESPACE+APP/ALIAS.crt`, `.key` and `.pass`.
#[derive(Debug)]
pub(super) struct CertificateFiles(PathBuf);

impl CertificateFiles {
    /// Makes the directory if it is not there, and restricts it to its owner.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        private_directory(directory)?;
        Ok(Self(directory.to_owned()))
    }

    /// Updates the files to these applications. Directories with other names stay as they are.
    pub(super) fn reconcile_all<'a>(&self, applications: impl Iterator<Item = &'a Application>) -> io::Result<()> {
        let mut known: HashSet<OsString> = HashSet::new();
        for application in applications {
            self.reconcile(&application.key, Some(application))?;
            known.insert(directory_name(&application.key).into());
        }
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            let ours = entry.file_name().to_string_lossy().contains('+') && entry.file_type()?.is_dir();
            if ours && !known.contains(&entry.file_name()) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }

    /// Updates the files of one application; `None`: it is gone.
    pub(super) fn reconcile(&self, key: &AppKey, application: Option<&Application>) -> io::Result<()> {
        let directory = self.0.join(directory_name(key));
        let wanted = application.map(files).unwrap_or_default();
        if wanted.is_empty() {
            return match fs::remove_dir_all(&directory) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        private_directory(&directory)?;
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if !entry.file_name().to_str().is_some_and(|name| wanted.contains_key(name)) {
                fs::remove_file(entry.path())?;
            }
        }
        for (name, content) in &wanted {
            write_private(&directory, name, content.as_bytes())?;
        }
        sync_directory(&directory)
    }
}

/// Names an application's directory. Namespaces and names have no `+`, so no two applications share a directory.
fn directory_name(key: &AppKey) -> String {
    format!("{}+{}", key.namespace, key.app)
}

fn files(application: &Application) -> BTreeMap<String, &str> {
    let certificates = application.certificates.iter();
    let files = certificates.flat_map(|(alias, certificate)| {
        let name = file_name(alias);
        [
            Some((format!("{name}.crt"), certificate.chain.as_str())),
            certificate
                .private_key
                .as_ref()
                .map(|key| (format!("{name}.key"), key.reveal())),
            certificate
                .pass_phrase
                .as_ref()
                .map(|phrase| (format!("{name}.pass"), phrase.reveal())),
        ]
    });
    files.flatten().collect()
}

//! Certificates from files and directories, of which only changed ones are read again.

mod files;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::certificate::{Certificate, CertificateError, CertificateFault};
use crate::store::CertificateStore;

pub use files::MAX_FILE_BYTES;
use files::{CertificatePaths, Stamp};

/// Where certificates stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateFiles {
    /// Single certificate.
    Pair {
        /// File of the certificate and its intermediates.
        cert: PathBuf,
        /// File of the private key; may be the same.
        key: PathBuf,
        /// File of the key's pass phrase.
        pass: Option<PathBuf>,
        /// Whether the certificate answers where no other does.
        is_default: bool,
    },
    /// All of a directory and of the directories in it: `NAME.crt` with `NAME.key`, or `NAME.pem` with both, and
    /// `NAME.pass`.
    Directory {
        /// The directory.
        path: PathBuf,
        /// Which names the certificates answer for.
        names: NamesFrom,
    },
}

/// Which names a directory's certificates answer for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamesFrom {
    /// Names in the certificate.
    Certificate,
    /// Alias that the file is named for, as routing events write it: whoever owns one alias must not answer for others.
    FileName,
}

/// Result of a look at the files.
#[derive(Debug)]
pub struct LoadReport {
    /// All certificates that can be used, with those of former looks for files that now cannot.
    pub store: CertificateStore,
    /// Mistakes in files as they are now.
    pub errors: Vec<CertificateError>,
    /// Whether certificates or mistakes are others than at the last look.
    pub is_changed: bool,
}

/// Reads certificates, and knows those of the last look.
#[derive(Debug)]
pub struct CertificateLoader {
    files: Vec<CertificateFiles>,
    entries: BTreeMap<PathBuf, Entry>,
    /// Directories that could not be read at the last look.
    unreadable: BTreeMap<PathBuf, String>,
}

#[derive(Debug)]
struct Entry {
    stamp: Stamp,
    /// The last good one.
    certificate: Option<Arc<Certificate>>,
    /// Mistake in the files as they are now.
    fault: Option<CertificateFault>,
}

impl CertificateLoader {
    /// Loader of these files; reads nothing yet.
    #[must_use]
    pub const fn new(files: Vec<CertificateFiles>) -> Self {
        Self {
            files,
            entries: BTreeMap::new(),
            unreadable: BTreeMap::new(),
        }
    }

    /// Looks at all files at the time `now`, in seconds since 1970. A certificate whose files are half-written or
    /// wrong stays as it was; one whose file is no longer in its directory is gone.
    pub fn load(&mut self, now: u64) -> LoadReport {
        let (found, unreadable) = self.find();
        let mut is_changed = unreadable != self.unreadable;
        let mut entries = BTreeMap::new();
        for paths in found {
            if entries.contains_key(&paths.cert) {
                continue;
            }
            let stamp = paths.stamp(now);
            let former = self.entries.remove(&paths.cert);
            let entry = match former {
                Some(former) if former.stamp.is_same(&stamp) => former,
                former => {
                    let entry = read(&paths, stamp, former.as_ref());
                    is_changed |= former.is_none_or(|former| former.differs(&entry));
                    entry
                }
            };
            entries.insert(paths.cert, entry);
        }
        for (path, entry) in std::mem::take(&mut self.entries) {
            // Nobody knows what is in a directory that cannot be read.
            if unreadable.keys().any(|directory| path.starts_with(directory)) {
                entries.insert(path, entry);
            } else {
                is_changed = true;
            }
        }
        (self.entries, self.unreadable) = (entries, unreadable);
        LoadReport {
            store: CertificateStore::new(self.certificates(), now),
            errors: self.errors(),
            is_changed,
        }
    }

    /// Paths to watch, and whether what is below counts, too.
    pub(crate) fn watched(&self) -> Vec<(PathBuf, bool)> {
        let mut paths = Vec::new();
        for files in &self.files {
            match files {
                CertificateFiles::Directory { path, .. } => paths.push((path.clone(), true)),
                CertificateFiles::Pair { cert, key, pass, .. } => {
                    // The directory, not the file: a rename over the file, and a swap of a ConfigMap's `..data`,
                    // happen there.
                    let files = [Some(cert), Some(key), pass.as_ref()];
                    paths.extend(files.into_iter().flatten().map(|file| (parent(file), false)));
                }
            }
        }
        paths.sort();
        paths.dedup();
        paths
    }

    /// Finds the certificates, those that are named singly first: these may be in one of the directories, too.
    fn find(&self) -> (Vec<CertificatePaths>, BTreeMap<PathBuf, String>) {
        let (mut found, mut unreadable) = (Vec::new(), BTreeMap::new());
        let is_directory = |files: &&CertificateFiles| matches!(files, CertificateFiles::Directory { .. });
        let (directories, pairs): (Vec<_>, Vec<_>) = self.files.iter().partition(is_directory);
        for files in pairs.into_iter().chain(directories) {
            match files {
                CertificateFiles::Pair {
                    cert,
                    key,
                    pass,
                    is_default,
                } => found.push(CertificatePaths {
                    cert: cert.clone(),
                    key: key.clone(),
                    pass: pass.clone(),
                    names: NamesFrom::Certificate,
                    is_default: *is_default,
                }),
                CertificateFiles::Directory { path, names } => walk(path, *names, true, &mut found, &mut unreadable),
            }
        }
        (found, unreadable)
    }

    fn certificates(&self) -> Vec<Arc<Certificate>> {
        let certificates = self.entries.values().filter_map(|entry| entry.certificate.clone());
        certificates.collect()
    }

    fn errors(&self) -> Vec<CertificateError> {
        let error = |path: &Path, fault: CertificateFault| CertificateError {
            label: path.display().to_string(),
            fault,
        };
        let directories = self
            .unreadable
            .iter()
            .map(|(path, why)| error(path, files::unreadable(path, why)));
        let entries = self
            .entries
            .iter()
            .filter_map(|(path, entry)| Some(error(path, entry.fault.clone()?)));
        directories.chain(entries).collect()
    }
}

impl Entry {
    fn differs(&self, other: &Self) -> bool {
        let same = match (&self.certificate, &other.certificate) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        !same || self.fault != other.fault
    }
}

/// Reads the files of a certificate; if they cannot be used, the certificate of `former` stays.
fn read(paths: &CertificatePaths, stamp: Stamp, former: Option<&Entry>) -> Entry {
    let loaded = paths
        .read()
        .and_then(|source| Certificate::load(&source).map_err(|error| error.fault));
    let former = former.and_then(|former| former.certificate.clone());
    let (certificate, fault) = match loaded {
        Ok(certificate) => (
            Some(
                former
                    .filter(|former| former.is_same(&certificate))
                    .unwrap_or_else(|| Arc::new(certificate)),
            ),
            None,
        ),
        Err(fault) => (former, Some(fault)),
    };
    Entry {
        stamp,
        certificate,
        fault,
    }
}

/// Finds the certificates of a directory and of those in it.
fn walk(
    directory: &Path,
    names: NamesFrom,
    is_top: bool,
    found: &mut Vec<CertificatePaths>,
    unreadable: &mut BTreeMap<PathBuf, String>,
) {
    let entries = fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = match entries {
        Ok(entries) => entries,
        // Removed since the directory above was read.
        Err(error) if !is_top && error.kind() == std::io::ErrorKind::NotFound => return,
        Err(error) => {
            unreadable.insert(directory.to_owned(), error.to_string());
            return;
        }
    };
    for entry in entries {
        let path = entry.path();
        // Hidden ones are the versions of a ConfigMap or Secret, to which links beside them lead.
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("crt" | "pem") => found.push(CertificatePaths::beside(path, names)),
            _ if is_top && path.is_dir() => walk(&path, names, false, found, unreadable),
            _ => {}
        }
    }
}

fn parent(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

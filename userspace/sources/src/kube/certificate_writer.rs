//! Certificates of a cluster's names, as files that only signalbox may read: `HOST.pem`, for the loader of certificates.
//!
//! The owner of a name must not answer for other names, even if the certificate lists them: a file is for its name
//! alone.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use signalbox_core::discovered::spi::Secret;
use signalbox_sys::{private_directory, write_private};
use tokio::sync::watch;
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::sleep;

use super::SourceStatus;
use crate::alias_file::file_name;

/// Pause before files that could not be written are tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Subject of the note about files that cannot be written.
const NOTE: &str = "certificates";

/// PEM texts by the names that they are for.
pub(super) type NamedTexts = BTreeMap<String, Secret>;

/// Writer of the files, whose task ends with it.
pub(super) struct CertificateWriter {
    wanted: watch::Sender<NamedTexts>,
    task: AbortHandle,
}

impl CertificateWriter {
    pub(super) fn new(directory: PathBuf, status: Arc<SourceStatus>) -> Self {
        let (wanted, known) = watch::channel(NamedTexts::new());
        let task = tokio::spawn(write_forever(directory, known, status)).abort_handle();
        Self { wanted, task }
    }

    /// Makes the files be those of these names only.
    pub(super) fn set(&self, wanted: NamedTexts) {
        self.wanted.send_if_modified(|known| {
            let is_changed = *known != wanted;
            *known = wanted;
            is_changed
        });
    }
}

impl Drop for CertificateWriter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Writes the wanted files whenever they change, beginning with the first report: until then, files of an earlier
/// process stay in use.
async fn write_forever(directory: PathBuf, mut known: watch::Receiver<NamedTexts>, status: Arc<SourceStatus>) {
    while known.changed().await.is_ok() {
        loop {
            let (to, texts) = (directory.clone(), known.borrow_and_update().clone());
            let written = spawn_blocking(move || reconcile(&to, &texts)).await;
            let Err(error) = written.unwrap_or_else(|error| Err(io::Error::other(error))) else {
                status.note(NOTE, None);
                break;
            };
            let place = directory.display();
            tracing::error!(%error, directory = %place, "Certificates of the cluster cannot be written.");
            status.note(NOTE, Some(format!("{place}: {error}")));
            sleep(RETRY_INTERVAL).await;
        }
    }
}

/// Updates the directory. New files come first, so that no certificate is missing while others change.
fn reconcile(directory: &Path, wanted: &NamedTexts) -> io::Result<()> {
    private_directory(directory)?;
    let files: BTreeMap<String, &Secret> = wanted
        .iter()
        .map(|(name, text)| (format!("{}.pem", file_name(name)), text))
        .collect();
    for (name, text) in &files {
        write_private(directory, name, text.reveal().as_bytes())?;
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let is_wanted = entry.file_name().to_str().is_some_and(|name| files.contains_key(name));
        if is_wanted || entry.file_type()?.is_dir() {
            continue;
        }
        match fs::remove_file(entry.path()) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn files_are_those_of_the_names_and_nobody_else_reads_them() {
        let root = std::env::temp_dir().join(format!("signalbox-kube-certificates-{}", std::process::id()));
        let directory = root.join("east");
        let texts = |names: &[&str]| {
            names
                .iter()
                .map(|name| ((*name).to_owned(), Secret::new(name)))
                .collect()
        };
        let found = || {
            let files = fs::read_dir(&directory).unwrap().map(|file| {
                let file = file.unwrap();
                assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
                file.file_name().into_string().unwrap()
            });
            let mut files: Vec<_> = files.collect();
            files.sort();
            files
        };
        reconcile(&directory, &texts(&["a.test", "*.b.test"])).unwrap();
        assert_eq!(found(), ["%2A.b.test.pem", "a.test.pem"]);
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
        reconcile(&directory, &texts(&["a.test", "c.test"])).unwrap();
        assert_eq!(found(), ["a.test.pem", "c.test.pem"]);
        fs::remove_dir_all(&root).unwrap();
    }
}

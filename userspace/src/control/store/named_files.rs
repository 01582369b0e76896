//! Files in the configuration that are read when it is applied: authorities, the balancer's own certificates for hosts,
//! error pages. They are read again when they have changed, like certificates and lists of prefixes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use signalbox_core::model::Model;

use super::Store;
use crate::state::error_pages::ErrorPages;
use crate::sys::FileStamp;

/// Interval of attempts to read unusable files.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Stamps of files; `None` for a missing file.
type Stamps = BTreeMap<PathBuf, Option<FileStamp>>;

/// Files of the active configuration.
#[derive(Default)]
pub(super) struct NamedFiles {
    /// Stamps of the content that was read last.
    read: Stamps,
    /// Stamps at the last check: files that are still changing are not read.
    last_seen: Stamps,
    /// Time of the next attempt after a failed one, whose cause may be none of these files.
    retry: Option<Instant>,
    /// Error of that attempt, which is logged once.
    error: Option<String>,
}

impl NamedFiles {
    /// Notes the files of a model, before they are read.
    pub(super) fn of(model: &Model) -> Self {
        let authorities = model.listeners.iter().filter_map(|listener| {
            let clients = listener.tls.as_ref()?.clients.as_ref()?;
            Some(&clients.ca)
        });
        let to_hosts = model.clusters.iter().flat_map(|cluster| {
            let tls = &cluster.backend_tls;
            let identity = tls.identity.iter().flat_map(|(cert, key)| [cert, key]);
            tls.ca.iter().chain(identity)
        });
        let paths = authorities.chain(to_hosts).chain(model.pages.values());
        let read: Stamps = paths.map(|path| (path.clone(), FileStamp::of(path).ok())).collect();
        Self {
            last_seen: read.clone(),
            read,
            ..Self::default()
        }
    }

    /// Returns whether a file has changed since it was read, and is no longer changing.
    fn have_changed(&mut self) -> bool {
        let seen: Stamps = self
            .read
            .keys()
            .map(|path| (path.clone(), FileStamp::of(path).ok()))
            .collect();
        let has_settled = seen == self.last_seen;
        self.last_seen = seen;
        let is_news = has_settled && self.last_seen != self.read;
        if is_news {
            self.read.clone_from(&self.last_seen);
        }
        is_news || self.retry.is_some_and(|at| at <= Instant::now())
    }
}

impl Store {
    /// Reads the named files again if they have changed. If one is unusable, nothing changes.
    pub(super) fn follow_named_files(&mut self) {
        if !tokio::task::block_in_place(|| self.named_files.have_changed()) {
            return;
        }
        let model = Arc::clone(&self.file);
        let secret = self.ticket_secret(&model);
        let read = tokio::task::block_in_place(|| {
            let pages = ErrorPages::load(&model.pages)?;
            self.tls.prepare(&model, secret.as_ref()).map(|tls| (tls, pages))
        });
        let error = read.as_ref().err().cloned();
        self.named_files.retry = error.as_ref().map(|_| Instant::now() + RETRY_INTERVAL);
        let is_known = error.is_some() && error == self.named_files.error;
        self.named_files.error.clone_from(&error);
        if !is_known {
            self.shared.applied.reloads.record("files", error);
        }
        match read {
            Ok((tls, pages)) => {
                self.tls.commit(tls);
                self.shared.error_pages.store(Arc::new(pages));
                self.needs_publish = true;
                tracing::info!("Files that the configuration names have changed, and have been read again.");
            }
            Err(_) if is_known => {}
            Err(error) => {
                tracing::error!(
                    error,
                    "A file that the configuration names cannot be used: its last good content stays active."
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_news_once_it_changes_no_more() {
        let path = std::env::temp_dir().join(format!("signalbox-named-{}", std::process::id()));
        std::fs::write(&path, "1").unwrap();
        let stamps: Stamps = [(path.clone(), FileStamp::of(&path).ok())].into();
        let mut files = NamedFiles {
            last_seen: stamps.clone(),
            read: stamps,
            ..NamedFiles::default()
        };
        assert!(!files.have_changed());
        std::fs::write(&path, "22").unwrap();
        assert!(!files.have_changed(), "somebody may be writing it");
        assert!(files.have_changed());
        assert!(!files.have_changed());
        std::fs::remove_file(&path).unwrap();
        assert!(!files.have_changed());
        assert!(files.have_changed(), "a file that is gone is news, too");
    }
}

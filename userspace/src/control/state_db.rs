//! Durable state: everything received by API, event and rotation, in one embedded database (redb).
//!
//! A change is on disk completely when [`StateDb::put`] returns, or not at all. Only one process has the file open. At
//! a takeover the old process closes it first ([`StateDb::release`]), and opens it again if the new one fails.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redb::backends::FileBackend;
use redb::{Builder, Database, ReadableDatabase as _, StorageError, TableDefinition, TableError};
use serde::de::DeserializeOwned;

/// Table of records: (kind, key) to JSON.
const RECORDS: TableDefinition<'_, (&str, &str), &[u8]> = TableDefinition::new("records");

/// Memory for pages of the file in bytes. The records are few and read once.
const CACHE_BYTES: usize = 4 << 20;

/// Reason why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDbError {
    #[error("creating {}; make it writable, or set store.path to another place", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} is in use by another process: is a second signalbox running with it?", path.display())]
    InUse { path: PathBuf },
    #[error(
        "{} cannot be opened; if it is damaged, move it away (what it held is lost then) and restart", path.display()
    )]
    Open {
        path: PathBuf,
        #[source]
        source: Box<redb::Error>,
    },
    #[error("{} has not been read yet: what it holds would be lost", path.display())]
    NotYetRead { path: PathBuf },
    #[error("{} could not be written: is the disk full?", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: Box<redb::Error>,
    },
}

/// A change of one record: its kind, its key, and its new value; `None` removes it.
pub type RecordChange = (&'static str, String, Option<Vec<u8>>);

/// Time for which the file is left to another process to open: longer than a takeover may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(15);

/// The database file of durable state.
pub struct StateDb {
    path: PathBuf,
    release_timeout: Duration,
    state: Mutex<DbState>,
}

#[derive(Default)]
struct DbState {
    open: Option<Database>,
    /// Time since when the file is left to another process.
    released_at: Option<Instant>,
    given_up: bool,
}

impl StateDb {
    /// Stores the path without opening the file.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            release_timeout: RELEASE_TIMEOUT,
            state: Mutex::default(),
        }
    }

    /// Writes all changes, or none. Returns when they are on disk.
    pub fn put(&self, changes: &[RecordChange]) -> Result<(), StateDbError> {
        if changes.is_empty() {
            return Ok(());
        }
        self.with(|db| {
            let transaction = db.begin_write()?;
            {
                let mut table = transaction.open_table(RECORDS)?;
                for (kind, key, value) in changes {
                    match value {
                        Some(value) => table.insert((*kind, key.as_str()), value.as_slice())?,
                        None => table.remove((*kind, key.as_str()))?,
                    };
                }
            }
            Ok(transaction.commit()?)
        })
    }

    /// Returns all records of a kind. A record that cannot be parsed is kept and logged.
    pub fn all<T: DeserializeOwned>(&self, kind: &str) -> Result<Vec<(String, T)>, StateDbError> {
        let understood = self.raw(kind)?.into_iter().filter_map(|(key, value)| {
            match serde_json::from_slice(&value) {
                Ok(value) => Some((key, value)),
                Err(error) => {
                    tracing::error!(path = %self.path.display(), kind, key, %error, "A record of the state database is not understood: it is ignored and kept.");
                    None
                }
            }
        });
        Ok(understood.collect())
    }

    /// Returns all records of a kind as bytes, in the order of their keys.
    pub fn raw(&self, kind: &str) -> Result<Vec<(String, Vec<u8>)>, StateDbError> {
        self.with(|db| {
            let table = match db.begin_read()?.open_table(RECORDS) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
                outcome => outcome?,
            };
            let mut records = Vec::new();
            for record in table.range((kind, "")..)? {
                let (key, value) = record?;
                let (of, key) = key.value();
                if of != kind {
                    break;
                }
                records.push((key.to_owned(), value.value().to_vec()));
            }
            Ok(records)
        })
    }

    /// Returns the error for a write before the first read.
    #[must_use]
    pub fn not_yet_read(&self) -> StateDbError {
        StateDbError::NotYetRead {
            path: self.path.clone(),
        }
    }

    /// Closes the file for another process. If that process fails, the file is opened again some seconds later.
    pub fn release(&self) {
        let mut state = self.state.lock();
        (state.open, state.released_at) = (None, Some(Instant::now()));
    }

    /// Leaves the file to another process for good.
    pub fn give_up(&self) {
        let mut state = self.state.lock();
        (state.open, state.released_at, state.given_up) = (None, Some(Instant::now()), true);
    }

    fn with<T>(&self, work: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, StateDbError> {
        let mut state = self.state.lock();
        if state.given_up
            || state
                .released_at
                .is_some_and(|since| since.elapsed() < self.release_timeout)
        {
            return Err(StateDbError::InUse {
                path: self.path.clone(),
            });
        }
        let db = match state.open.take() {
            Some(db) => db,
            None => self.open()?,
        };
        state.released_at = None;
        match work(&db) {
            Ok(done) => {
                state.open = Some(db);
                Ok(done)
            }
            // After an I/O error the database refuses all further work. The next call opens it again.
            Err(source) => Err(StateDbError::Write {
                path: self.path.clone(),
                source: Box::new(source),
            }),
        }
    }

    fn open(&self) -> Result<Database, StateDbError> {
        let (path, directory) = (self.path.clone(), self.path.parent());
        if let Some(parent) = directory.filter(|parent| !parent.as_os_str().is_empty()) {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(parent)
                .map_err(|source| StateDbError::Directory {
                    path: parent.to_owned(),
                    source,
                })?;
        }
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|source| StateDbError::Directory {
                path: path.clone(),
                source,
            })?;
        FileBackend::new(file)
            .and_then(|backend| Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend))
            .map_err(|source| match source {
                redb::DatabaseError::DatabaseAlreadyOpen => StateDbError::InUse { path },
                // A file of the wrong kind is `InvalidData`, which is handled below.
                redb::DatabaseError::Storage(StorageError::Io(source))
                    if source.kind() != std::io::ErrorKind::InvalidData =>
                {
                    StateDbError::Directory { path, source }
                }
                source => StateDbError::Open {
                    path,
                    source: Box::new(source.into()),
                },
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("signalbox-durable-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir.join("deep/state.redb")
    }

    fn gone(path: &Path) {
        let _ = fs::remove_dir_all(path.parent().unwrap().parent().unwrap());
    }

    #[test]
    fn stored_values_survive_reopening_and_a_db_in_use_is_refused() {
        let path = place("again");
        let mut durable = StateDb::new(&path);
        assert_eq!(durable.all::<u32>("a").unwrap(), []);
        let put = |kind, key: &str, value: Option<&str>| (kind, key.to_owned(), value.map(|v| v.as_bytes().to_vec()));
        durable
            .put(&[
                put("a", "x", Some("1")),
                put("a", "y", Some("2")),
                put("b", "x", Some("3")),
            ])
            .unwrap();
        durable
            .put(&[
                put("a", "x", None),
                put("a", "z", Some("4")),
                put("a", "bad", Some("{")),
            ])
            .unwrap();
        let expected = [("y".to_owned(), 2), ("z".to_owned(), 4)];
        assert_eq!(durable.all::<u32>("a").unwrap(), expected);
        let second = StateDb::new(&path);
        let refused = second.put(&[put("a", "q", Some("5"))]).unwrap_err();
        assert!(matches!(refused, StateDbError::InUse { .. }), "{refused}");
        durable.release_timeout = Duration::from_millis(200);
        durable.release();
        let refused = durable.put(&[put("a", "q", Some("5"))]).unwrap_err();
        assert!(
            matches!(refused, StateDbError::InUse { .. }),
            "it is left to the other: {refused}"
        );
        assert_eq!(second.all::<u32>("a").unwrap(), expected);
        assert_eq!(second.all::<u32>("b").unwrap(), [("x".to_owned(), 3)]);
        std::thread::sleep(Duration::from_millis(250));
        assert!(durable.all::<u32>("a").is_err(), "the other has it");
        drop(second);
        assert_eq!(durable.all::<u32>("a").unwrap(), expected, "and is gone");
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        gone(&path);
    }

    #[test]
    fn a_file_that_is_something_else_is_refused_and_left_as_it_is() {
        let path = place("other");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "not a database, but dear to somebody").unwrap();
        let refused = StateDb::new(&path).all::<u32>("a").unwrap_err();
        assert!(matches!(refused, StateDbError::Open { .. }), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"not a database, but dear to somebody");
        let refused = StateDb::new(Path::new("/proc/none/state.redb"))
            .all::<u32>("a")
            .unwrap_err();
        assert!(matches!(refused, StateDbError::Directory { .. }), "{refused}");
        gone(&path);
    }
}

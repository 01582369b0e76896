//! Namespaces and a directory that have a run's name, and are removed with the run.

use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};

use crate::{Ns, clean};

/// Kind of runs that clean up after each other.
pub struct Kind {
    /// Beginning of all names, which goes on with a pid.
    pub prefix: &'static str,
    /// Beginning of the name of a run's program, as `/proc/<pid>/comm` has it: another program with the pid of a killed
    /// run does not keep that run's leftovers.
    pub program: &'static str,
    /// Removes pins and other parts that would outlive a namespace; its processes have been killed.
    pub detach: fn(&Ns),
}

/// Namespaces and a directory of one run, removed on drop. Their names are `<prefix><pid>-<number>` and, for namespaces,
/// `-<role>`.
pub struct Sandbox {
    name: String,
    dir: PathBuf,
    detach: fn(&Ns),
}

impl Sandbox {
    /// Makes the directory. The first of a process removes leftovers of killed runs of its kind before.
    pub fn new(kind: &Kind) -> Result<Self> {
        static CLEAN: Once = Once::new();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        CLEAN.call_once(|| clean::remove_stale(kind));
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{}-{number}", kind.prefix, std::process::id());
        let dir = std::env::temp_dir().join(&name);
        // The directory's path is written into configurations.
        ensure!(dir.to_str().is_some(), "the temporary directory's name is not UTF-8");
        std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let detach = kind.detach;
        Ok(Self { name, dir, detach })
    }

    /// Makes a namespace whose loopback is up.
    pub fn namespace(&self, role: &str) -> Result<Ns> {
        let ns = Ns::try_create(&format!("{}-{role}", self.name))?;
        ns.ip("link set lo up")?;
        Ok(ns)
    }

    /// Directory for configurations, certificates, logs and sockets. That of a failed test is kept.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        clean::remove(&clean::namespaces(&format!("{}-", self.name)), self.detach);
        if std::thread::panicking() {
            println!("the files of the failed run are in {}", self.dir.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

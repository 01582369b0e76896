//! Name of a lab, and its directory: locked while the lab runs, so that there are no two of a name, and everything
//! found under that name once locked is a leftover.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use signalbox_lab::{Ns, namespaces, remove};

/// Role whose namespace signalbox runs in.
pub(super) const BALANCER: &str = "balancer";

/// Everything of a lab's name: removed before it is made, and on drop.
pub(super) struct Site {
    name: String,
    /// Directory of the lab. Under /run rather than in a temporary directory: its name is known, and only root may make
    /// it there.
    dir: PathBuf,
    signalbox: PathBuf,
    _lock: File,
}

impl Site {
    /// Takes a name, and removes leftovers of a killed lab of that name.
    pub(super) fn take(suffix: &str, signalbox: &Path) -> Result<Self> {
        // No hyphen: in the namespaces' names a hyphen follows the name, so no name is the beginning of another.
        let is_plain = suffix.len() <= 20 && suffix.chars().all(|c| c.is_ascii_alphanumeric());
        ensure!(is_plain, "--name: up to 20 letters and digits");
        let name = format!("sblab{suffix}");
        let dir = Path::new("/run").join(&name);
        fs::create_dir_all(&dir)?;
        let site = Self {
            _lock: lock(&dir)?,
            name,
            dir,
            signalbox: signalbox.to_owned(),
        };
        site.clear();
        fs::create_dir_all(&site.dir)?;
        fs::write(site.path(PID), std::process::id().to_string())?;
        symlink(signalbox, site.program())?;
        Ok(site)
    }

    /// Name of the namespace for a role.
    pub(super) fn namespace(&self, role: &str) -> String {
        format!("{}-{role}", self.name)
    }

    /// Directory for configurations, logs and sockets.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of a file in the directory.
    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// Path of signalbox that is short enough to be typed.
    pub(super) fn program(&self) -> PathBuf {
        self.path("signalbox")
    }

    /// Path of the balancer's admin socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.path("admin.sock")
    }

    /// Removes processes of any origin, then pins, then namespaces, then files.
    fn clear(&self) {
        remove(&namespaces(&self.namespace("")), |ns| {
            if ns.name() == self.namespace(BALANCER)
                && let Err(error) = self.detach(ns)
            {
                let name = ns.name();
                eprintln!("programs or maps of {name} are left under /sys/fs/bpf/signalbox: {error:#}");
            }
        });
        // The directory itself stays: it is the lock.
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let remove = if is_dir { fs::remove_dir_all } else { fs::remove_file };
            let _ = remove(entry.path());
        }
    }

    /// Removes pinned programs and maps, which would outlive the namespace. Tries again, because a process that has
    /// just been killed still holds them for a moment.
    fn detach(&self, ns: &Ns) -> Result<()> {
        let limit = Instant::now() + Duration::from_secs(5);
        loop {
            let output = ns.command(&self.signalbox).arg("detach").output()?;
            if output.status.success() {
                return Ok(());
            }
            if Instant::now() > limit {
                bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.clear();
        let _ = fs::remove_dir(&self.dir);
    }
}

/// File with the pid of the lab that holds the lock.
const PID: &str = "pid";

fn lock(dir: &Path) -> Result<File> {
    let lock = File::open(dir).with_context(|| dir.display().to_string())?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let pid = fs::read_to_string(dir.join(PID)).unwrap_or_default();
            bail!(
                "a lab runs here already, as process {pid}: end it with `kill {pid}`, or give this one another --name"
            );
        }
        Err(TryLockError::Error(error)) => return Err(error).context("lock"),
    }
    // The directory's owner may have removed it between open and lock.
    let is_same = fs::metadata(dir).is_ok_and(|now| lock.metadata().is_ok_and(|then| now.ino() == then.ino()));
    ensure!(is_same, "a lab is just being removed: try again");
    Ok(lock)
}

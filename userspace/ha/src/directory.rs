//! The runtime directory: files through which the supervisor, keepalived and `signalbox ha release` communicate.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use nix::sys::stat::Mode;
use signalbox_core::availability::ha::keepalived::{fifo, group_of_file, ready_file, release_file};

/// Directory where the command line says nothing else.
pub const DEFAULT_DIRECTORY: &str = "/run/signalbox-ha";

/// Runtime directory of a supervisor.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    text: String,
}

impl Directory {
    /// Names a directory; it need not be there.
    pub fn new(path: &Path) -> anyhow::Result<Self> {
        let text = path.to_str().unwrap_or_default();
        if !path.is_absolute() || text.contains(['"', '\n']) {
            bail!(
                "{} cannot be the runtime directory: it needs an absolute path without quotes",
                path.display()
            );
        }
        Ok(Self {
            path: path.to_owned(),
            text: text.trim_end_matches('/').to_owned(),
        })
    }

    /// Makes the directory, for its owner alone, and the FIFO.
    pub(crate) fn create(&self) -> anyhow::Result<()> {
        let make = || {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
            let fifo = self.fifo();
            match fs::symlink_metadata(&fifo) {
                Ok(meta) if meta.file_type().is_fifo() => return Ok(()),
                Ok(_) => fs::remove_file(&fifo)?,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            Ok(nix::unistd::mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR)?)
        };
        make().with_context(|| format!("making the runtime directory {}", self.path.display()))
    }

    /// Path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the directory as text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Path of the FIFO where keepalived reports states.
    pub(crate) fn fifo(&self) -> PathBuf {
        PathBuf::from(fifo(&self.text))
    }

    /// Path of a file by its name.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Says whether this node may have addresses.
    pub(crate) fn set_ready(&self, is_ready: bool) -> anyhow::Result<()> {
        write_flag(Path::new(&ready_file(&self.text)), !is_ready)
    }

    /// Whether this node may have addresses, as its supervisor has decided.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let text = fs::read_to_string(ready_file(&self.text));
        text.is_ok_and(|text| text.trim() == "0")
    }

    /// Records whether this node keeps away from a group.
    pub fn set_released(&self, group: &str, is_released: bool) -> anyhow::Result<()> {
        write_flag(Path::new(&release_file(&self.text, group)), is_released)
    }

    /// Whether this node keeps away from a group.
    #[must_use]
    pub fn is_released(&self, group: &str) -> bool {
        let text = fs::read_to_string(release_file(&self.text, group));
        text.is_ok_and(|text| text.trim() != "0")
    }

    /// Groups of the supervisor whose directory this is, in alphabetical order.
    pub fn groups(&self) -> std::io::Result<Vec<String>> {
        let mut groups = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            groups.extend(name.to_str().and_then(group_of_file).map(str::to_owned));
        }
        groups.sort_unstable();
        Ok(groups)
    }

    /// Makes the files of groups that have none yet.
    pub(crate) fn add_groups<'a>(&self, groups: impl Iterator<Item = &'a str>) -> anyhow::Result<()> {
        for group in groups {
            if !Path::new(&release_file(&self.text, group)).exists() {
                self.set_released(group, false)?;
            }
        }
        Ok(())
    }
}

/// Writes a file that keepalived tracks: 1 if the flag is set.
fn write_flag(path: &Path, flag: bool) -> anyhow::Result<()> {
    fs::write(path, if flag { "1\n" } else { "0\n" }).with_context(|| format!("writing {}", path.display()))
}

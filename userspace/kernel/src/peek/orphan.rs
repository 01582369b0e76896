//! Programs of the kernel peek that a process has left at interfaces when it died: `datapath: { peek_orphan: serve }`.

use std::io;
use std::path::{Path, PathBuf};

use super::PROGRAM;
use crate::pins::bpffs::ROOT;
use crate::pins::{LINK_PREFIX, PinKind, names_in, namespace};

/// Whether an earlier process, of any version, has left programs in this network namespace.
pub fn has_orphans() -> io::Result<bool> {
    pinned_links().map(|pins| !pins.is_empty())
}

/// Detaches such programs. Returns how many.
pub fn detach_orphans() -> io::Result<usize> {
    let orphans = pinned_links()?;
    for pin in &orphans {
        std::fs::remove_file(pin)?;
    }
    Ok(orphans.len())
}

/// Pins of links of the program, of all versions.
fn pinned_links() -> io::Result<Vec<PathBuf>> {
    let (base, namespace) = (Path::new(ROOT).join("signalbox"), namespace(PinKind::Cut)?);
    let versions = names_in(&base).unwrap_or_default();
    let dirs = versions.iter().map(|version| base.join(version).join(&namespace));
    let is_link = |name: &String| name.starts_with(LINK_PREFIX) && name.ends_with(PROGRAM);
    let pins = dirs.flat_map(|dir| {
        let names = names_in(&dir).unwrap_or_default().into_iter().filter(is_link);
        names.map(move |name| dir.join(name)).collect::<Vec<_>>()
    });
    Ok(pins.collect())
}

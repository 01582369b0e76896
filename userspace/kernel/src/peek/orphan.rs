//! Programs of the kernel peek that a process has left at interfaces when it died: by `datapath: { peek_orphan: serve }`,
//! or in filters, which stay in any case.

use std::io;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::time::Duration;

use signalbox_common::peek::abi::PeekConfig;

use super::{PROGRAM, filters};
use crate::cut::table::tick;
use crate::map::RawMap;
use crate::pins::bpffs::ROOT;
use crate::pins::{LINK_PREFIX, PinKind, Pins, names_in, namespace};

/// Whether an earlier process, of any version, has left programs in this network namespace.
pub fn has_orphans() -> io::Result<bool> {
    Ok(filters::are_there() || !pinned_links()?.is_empty())
}

/// Maps that are pinned beside the links: with them the next process ends the program's work.
pub(super) const MAPS: [&str; 2] = [BINDINGS, CONFIG];
const BINDINGS: &str = "PEEK_BINDINGS";
const CONFIG: &str = "PEEK_CONFIG";

/// Time for hosts to answer the connections that an orphan has begun. Only its own maps have their first data.
const LAST_ANSWERS_INTERVAL: Duration = Duration::from_millis(100);

/// Has programs that an earlier process of this version has left take no new clients: the program after them does. Waits
/// while hosts answer the connections that they have begun.
pub(super) fn retire_orphans(pins: &Pins) -> io::Result<()> {
    let [bindings, config] = MAPS.map(|name| pins.path(name));
    if !config.exists() {
        return Ok(());
    }
    let config = RawMap::open(&config)?;
    let first = 0u32.to_ne_bytes();
    let mut settings = config.get(&first)?;
    if settings.len() != size_of::<PeekConfig>() {
        return Ok(());
    }
    RawMap::open(&bindings)?.clear()?;
    let alive_until = offset_of!(PeekConfig, alive_until);
    settings[alive_until..alive_until + size_of::<u32>()].copy_from_slice(&tick().to_ne_bytes());
    config.update(&first, &settings)?;
    std::thread::sleep(LAST_ANSWERS_INTERVAL);
    Ok(())
}

/// Detaches such programs. `owns_flows`: this process has the flow table, so that no other that has it lives; otherwise
/// filters are detached only if nobody has it. Returns how many.
pub fn detach_orphans(owns_flows: bool) -> io::Result<usize> {
    let orphans = pinned_links()?;
    for pin in &orphans {
        std::fs::remove_file(pin)?;
        for name in MAPS {
            // Removed with the first link; programs before this one pinned none.
            let _ = std::fs::remove_file(pin.with_file_name(name));
        }
    }
    let may_remove = filters::are_there() && (owns_flows || Pins::lock(PinKind::Cut, false).is_ok());
    Ok(orphans.len() + if may_remove { filters::remove_all() } else { 0 })
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

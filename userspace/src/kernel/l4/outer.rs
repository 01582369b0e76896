//! Maps of maps: made here, because the object's own definitions of them are place holders.
//!
//! A definition in the object would need BTF, whose line numbers the verifier refuses wherever the code has an empty piece
//! of assembly. So each is made and pinned, and the loader told to take it from there.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use aya::EbpfLoader;
use signalbox_common::l4::abi::MAX_TABLES;
use signalbox_common::shield::abi::MAX_TABLES as MAX_PREFIX_TABLES;
use signalbox_common::shield::prefixes::Node;

use super::TABLE_BYTES;
use crate::kernel::cut::pins;
use crate::kernel::map;

/// `BPF_F_INNER_MAP`: tables of different lengths may stand in one outer map (kernel 5.10).
const INNER_MAP: u32 = 1 << 12;

/// All of them.
const ALL: [&str; 2] = ["L4_TABLES", "SHIELD_TABLES"];

/// Pins that are there while the object is being loaded.
pub struct Outer {
    pins: Vec<(&'static str, PathBuf)>,
    /// The directory, where it was made for this. One that an administrator has prepared for a user stays.
    made: Option<PathBuf>,
}

impl Outer {
    /// All maps of maps, new and empty.
    pub fn all() -> io::Result<Self> {
        Self::of(&ALL)
    }

    /// Some of them.
    pub(super) fn of(names: &[&'static str]) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (dir, is_new) = pins::make_root()?;
        let mut outer = Self {
            pins: Vec::new(),
            made: is_new.then(|| dir.clone()),
        };
        for &name in names {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = dir.join(format!("load-{}-{number}", std::process::id()));
            // A process that was killed may have had our number.
            let _ = std::fs::remove_file(&path);
            let map = new(name)?;
            if let Err(error) = map::pin(&map, &path) {
                if error.kind() != io::ErrorKind::NotFound {
                    return Err(error);
                }
                // Another load has ended in between, and has taken the empty directory along.
                pins::make_root()?;
                map::pin(&map, &path)?;
            }
            outer.pins.push((name, path));
        }
        Ok(outer)
    }

    /// Has the loader take them.
    pub fn give<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        for (name, path) in &self.pins {
            loader.map_pin_path(name, path);
        }
    }
}

impl Drop for Outer {
    fn drop(&mut self) {
        for (_, path) in &self.pins {
            let _ = std::fs::remove_file(path);
        }
        // Where nothing else is in it by now.
        if let Some(dir) = &self.made {
            let _ = std::fs::remove_dir(dir);
        }
    }
}

/// Pins the map of tables of hosts at `path`, empty, unless there is one.
pub(super) fn pin_tables(path: &Path) -> io::Result<()> {
    pins::mount_bpf()?;
    if path.exists() {
        return Ok(());
    }
    map::pin(&new("L4_TABLES")?, path)
}

/// Bytes of an element, and flags, of the arrays of one element or more that a map of maps holds; nothing for another map.
pub(in crate::kernel) fn inner_shape(name: &str) -> Option<(u32, u32)> {
    match name {
        "L4_TABLES" => Some((TABLE_BYTES as u32, map::MMAPABLE)),
        "SHIELD_TABLES" => Some((size_of::<Node>() as u32, INNER_MAP | map::MMAPABLE)),
        _ => None,
    }
}

fn new(name: &'static str) -> io::Result<OwnedFd> {
    if name == "L4_TABLES" {
        let like = map::create_array("l4_slots", TABLE_BYTES as u32, 1, map::MMAPABLE)?;
        return map::create_array_of_maps(name, MAX_TABLES, &like);
    }
    map::create_array_of_maps(name, MAX_PREFIX_TABLES, &prefixes(1)?)
}

/// A table of prefixes with room for so many nodes, all empty.
pub(super) fn prefixes(nodes: u32) -> io::Result<OwnedFd> {
    map::create_array(
        "shield_nodes",
        size_of::<Node>() as u32,
        nodes,
        INNER_MAP | map::MMAPABLE,
    )
}

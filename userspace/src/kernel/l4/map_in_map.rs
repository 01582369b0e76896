//! Maps of maps: made here, because the object's own definitions of them are placeholders.
//!
//! A definition in the object would need BTF, whose line numbers the verifier refuses wherever the code has an empty
//! piece of assembly. So each is made and pinned, and the loader told to take it from there.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use aya::EbpfLoader;
use signalbox_common::l4::abi::MAX_TABLES;
use signalbox_common::shield::abi::MAX_PREFIX_TABLES;
use signalbox_common::shield::prefixes::Node;

use super::TABLE_BYTES;
use crate::kernel::cut::pins;
use crate::kernel::map;

/// Map flag `BPF_F_INNER_MAP`: tables of different lengths may be in one outer map (kernel 5.10).
const BPF_F_INNER_MAP: u32 = 1 << 12;

/// Names of the maps of maps.
const MAPS_OF_MAPS: [&str; 2] = ["L4_TABLES", "SHIELD_GUARD_PREFIXES"];

/// Temporary pins of maps of maps, for the time of loading the object.
pub struct MapInMapPins {
    pins: Vec<(&'static str, PathBuf)>,
    /// Directory of the pins, where it was made for them. One that an administrator has prepared for a user stays.
    created_dir: Option<PathBuf>,
}

impl MapInMapPins {
    /// Makes and pins all maps of maps, empty.
    pub fn all() -> io::Result<Self> {
        Self::of(&MAPS_OF_MAPS)
    }

    /// Makes and pins the named maps of maps, empty.
    pub(super) fn of(names: &[&'static str]) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (dir, is_new) = pins::make_root()?;
        let mut outer = Self {
            pins: Vec::new(),
            created_dir: is_new.then(|| dir.clone()),
        };
        for &name in names {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = dir.join(format!("load-{}-{number}", std::process::id()));
            // A killed process may have left a pin under our name.
            let _ = std::fs::remove_file(&path);
            let map = create(name)?;
            if let Err(error) = map::pin(&map, &path) {
                if error.kind() != io::ErrorKind::NotFound {
                    return Err(error);
                }
                // A concurrent load has failed in between, and has removed the empty directory.
                pins::make_root()?;
                map::pin(&map, &path)?;
            }
            outer.pins.push((name, path));
        }
        Ok(outer)
    }

    /// Tells the loader to use the pinned maps.
    pub fn set_pins<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        for (name, path) in &self.pins {
            loader.map_pin_path(name, path);
        }
    }
}

impl Drop for MapInMapPins {
    fn drop(&mut self) {
        for (_, path) in &self.pins {
            let _ = std::fs::remove_file(path);
        }
        // Fails, which is intended, if something else is in the directory by now.
        if let Some(dir) = &self.created_dir {
            let _ = std::fs::remove_dir(dir);
        }
    }
}

/// Pins an empty map of tables of hosts at `path`, unless there is one.
pub(super) fn pin_tables(path: &Path) -> io::Result<()> {
    pins::mount_bpf()?;
    if path.exists() {
        return Ok(());
    }
    map::pin(&create("L4_TABLES")?, path)
}

/// Returns value size and flags of the arrays that a map of maps holds; `None` for other maps.
pub(in crate::kernel) fn inner_shape(name: &str) -> Option<(u32, u32)> {
    match name {
        "L4_TABLES" => Some((TABLE_BYTES as u32, map::BPF_F_MMAPABLE)),
        "SHIELD_GUARD_PREFIXES" => Some((size_of::<Node>() as u32, BPF_F_INNER_MAP | map::BPF_F_MMAPABLE)),
        _ => None,
    }
}

fn create(name: &'static str) -> io::Result<OwnedFd> {
    if name == "L4_TABLES" {
        let like = map::create_array("l4_slots", TABLE_BYTES as u32, 1, map::BPF_F_MMAPABLE)?;
        return map::create_array_of_maps(name, MAX_TABLES, &like);
    }
    map::create_array_of_maps(name, MAX_PREFIX_TABLES, &create_prefix_table(1)?)
}

/// Makes a table of prefixes with `nodes` empty nodes.
pub(super) fn create_prefix_table(nodes: u32) -> io::Result<OwnedFd> {
    map::create_array(
        "shield_nodes",
        size_of::<Node>() as u32,
        nodes,
        BPF_F_INNER_MAP | map::BPF_F_MMAPABLE,
    )
}

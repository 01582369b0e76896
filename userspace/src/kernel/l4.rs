//! Layer-4 services: their programs and maps.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use signalbox_common::l4::abi::{MAX_TABLES, SLOTS};

use super::map;

/// Bytes of a table.
pub const TABLE_BYTES: usize = 2 * (SLOTS as usize).next_multiple_of(4);

/// A table in the kernel, to be swapped in.
pub fn new_table(slots: &[u8]) -> io::Result<OwnedFd> {
    assert_eq!(slots.len(), TABLE_BYTES);
    let map = map::create_array("l4_slots", TABLE_BYTES as u32, 1, map::MMAPABLE)?;
    map::update_bytes(&map, &0u32, slots)?;
    Ok(map)
}

/// Pins the map of tables at `path`, empty, unless there is one: the object's own definition of it is a place holder.
pub fn pin_tables(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let like = map::create_array("l4_slots", TABLE_BYTES as u32, 1, map::MMAPABLE)?;
    map::pin(&map::create_array_of_maps("L4_TABLES", MAX_TABLES, &like)?, path)
}

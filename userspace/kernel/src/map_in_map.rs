//! Maps of maps: made and pinned here, and taken by the loader from there, because the object's own definitions of them
//! are placeholders. A definition in the object would need BTF, whose line numbers the verifier refuses wherever the code
//! has an empty piece of assembly.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use signalbox_common::l4::abi::{MAX_TABLES, SLOTS};
use signalbox_common::shield::abi::MAX_PREFIX_TABLES;
use signalbox_common::shield::prefixes::Node;

use crate::map;
use crate::pins::bpffs::mount_bpf;

/// Map flag `BPF_F_INNER_MAP`: tables of different lengths may be in one outer map (kernel 5.10).
const BPF_F_INNER_MAP: u32 = 1 << 12;

/// Size of a service's table in bytes.
pub const TABLE_BYTES: usize = 2 * (SLOTS as usize).next_multiple_of(4);

/// Pins an empty map of tables of hosts at `path`, unless there is one.
pub(crate) fn pin_tables(path: &Path) -> io::Result<()> {
    mount_bpf()?;
    if path.exists() {
        return Ok(());
    }
    map::pin(&create("L4_TABLES")?, path)
}

/// Returns value size and flags of the arrays that a map of maps holds; `None` for other maps.
pub(crate) fn inner_shape(name: &str) -> Option<(u32, u32)> {
    match name {
        "L4_TABLES" => Some((TABLE_BYTES as u32, map::BPF_F_MMAPABLE)),
        "SHIELD_GUARD_PREFIXES" => Some((size_of::<Node>() as u32, BPF_F_INNER_MAP | map::BPF_F_MMAPABLE)),
        _ => None,
    }
}

pub(crate) fn create(name: &str) -> io::Result<OwnedFd> {
    if name == "L4_TABLES" {
        let like = map::create_array("l4_slots", TABLE_BYTES as u32, 1, map::BPF_F_MMAPABLE)?;
        return map::create_array_of_maps(name, MAX_TABLES, &like);
    }
    map::create_array_of_maps(name, MAX_PREFIX_TABLES, &create_prefix_table(1)?)
}

/// Makes a table of prefixes with `nodes` empty nodes.
pub(crate) fn create_prefix_table(nodes: u32) -> io::Result<OwnedFd> {
    map::create_array(
        "shield_nodes",
        size_of::<Node>() as u32,
        nodes,
        BPF_F_INNER_MAP | map::BPF_F_MMAPABLE,
    )
}

//! Names that flows refer to by number. No program reads them; they are pinned beside the flows.

use aya_ebpf::{macros::map, maps::HashMap};
use signalbox_common::cut::flow::{MAX_NAMES, Name};

const BPF_F_NO_PREALLOC: u32 = 1;

/// Names of hosts, listeners, routes and services by the numbers that flows hold.
///
/// - Entry: number -> text, parts separated by NUL
/// - Writer: datapath/cut/registry.rs, reconcile/l4/apply.rs; kernel/src/cut/carry_over.rs, kernel/src/l4/carry_over.rs
/// - Reader: the same files in the next process; no program
/// - Size: 65536; pinned by cut_through and by layer4: another process must know the meaning of numbers in flows
#[map]
pub static ID_NAMES: HashMap<u32, Name> = HashMap::pinned(MAX_NAMES, BPF_F_NO_PREALLOC);

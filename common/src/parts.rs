//! Parts of programs that can be left out where a kernel refuses the whole.
//!
//! The object has them as the constant `PARTS` of its read-only data. Userspace writes it before the programs are
//! loaded, and the verifier never looks at a part that is left out: to it the branch is dead
//! (`kernel/bpf/verifier.c`, `bpf_map_is_rdonly`, Linux 5.5).

/// Tier `cut` for IPv6 connections; without it they are carried by other tiers.
pub const CUT_V6: u32 = 1;
/// Layer-4 services; without this part the programs run the shield alone.
pub const SERVICES: u32 = 1 << 1;
/// The shield; without this part the programs run layer-4 services alone.
pub const SHIELD: u32 = 1 << 2;
/// All parts.
pub const ALL: u32 = CUT_V6 | SERVICES | SHIELD;
/// Symbol of the constant in the object's read-only data.
pub const SYMBOL: &str = "PARTS";

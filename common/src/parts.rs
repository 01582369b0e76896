//! Parts of programs that can be left out where a kernel refuses the whole.
//!
//! The object has them as the constant `PARTS` of its read-only data. Userspace writes it before the programs are
//! loaded, and the verifier never looks at a part that is left out: to it the branch is dead
//! (`kernel/bpf/verifier.c`, `bpf_map_is_rdonly`, Linux 5.5).

/// Tier `cut` for IPv6 connections; without it they are carried by other tiers.
pub const CUT_V6: u32 = 1;
/// Layer-4 services; without them the shield is there alone.
pub const SERVICES: u32 = 1 << 1;
/// The shield; without it layer-4 services are there alone.
pub const SHIELD: u32 = 1 << 2;
/// Everything.
pub const ALL: u32 = CUT_V6 | SERVICES | SHIELD;
/// The name of the constant in the object.
pub const SYMBOL: &str = "PARTS";

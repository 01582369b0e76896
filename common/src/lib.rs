//! The kernel ABI of signalbox: everything that both an eBPF program and userspace must agree on.
//!
//! Owns: map keys and values, ids, limits, the table of [`Reason`]s, the hash, and the programs' decisions about
//! packets. Host tests run these decisions: [`cut`], [`l4`] and [`shield`], above the code that they share in [`net`].
//! Never: other logic that only one side needs. Called by `ebpf` (no_std, verifier-checked) and by `core` and
//! `userspace` (feature `user`).
//!
//! Map values are `#[repr(C)]` with explicit padding and a size asserted at compile time; they hold no `bool`,
//! `Option` or Rust enum, because the kernel and another version of the program read the same bytes.
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]
#![cfg_attr(not(test), no_std)]
#![warn(missing_docs)]

pub mod credit;
pub mod cut;
pub mod hash;
pub mod l4;
pub mod layout;
pub mod net;
pub mod parts;
pub mod peek;
pub mod reason;
pub mod shield;
pub mod sketch;
pub mod steer;

pub use reason::Reason;

/// Version of the maps' layout, carried by everything that is pinned or handed over between processes. The rules for
/// changes are those of [`layout`].
#[cfg(not(feature = "next_abi"))]
pub const ABI_VERSION: u32 = 10;
/// Version of the maps in the tests of upgrades.
#[cfg(feature = "next_abi")]
pub const ABI_VERSION: u32 = 11;

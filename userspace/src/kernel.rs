//! The kernel's side: loading the eBPF object, attaching programs, writing maps. Nothing else imports aya.
//!
//! Everything here degrades: without the rights or the kernel for it, listeners bind plainly and flows stay on
//! `splice` and `copy`, and [`Kernel::degraded`] says why.

pub mod counters;
pub mod cut;
pub mod l4;
mod layout;
pub mod map;
pub mod netlink;
pub mod object;
pub mod rights;
pub mod sockmap;
pub mod steer;
pub mod verifier;
pub mod version;

pub use cut::Cut;
pub use object::Kernel;

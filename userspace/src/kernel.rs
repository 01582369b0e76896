//! Access to the kernel: loads the eBPF object, attaches programs, writes maps. Nothing else imports aya.
//!
//! Everything here degrades: where rights or kernel do not suffice, listeners bind plainly and flows stay on `splice`
//! and `copy`, and [`Kernel::degraded`] says why.

pub mod address;
pub mod capabilities;
pub mod counters;
pub mod cut;
mod former_names;
pub mod l4;
mod layout;
pub mod map;
pub mod netlink;
pub mod object;
pub mod sockmap;
pub mod steer;
pub mod verifier;
pub mod version;

pub use cut::Cut;
pub use object::Kernel;

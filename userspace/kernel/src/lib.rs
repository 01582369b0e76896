//! Access to the kernel: loads the eBPF objects, attaches programs, writes maps. Nothing else imports aya.
//!
//! Everything here degrades: where rights or the kernel do not suffice, listeners bind plainly, flows stay on `splice`
//! and `copy`, and [`Kernel::degraded`] gives the reason.

pub mod address;
mod attach;
mod attached;
pub mod capabilities;
pub mod conntrack;
pub mod counters;
pub mod cut;
pub mod detach;
pub mod error;
pub mod foreign;
pub mod interfaces;
mod kernel;
pub mod l4;
pub mod map;
pub mod map_in_map;
pub mod names;
pub mod netlink;
pub mod object;
pub mod packet_filter;
pub mod packet_sockets;
pub mod peek;
pub mod pins;
pub mod sock_diag;
pub mod sockmap;
pub mod steer;
pub mod verifier;
pub mod version;

pub use attach::has_tcx;
pub use cut::Cut;
pub use error::KernelError;
pub use kernel::Kernel;
pub use peek::Peek;

//! Kernel peek: the first data of a connection is routed by a TC program, and no socket of this machine takes part.
//!
//! A SYN is answered by a cookie ([`cookie`]) and not stored. The acknowledgement number of the first data proves that
//! the client has got the cookie. The data is read ([`request`], [`hello`]) and its name looked up. The packet becomes
//! the SYN to a host, and the host's SYN-ACK becomes the data. Any connection that is not understood here is given to
//! the kernel's TCP and so to userspace, which decides as usual.

pub mod abi;
mod client;
mod config;
pub mod cookie;
pub mod cookie_key;
pub mod hello;
pub mod name;
mod passed_up;
pub mod proxy;
pub mod request;

/// Outcome of a look at the first data of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum KernelPeek {
    /// Nothing is decided yet: the next step goes on.
    Open = 0,
    /// The name is known, and userspace would find the same.
    Found = 1,
    /// More bytes are needed.
    Incomplete = 2,
    /// Userspace decides.
    PassUp = 3,
}

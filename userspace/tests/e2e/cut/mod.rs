//! Tier `cut`: flows that the kernel carries without a socket of the balancer.

mod bytes;
mod clsact;
mod crowd;
mod ends;
mod hostile;
mod life;
mod limits;
mod links;
mod loss;
mod mss;
mod options;
mod path;
pub(crate) mod peek;
mod storm;
mod tier;
mod windows;

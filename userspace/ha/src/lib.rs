//! The supervisor of virtual addresses, `signalbox ha run`: a process beside `signalbox run`, since addresses must leave
//! the node when that one dies.
//!
//! Owns: keepalived's process, its files, addresses that it leaves behind, checks, the notify script, the rule of the
//! firewall. Never: the decision which node has which priority, and the text for keepalived ([`signalbox_core::availability::ha`]).

mod address;
mod announce;
pub mod check;
mod directory;
mod eligibility;
mod firewall;
mod follow;
mod interface;
mod keepalived;
mod notices;
mod planned;
mod program;
mod run;
mod settings;
mod watch;

pub use directory::{DEFAULT_DIRECTORY, Directory};
pub use interface::{of_default_route, own_address};
pub use run::{Options, run};
pub use settings::Settings;

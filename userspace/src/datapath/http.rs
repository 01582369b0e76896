//! Listeners with `routing: request`. Each request of a client's connection is routed separately, from the snapshot
//! that is then current. It goes to the host over a connection that other clients' requests share.
//!
//! ```text
//! client ─► exchange ─┬─► host: a kept, shared or new connection
//!                     ├─► message: request and answer, in both directions
//!                     └─► tunnel, after a 101; cut, where the kernel carries the rest
//! ```
//!
//! Each client connection is one task, without spawn, lock or channel. With HTTP/2, which is the crate h2's, each stream
//! is one.
//!
//! Folders from the lowest to the highest: `leg`; `message` and `host`; `exchange`; `client`. `message` and `host` do not
//! know each other, and neither knows `client`. The other modules here are below all of them.
//!
//! Sockets, time limits and bytes in flight belong to this module. `signalbox_core::wire::http1` decides where a message ends
//! and which step is next; its `Turn` is driven here.

pub(super) mod client;
pub(super) mod drain;
mod exchange;
pub(super) mod host;
mod host_room;
mod leg;
mod message;
pub(super) mod pages;
pub(super) mod timers;

pub(super) use client::{serve, serve_http, serve_https};
pub use exchange::AMBIGUOUS_PATH;
pub(super) use leg::http2::is_not_http2;

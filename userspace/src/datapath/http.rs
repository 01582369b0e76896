//! Listeners with `routing: request`. Each request of a client's connection is routed separately, from the snapshot
//! that is then current. It goes to the host over a connection that other clients' requests share.
//!
//! ```text
//! conn ─► head ─► exchange ─► upstream ─► pool        one task per client connection, no spawn, lock or channel
//!                    └─► carry: request + answer      both directions in one future
//!                          └─► tunnel                 after a 101: the relay of other listeners
//! http2 ─► exchange, a task for each stream           HTTP/2 is the crate h2's, on the client's side and the host's
//! ```
//!
//! Sockets, time limits and bytes in flight belong to this module. `signalbox_core::wire::http1` decides where a message ends
//! and which step is next; its `Turn` is driven here.

mod admission;
mod after;
mod answer;
mod attempt;
mod body;
mod buffered_leg;
mod carry;
mod client;
mod client_certificate;
mod conn;
mod counted;
mod cut_plan;
mod exchange;
mod exchange_plan;
mod finish;
mod handshake;
pub(super) mod handshake_slots;
mod head;
mod host_dialer;
mod host_room;
mod host_tls;
mod host_versions;
mod http2;
mod identity;
mod last_request;
mod late_cut;
mod leg;
mod leg_a;
mod linger;
mod long_answer;
mod outbox;
pub(super) mod pages;
mod pass;
pub(super) mod pool;
mod reached;
mod refusal;
mod request;
mod request_path;
mod request_plan;
mod request_route;
pub(super) mod timers;
mod tls_policy;
mod tls_tunnel;
mod tunnel;
mod upstream;
mod websocket;

pub(super) use conn::{serve, serve_http};
pub(super) use handshake::serve_https;
pub(super) use http2::is_not_http2;
pub use request_path::AMBIGUOUS_PATH;

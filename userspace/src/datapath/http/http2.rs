//! HTTP/2 from clients: the crate h2 speaks it, and each stream becomes an HTTP/1.1 exchange like any other.
//!
//! ```text
//! connection ─► Driver ─► exchange, a task for each stream, whose client is a StreamLeg:
//!                           request's body ◄─ h2, read when the host takes it
//!                           answer ─► AnswerWriter ─► h2, as far as the client's window goes
//! ```
//!
//! Memory is bounded: what the windows have no room for waits at the host.

mod answer;
mod connection;
mod drive;
mod io;
mod stream;
mod stream_leg;
mod streams;

pub(super) use stream_leg::StreamLeg;

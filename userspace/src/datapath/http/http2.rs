//! HTTP/2 from clients: hyper speaks it, and each stream becomes an HTTP/1.1 exchange like any other.
//!
//! ```text
//! connection ─► hyper ─► service ─┬─► exchange, a task: StreamLeg reads the request's body, writes to Pipe
//!                                 └─► Answer reads Pipe ─► hyper
//! ```
//!
//! Memory is bounded: a stream's body is taken from hyper when the host takes it, and a pipe holds [`pipe::ROOM`].

mod answer;
mod answer_body;
mod connection;
mod io;
mod pipe;
mod service;
mod stream_leg;
mod streams;

pub(super) use stream_leg::StreamLeg;

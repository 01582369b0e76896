//! HTTP/2, by the crate h2. Each stream of a client becomes an HTTP/1.1 exchange like any other. If the host speaks
//! HTTP/2, the exchange becomes a separate stream there.
//!
//! ```text
//! connection ─► Driver ─► exchange, a task for each stream, whose client is a StreamLeg
//!                           request's body ◄─ BodyReader ◄─ h2, read when the host takes it
//!                           answer ─► AnswerWriter ─► h2, as far as the client's window goes
//! exchange ─► HostStreamLeg: a stream of a SharedHost, driven by a separate task
//!                           request ─► BodyWriter ─► h2, as far as the host's window goes
//!                           answer ◄─ BodyReader ◄─ h2, read when the client takes it
//! ```
//!
//! Memory is bounded: bytes that do not fit the windows wait at the sender.

mod answer;
mod body_reader;
mod body_writer;
mod connection;
mod drive;
mod fields;
mod host_drive;
mod host_leg;
mod host_request;
mod io;
mod shared_host;
mod stream;
mod stream_leg;
mod streams;

pub(super) use host_leg::{HostStreamLeg, is_refused, reset_reason};
use shared_host::NotHttp2;
pub(super) use shared_host::SharedHost;
pub(super) use stream_leg::StreamLeg;

/// Whether an error means that a host does not speak HTTP/2 though it should.
pub(in crate::datapath) fn is_not_http2(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<NotHttp2>());
    inner.is_some()
}

//! HTTP/2, by the crate h2. A stream of a client, or to a host, is a leg of an HTTP/1.1 exchange like any other.
//!
//! ```text
//! StreamLeg: a stream of a client's connection
//!     request's body ◄─ BodyReader ◄─ h2, read when the host takes it
//!     answer ─► AnswerWriter ─► h2, as far as the client's window goes
//! HostStreamLeg: a stream of a SharedHost, driven by a separate task
//!     request ─► BodyWriter ─► h2, as far as the host's window goes
//!     answer ◄─ BodyReader ◄─ h2, read when the client takes it
//! ```
//!
//! Memory is bounded: bytes that do not fit the windows wait at the sender.

pub(in crate::datapath::http) mod answer;
mod body_reader;
mod body_writer;
mod fields;
mod host_drive;
mod host_leg;
mod host_request;
pub(in crate::datapath::http) mod io;
mod shared_host;
mod stream_leg;

pub(in crate::datapath::http) use host_leg::{HostStreamLeg, is_refused, reset_reason};
use shared_host::NotHttp2;
pub(in crate::datapath::http) use shared_host::SharedHost;
pub(in crate::datapath::http) use stream_leg::StreamLeg;

/// Whether an error means that a host does not speak HTTP/2 though it should.
pub(in crate::datapath) fn is_not_http2(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<NotHttp2>());
    inner.is_some()
}

//! Streams of HTTP/2 (RFC 9113) as the HTTP/1.1 messages that they become: the rest of the balancer knows only these.
//!
//! Owns: the heads of a client's request and of a host's answer in HTTP/1.1 text, what is refused on the way, and how
//! long the body is. Never: frames, header compression, flow control. The text is parsed by [`crate::http1::parse`] like any other, so that whatever
//! this module should let through by mistake meets the same rules.

pub mod answer;
pub mod fault;
pub mod fields;
pub mod malformed;
pub mod request;

//! Streams of HTTP/2 (RFC 9113) as the HTTP/1.1 messages that they become: the rest of the balancer knows only these.
//!
//! Owns: the heads of a client's request and of a host's answer in HTTP/1.1 text, the refusals on the way, and the
//! length of the body. Never: frames, header compression, flow control. [`crate::wire::http1::parse`] parses the text like
//! any other, so its rules also catch anything that this module lets through by mistake.

pub mod answer;
pub mod fault;
pub mod fields;
pub mod malformed;
pub mod request;

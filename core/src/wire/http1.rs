//! HTTP/1.1 as an intermediary speaks it (RFC 9110, RFC 9112): heads, body framing, chunks, the head that is sent on,
//! and the course of an exchange.
//!
//! Owns: which bytes are a message, how long it is, which parts are sent on, and the fate of both connections. Never: a
//! socket, a clock, a copy of a body. Everything works on ranges of the caller's buffer. Bytes that another recipient
//! could read differently are refused, because requests are smuggled that way (RFC 9112, section 11.2).
//!
//! [`parse`] -> [`head`] -> [`framing`] -> [`edit`] -> [`chunked`], driven by [`turn`].

pub mod authority;
pub mod byte_range;
pub mod chunked;
pub mod connection;
pub mod edit;
pub mod fields;
pub mod framing;
pub mod grammar;
pub mod head;
pub mod head_error;
pub mod limits;
pub mod method;
pub mod parse;
pub mod repair;
pub mod target;
pub mod turn;

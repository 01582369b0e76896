//! Decisions of a proxy by the fields and the path of a request, of any version of HTTP.
//!
//! Pure: functions of bytes that [`crate::wire::http1::parse`] has checked. Called for each request by the datapath.

pub mod authentication;
pub mod client_certificate;
pub mod cookie;
pub mod forwarded;
pub mod path;
pub mod path_reading;

//! Decisions of a proxy by the fields and the path of a request, of any version of HTTP.
//!
//! Pure: functions of bytes that [`crate::http1::parse`] has checked. Called for each request by the datapath.

pub mod client_certificate;
pub mod cookie;
pub mod forwarded;
pub mod last_request;
pub mod path;
pub mod path_reading;

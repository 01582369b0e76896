//! TLS as far as no cryptography is needed: which certificate answers for which name, and whether HTTP/2 may be offered
//! with it.

pub mod coalescing;
pub mod names;
pub mod offer;

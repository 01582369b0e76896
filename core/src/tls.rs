//! TLS as far as no cryptography is needed: which certificate answers for which name, whether HTTP/2 may be offered
//! with a certificate, and what a profile allows.

pub mod coalescing;
pub mod names;
pub mod offer;
pub mod profile;

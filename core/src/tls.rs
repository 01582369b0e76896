//! TLS as far as no cryptography is needed: which certificate answers for which name, whether HTTP/2 may be offered
//! with a certificate, the content of profiles, and whose handshake is next.

pub mod coalescing;
pub mod handshake_queue;
pub mod names;
pub mod offer;
pub mod profile;

//! Hosts that are spoken to in HTTP/2: by ALPN, or with prior knowledge.

mod grpc;
mod hostile;
mod malformed;
mod peers;
mod streams;
mod trailers;

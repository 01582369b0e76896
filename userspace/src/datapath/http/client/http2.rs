//! Connections of clients that speak HTTP/2. [`drive`] accepts the streams of one connection; each is an exchange in a
//! separate task, whose client is a `StreamLeg`.

mod connection;
mod drive;
mod stream;
mod streams;

//! Replication of flows between two balancers: what happens to connections when virtual addresses move.

mod crash;
mod keepalived;
mod moves;
mod pair;
mod peers;
mod rates;
mod services;
mod websockets;

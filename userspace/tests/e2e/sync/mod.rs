//! Replication of flows between two balancers: what happens to connections when virtual addresses move.

mod addresses;
mod config;
mod crash;
mod failures;
mod fake_peers;
mod keepalived;
mod keepalived_failures;
mod life;
mod moves;
mod network;
mod pair;
mod peers;
mod rates;
mod services;
mod speakers;
mod websockets;

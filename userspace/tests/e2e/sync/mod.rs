//! Replication of flows between balancers: the fate of connections when virtual addresses move.

mod addresses;
mod config;
mod cookies;
mod crash;
mod failures;
mod fake_peers;
mod keepalived;
mod keepalived_failures;
mod kernel_peek;
mod life;
mod moves;
mod network;
mod nodes;
mod pair;
mod peers;
mod planned;
mod rates;
mod roll_out;
mod services;
mod speakers;
mod websockets;
mod young;

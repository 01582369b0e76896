//! Replication of cut flows between two balancers: what happens to connections when virtual addresses move.

mod moves;
mod pair;

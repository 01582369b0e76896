//! High availability: two balancers with keepalived, whose virtual addresses move when something fails.

mod address;
mod commands;
mod config;
mod failures;
mod preemption;
mod scene;

//! High availability: two balancers with keepalived, whose virtual addresses move when something fails.

mod address;
mod bgp;
mod commands;
mod config;
mod failures;
mod openshift;
mod preemption;
mod scene;

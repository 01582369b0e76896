//! Tests for every kernel that `cargo xtask test --kernel` boots. [`everywhere`] and [`peek`] run on the host as well;
//! the others need modules that the host may lack, or a machine of their own, and run in machines alone.

mod everywhere;
mod links;
mod numbered;
mod offload;
mod old;
mod peek;
mod two;

//! Tests for every kernel that `cargo xtask test --kernel` boots. [`everywhere`] and [`peek`] run on the host too; the
//! others need modules that the host may lack, or a separate machine, and run only in machines.

mod everywhere;
mod links;
mod numbered;
mod offload;
mod old;
mod peek;
mod two;

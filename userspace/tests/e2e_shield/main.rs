//! The shield with real connections: floods, lists, limits, and what is left of it while signalbox is dead.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod flood;
#[path = "../lab/mod.rs"]
mod lab;
mod life;
mod limits;
mod lists;
mod scene;
mod shield;

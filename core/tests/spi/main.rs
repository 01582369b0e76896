//! The routing SPI: what events say, what is made of a series of them, and what a cluster gets of it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod events;
mod folding;
mod learning;
mod naive;

//! Tests of the eBPF programs in the running kernel: the verifier's verdict on each, their effect on single packets
//! (`BPF_PROG_TEST_RUN`), and their maps. No other process takes part.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

// Parts that the tests share.
mod logged;
mod namespace;
mod ordinary;

// The tests.
mod cut;
mod cut_packets;
mod interfaces;
mod l4_packets;
mod object;
mod relay;
mod rights;
mod steer;
mod syn;

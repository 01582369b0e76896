//! End-to-end tests: the product's own binary between real clients and real servers, in network namespaces that each
//! test makes and removes. One program for all of them, so that the laboratory is compiled and linked once;
//! `.config/nextest.toml` says which tests must not run beside others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

// Parts that the tests share.
mod kube_api;
mod lab;

// The tests.
mod connection;
mod cut;
mod ha;
mod http;
mod kernel_peek;
mod kube;
mod l4;
mod lab_itself;
mod life;
mod machines;
mod migrate;
mod operator;
mod rotate;
mod shield;
mod sources;
mod sync;
mod thesis;

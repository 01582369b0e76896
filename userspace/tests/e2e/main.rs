//! End-to-end tests: the product's own binary between real clients and real servers, in network namespaces that each
//! test makes and removes. One program for all of them, so that the laboratory is compiled and linked once;
//! `.config/nextest.toml` says which tests may not run beside others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

// Parts that the tests share.
mod kube_api;
mod lab;

// The tests.
mod admin;
mod adverse;
mod apiserver;
mod applications;
mod coming_from;
mod connection_log;
mod crowd;
mod cut;
mod cut_bytes;
mod cut_clsact;
mod cut_crowd;
mod cut_ends;
mod cut_hostile;
mod cut_lab;
mod cut_life;
mod cut_limits;
mod cut_loss;
mod cut_options;
mod cut_path;
mod cut_peek;
mod cut_storm;
mod cut_windows;
mod dns;
mod etcd;
mod events;
mod explain;
mod export;
mod exposed;
mod faults;
mod figures;
mod h2c;
mod ha;
mod health;
mod http2_hosts;
mod http_request;
mod https;
mod kept;
mod kernel_peek;
mod kube;
mod kube_shards;
mod l4;
mod l4_crowd;
mod l4_servers;
mod lab_itself;
mod labels;
mod last_request;
mod late_cut;
mod learn;
mod lifecycle;
mod machines;
mod migrate;
mod migration;
mod online;
mod peek;
mod pins;
mod prometheus;
mod refused;
mod restart;
mod rights;
mod rotate;
mod rotate_machine;
mod shield;
mod source_kube;
mod source_kube_annotations;
mod source_kube_back;
mod source_kube_choice;
mod source_kube_storm;
mod source_kube_ways;
mod source_routing_spi;
mod sources;
mod subset;
mod successor;
mod sync;
mod thesis;
mod tiers;
mod top;
mod ui;
mod upgrades;

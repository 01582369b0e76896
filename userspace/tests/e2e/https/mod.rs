//! Listeners with `protocol: https`.

mod aliases;
mod certificates;
mod clients;
mod edge;
mod passthrough;
mod plain;
mod reencrypt;
mod scene;
mod tickets;

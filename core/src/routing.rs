//! The choice for a connection: route, cluster, host; and what changes that choice.

pub mod affinity;
pub mod balance;
pub mod diff;
pub mod ejection;
pub mod health;
pub mod last_request;
pub mod maglev;
pub mod obstacle;
pub mod plan;
pub mod rotation;
pub mod route_table;
pub mod schedule;
pub mod shown;
pub mod subset;
pub mod tls;
pub mod view;

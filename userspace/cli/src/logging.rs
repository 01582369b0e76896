//! Logging: plain text on a terminal, otherwise JSON. One line per change of state, none per connection (see
//! `access_log`).

use std::io::IsTerminal as _;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Starts logging to standard error. `filter` sets levels, for all or single crates: `info`, `warn,signalbox=debug`.
pub fn init(filter: &str) -> Result<(), String> {
    let filter: Targets = filter
        .parse()
        .map_err(|error| format!("the log filter {filter:?} is not valid: {error}"))?;
    let registry = tracing_subscriber::registry().with(filter);
    let started = if std::io::stderr().is_terminal() {
        registry
            .with(
                tracing_subscriber::fmt::layer()
                    .with_writer(std::io::stderr)
                    .with_target(false),
            )
            .try_init()
    } else {
        registry
            .with(
                tracing_subscriber::fmt::layer()
                    .with_writer(std::io::stderr)
                    .json()
                    .flatten_event(true),
            )
            .try_init()
    };
    // `try_init` also forwards `log` records (aya, rustls) to `tracing`.
    started.map_err(|error| error.to_string())
}

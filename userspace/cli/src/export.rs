//! `signalbox export`.

use std::process::ExitCode;

use clap::ValueEnum;
use hyper::Method;
use serde_json::Value;

use super::client::{self, SocketArgs};

#[derive(clap::Args)]
pub(super) struct ExportArgs {
    /// Format of the table.
    #[arg(long)]
    format: ExportFormat,
    /// Whether the hosts' http ports or their https ports (tls) are exported.
    #[arg(long, default_value = "http")]
    protocol: ExportProtocol,
    #[command(flatten)]
    at: SocketArgs,
}

/// A form of the table.
#[derive(Clone, Copy, ValueEnum)]
enum ExportFormat {
    /// The whole table: names, clusters, weights, hosts and their health.
    Json,
    /// A map of names to backends, for map_str.
    HaproxyMap,
    /// A map of wildcards to backends, for map_end.
    HaproxyWildcards,
    /// The backends that both maps name.
    HaproxyBackends,
    /// A map of names and wildcards to upstreams, and the upstreams.
    NginxMap,
}

#[derive(Clone, Copy, ValueEnum)]
enum ExportProtocol {
    Http,
    Tls,
}

/// Returns a value's name on the command line, which is also its name in the API.
fn name(value: impl ValueEnum) -> String {
    let known = value.to_possible_value();
    known.map_or_else(String::new, |value| value.get_name().to_owned())
}

pub(super) fn run(export: &ExportArgs) -> anyhow::Result<ExitCode> {
    let (format, protocol) = (name(export.format), name(export.protocol));
    let path = format!("/api/v1/export?format={format}&protocol={protocol}");
    match client::change(&export.at.socket, &Method::GET, &path, None)? {
        Value::String(text) => print!("{text}"),
        // A table without a name is neither JSON nor text, so nothing is printed.
        Value::Null => {}
        all => println!("{all:#}"),
    }
    Ok(ExitCode::SUCCESS)
}

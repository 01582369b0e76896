//! `signalbox flows`.

use std::process::ExitCode;

use signalbox_api::flows::{FlowsAnswer, ServiceFlowsAnswer};

use super::show::{self, TableArgs};
use signalbox_sources::client::percent_encoded;

/// Show the flows of a running signalbox.
#[derive(clap::Args)]
pub(super) struct FlowsArgs {
    #[command(flatten)]
    table: TableArgs,
    /// Print at most this many.
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Only flows to this host.
    #[arg(long)]
    host: Option<String>,
    /// Only flows to this cluster.
    #[arg(long)]
    cluster: Option<String>,
    /// Only flows of this tier.
    #[arg(long)]
    tier: Option<String>,
    /// Only flows of this route.
    #[arg(long)]
    route: Option<String>,
    /// Only flows of this listener.
    #[arg(long)]
    listener: Option<String>,
    /// Only flows of this client: an address, or a prefix such as 192.0.2.0/24.
    #[arg(long)]
    client: Option<String>,
    /// Show the flows of this layer-4 service instead of connections.
    #[arg(long, conflicts_with_all = ["host", "cluster", "tier", "route", "listener", "client"])]
    service: Option<String>,
}

pub(super) fn print(flows: &FlowsArgs) -> anyhow::Result<ExitCode> {
    let limit = flows.limit;
    if let Some(service) = &flows.service {
        let path = format!("/api/v1/services/{}/flows?limit={limit}", percent_encoded(service));
        return show::print(&path, &flows.table, |of: &ServiceFlowsAnswer, form| {
            show::rows(&of.service_flows, form)
        });
    }
    let filters = [
        ("host", &flows.host),
        ("cluster", &flows.cluster),
        ("tier", &flows.tier),
        ("route", &flows.route),
        ("listener", &flows.listener),
        ("client", &flows.client),
    ];
    let mut path = format!("/api/v1/flows?limit={limit}");
    for (key, value) in filters {
        if let Some(value) = value {
            path += &format!("&{key}={}", percent_encoded(value));
        }
    }
    show::print(&path, &flows.table, |of: &FlowsAnswer, form| {
        show::some_rows(&of.flows, of.total, form)
    })
}

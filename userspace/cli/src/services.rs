//! `signalbox services`: the layer-4 services and their hosts.

use std::process::ExitCode;

use signalbox_api::services::{ServiceHost, ServicesAnswer};

use super::show::{self, Column, TableArgs, TableRow, bytes};

/// Line of the table: a service, or a host of the service above.
#[derive(Debug, Default)]
pub(super) struct ServiceLine {
    pub(super) name: String,
    pub(super) protocol: Option<String>,
    listen: String,
    cluster: String,
    mode: String,
    flows: u32,
    /// Counts of a service: total flows, bytes in, bytes out.
    counts: Option<[u64; 3]>,
    /// Whether the line is that of a host.
    pub(super) is_host: bool,
}

impl TableRow for ServiceLine {
    const COLUMNS: &'static [Column<Self>] = &[
        ("SERVICE", |of| match of.is_host {
            true => format!("  {}", of.name).into(),
            false => (&of.name).into(),
        }),
        ("PROTOCOL", |of| of.protocol.as_ref().into()),
        ("LISTEN", |of| (&of.listen).into()),
        ("CLUSTER", |of| (&of.cluster).into()),
        ("MODE", |of| (&of.mode).into()),
        ("FLOWS", |of| of.flows.into()),
        ("TOTAL", |of| of.counts.map(|[total, ..]| total).into()),
        ("IN", |of| of.counts.map(|[_, inwards, _]| bytes(inwards)).into()),
        ("OUT", |of| of.counts.map(|[.., outwards]| bytes(outwards)).into()),
    ];
}

/// Prints services. The table has a line for each of their hosts.
pub(super) fn print(args: &TableArgs) -> anyhow::Result<ExitCode> {
    show::print("/api/v1/services", args, |answer: &ServicesAnswer, form| {
        form.with_notes(show::rows(&lines(answer), form), footnotes(answer))
    })
}

/// Returns a line for each service, and below it one for each host.
pub(super) fn lines(answer: &ServicesAnswer) -> Vec<ServiceLine> {
    let of_host = |host: &ServiceHost| ServiceLine {
        name: host.name.clone(),
        listen: address_text(host),
        cluster: format!("{:.1} %", host.share),
        mode: if host.reachable { "" } else { "unreachable" }.to_owned(),
        flows: host.flows,
        is_host: true,
        ..ServiceLine::default()
    };
    let mut lines = Vec::new();
    for service in &answer.services {
        let cluster = &service.cluster;
        let backup = service.backup.as_ref();
        lines.push(ServiceLine {
            name: service.name.clone(),
            protocol: Some(service.protocol.to_string()),
            listen: service.listen.join(" "),
            cluster: backup.map_or_else(|| cluster.clone(), |backup| format!("{cluster}, backup {backup}")),
            mode: service.mode.to_string(),
            flows: service.flows,
            counts: Some([service.flows_total, service.bytes_in, service.bytes_out]),
            is_host: false,
        });
        lines.extend(service.hosts.iter().map(of_host));
    }
    lines
}

/// Returns a host's address, with its port if that differs from the service's.
fn address_text(host: &ServiceHost) -> String {
    match host.port {
        Some(port) => std::net::SocketAddr::new(host.address, port).to_string(),
        None => host.address.to_string(),
    }
}

/// Returns lines about the programs' interfaces, the free ports of each range, and problems.
pub(super) fn footnotes(answer: &ServicesAnswer) -> Vec<String> {
    let hook = answer.hooks.iter();
    let mut notes: Vec<String> = hook
        .map(|on| format!("{} on {}: {}", on.hook, on.interface, on.why))
        .collect();
    for range in &answer.ranges {
        let (listen, used, kept, free) = (&range.listen, range.used, range.kept, range.free);
        notes.push(format!(
            "exposed at {listen}: {used} ports used, {kept} kept, {free} free"
        ));
        let taken = range.taken.iter();
        notes.extend(taken.map(|(port, who)| format!("! port {port} of {listen} is not exposed: {who} has it")));
    }
    for one in &answer.not_exposed {
        let (service, entry) = (&one.service, &one.entry);
        if let Some(reason) = &entry.reason {
            notes.push(format!("! {service} is not exposed: {reason}"));
        }
        let left_out = entry.left_out.iter();
        notes.extend(left_out.map(|(host, why)| format!("! {service} does not lead to {host}: {why}")));
    }
    notes.extend(answer.troubles.iter().map(|problem| format!("! {problem}")));
    notes
}

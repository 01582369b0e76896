//! `signalbox services`: the layer-4 services and their hosts.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::client;
use super::show::{self, TableArgs};

/// Prints services. The table has a line for each of their hosts.
pub(super) fn print(args: &TableArgs) -> anyhow::Result<ExitCode> {
    let ask = || client::get(&args.show.socket, "/api/v1/services");
    show::print_table(args, ask, |answer, form| {
        let table = show::table("services", &json!({ "services": lines(answer) }), form);
        form.with_notes(table, footnotes(answer))
    })
}

/// Returns a line for each service, and below it one for each host.
pub(super) fn lines(answer: &Value) -> Vec<Value> {
    let list = |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let mut lines = Vec::new();
    for service in list(answer, "services") {
        let hosts = list(&service, "hosts");
        let mut line = service;
        if let (Some(cluster), Some(backup)) = (line["cluster"].as_str(), line["backup"].as_str()) {
            line["cluster"] = format!("{cluster}, backup {backup}").into();
        }
        lines.push(line);
        for host in hosts {
            let share = host.get("share").and_then(Value::as_f64).unwrap_or(0.0);
            lines.push(json!({
                "name": format!("  {}", host.get("name").and_then(Value::as_str).unwrap_or_default()),
                "listen": address_text(&host),
                "mode": if host.get("reachable") == Some(&Value::Bool(true)) { "" } else { "unreachable" },
                "cluster": format!("{share:.1} %"),
                "flows": host.get("flows"),
            }));
        }
    }
    lines
}

/// Returns a host's address, with its port if that differs from the service's.
fn address_text(host: &Value) -> String {
    let address = host.get("address").and_then(Value::as_str).unwrap_or_default();
    match host.get("port").and_then(Value::as_u64) {
        Some(port) if address.contains(':') => format!("[{address}]:{port}"),
        Some(port) => format!("{address}:{port}"),
        None => address.to_owned(),
    }
}

/// Returns lines about the programs' interfaces, the free ports of each range, and problems.
pub(super) fn footnotes(answer: &Value) -> Vec<String> {
    let list = |key: &str| answer.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut notes: Vec<String> = list("hooks")
        .iter()
        .map(|on| format!("{} on {}: {}", text(on, "hook"), text(on, "interface"), text(on, "why")))
        .collect();
    for range in list("ranges") {
        let count = |key: &str| range.get(key).and_then(Value::as_u64).unwrap_or(0);
        let taken = range.get("taken").and_then(Value::as_object);
        notes.push(format!(
            "exposed at {}: {} ports used, {} kept, {} free",
            text(&range, "listen"),
            count("used"),
            count("kept"),
            count("free"),
        ));
        let taken = taken.into_iter().flatten();
        notes.extend(taken.map(|(port, who)| {
            format!(
                "! port {port} of {} is not exposed: {} has it",
                text(&range, "listen"),
                who.as_str().unwrap_or_default()
            )
        }));
    }
    for one in list("not_exposed") {
        let service = text(&one, "service");
        if let Some(reason) = one.get("reason").and_then(Value::as_str) {
            notes.push(format!("! {service} is not exposed: {reason}"));
        }
        let left_out = one.get("left_out").and_then(Value::as_object);
        let left_out = left_out.into_iter().flatten();
        notes.extend(left_out.map(|(host, why)| {
            format!(
                "! {service} does not lead to {host}: {}",
                why.as_str().unwrap_or_default()
            )
        }));
    }
    notes.extend(
        list("troubles")
            .iter()
            .filter_map(|problem| Some(format!("! {}", problem.as_str()?))),
    );
    notes
}

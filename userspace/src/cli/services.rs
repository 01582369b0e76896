//! `signalbox services`: what layer-4 services are doing.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::{Output, client, show};

/// Shows services; as a table with a line for each of their hosts.
pub(super) fn print(socket: &Path, output: Output) -> anyhow::Result<ExitCode> {
    let answer = client::get(socket, "/api/v1/services")?;
    if output != Output::Table {
        show::emit(&answer, output)?;
        return Ok(ExitCode::SUCCESS);
    }
    show::say(&show::table("services", &json!({ "services": lines(&answer) })))?;
    for line in footnotes(&answer) {
        show::say(&line)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A line for each service, and below it one for each host.
fn lines(answer: &Value) -> Vec<Value> {
    let list = |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let mut lines = Vec::new();
    for service in list(answer, "services") {
        let hosts = list(&service, "hosts");
        lines.push(service);
        for host in hosts {
            let share = host.get("share").and_then(Value::as_f64).unwrap_or(0.0);
            lines.push(json!({
                "name": format!("  {}", host.get("name").and_then(Value::as_str).unwrap_or_default()),
                "listen": host.get("address"),
                "mode": if host.get("reachable") == Some(&Value::Bool(true)) { "" } else { "unreachable" },
                "cluster": format!("{share:.1} %"),
                "flows": host.get("flows"),
            }));
        }
    }
    lines
}

/// Where the programs stand, and what is wrong.
fn footnotes(answer: &Value) -> Vec<String> {
    let list = |key: &str| answer.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut notes: Vec<String> = list("hooks")
        .iter()
        .map(|on| format!("{} on {}: {}", text(on, "hook"), text(on, "interface"), text(on, "why")))
        .collect();
    notes.extend(
        list("troubles")
            .iter()
            .filter_map(|trouble| Some(format!("! {}", trouble.as_str()?))),
    );
    notes
}

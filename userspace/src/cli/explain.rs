//! `signalbox explain` and `signalbox diff`, as text.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use hyper::Method;
use serde_json::Value;
use signalbox_api::weights::ChangesAnswer;
use signalbox_core::diff::{FieldChange, ModelChange};

use super::{OutputFormat, client, show};
use crate::source::client::percent_encoded;

pub(super) fn explain(
    host: &str,
    details: &[(&str, Option<String>)],
    socket: &Path,
    output: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let mut path = format!("/api/v1/explain?host={}", percent_encoded(host));
    for (key, value) in details {
        if let Some(value) = value {
            let _ = write!(path, "&{key}={}", percent_encoded(value));
        }
    }
    let answer = client::change(socket, &Method::GET, &path, None)?;
    match output {
        OutputFormat::Table => print!("{}", name_text(&answer)),
        _ => show::emit(&answer, output)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Formats the answer for an address and port: the service, listener and hosts there.
fn address_text(answer: &Value) -> String {
    let mut out = String::new();
    let at = text(&answer["address"]);
    let _ = match (answer["service"].as_str(), answer["listener"].as_str()) {
        (Some(service), _) => {
            let protocols: Vec<_> = list(&answer["protocols"]).map(text).collect();
            writeln!(out, "{at}: service {service}, {}", protocols.join(" and "))
        }
        (None, Some(listener)) => writeln!(out, "{at}: listener {listener}; explain a name to learn its hosts"),
        (None, None) => writeln!(out, "{at}: no listener and no layer-4 service has this address"),
    };
    if let Some(clash) = answer["clash"].as_str() {
        let _ = writeln!(out, "  {clash}");
    }
    if let Some(reason) = answer["shield"]["reason"].as_str() {
        let _ = writeln!(out, "  shield: {}: {reason}", text(&answer["shield"]["verdict"]));
    }
    for host in list(&answer["hosts"]) {
        let _ = write!(out, "  {} ({})", text(&host["name"]), text(&host["address"]));
        let _ = match host["takes_connections"].as_bool() {
            Some(true) => writeln!(out, " takes connections"),
            _ => writeln!(out, " takes none: {}", text(&host["reason"])),
        };
    }
    for (host, why) in answer["left_out"].as_object().into_iter().flatten() {
        let _ = writeln!(out, "  {host} is left out: {}", text(why));
    }
    out
}

pub(super) fn name_text(answer: &Value) -> String {
    if answer["address"].is_string() {
        return address_text(answer);
    }
    let mut out = String::new();
    let route = &answer["route"];
    if route.is_null() {
        let _ = write!(out, "{}: no route has this name", text(&answer["host"]));
        let _ = match answer["did_you_mean"].as_str() {
            Some(other) => writeln!(out, "; did you mean {other}?"),
            None => writeln!(out),
        };
    } else {
        let _ = write!(out, "{}: route {}", text(&answer["host"]), text(&route["host"]));
        let _ = match route["labels"].as_str() {
            Some(labels) => writeln!(out, " (its star matches {labels})"),
            None => writeln!(out),
        };
        for origin in list(&route["origins"]) {
            let _ = write!(out, "  from {}", text(&origin["source"]));
            if let Some(cluster) = origin["cluster"].as_str() {
                let _ = write!(
                    out,
                    ": {}, cluster {cluster}, weight {}",
                    text(&origin["origin"]),
                    origin["weight"]
                );
            }
            out.push('\n');
            for note in list(&origin["settings"]).chain(list(&origin["notes"])) {
                let _ = writeln!(out, "    {}", text(note));
            }
        }
        if route["weights_set_by_api"] == true {
            let _ = writeln!(out, "  weights set by API");
        }
    }
    for lost in list(&answer["lost"]) {
        let what = lost["rejected"]["origin"]
            .as_str()
            .or_else(|| lost["route"]["host"].as_str())
            .unwrap_or("-");
        let _ = writeln!(out, "  not {what}: {}", text(&lost["reason"]));
    }
    for listener in list(&answer["listeners"]) {
        let _ = writeln!(
            out,
            "listener {} ({}): {}",
            text(&listener["listener"]),
            text(&listener["protocol"]),
            text(&listener["verdict"])
        );
        let seen = listener["client_gets"].as_str();
        if let Some(seen) = seen {
            let _ = writeln!(out, "  the client gets {seen}");
        }
        if text(&listener["verdict"]).starts_with("refused") {
            continue;
        }
        if let Some(termination) = listener["tls"]["termination"].as_str() {
            let _ = match (termination, listener["tls"]["certificate"].as_str()) {
                ("passthrough", _) => writeln!(out, "  TLS passes through to the host"),
                (_, Some(certificate)) => writeln!(out, "  TLS ends here ({termination}), certificate {certificate}"),
                (_, None) => writeln!(out, "  TLS ends here ({termination}), but no certificate has this name"),
            };
        }
        let shield = &listener["shield"];
        if !shield.is_null() {
            let _ = writeln!(
                out,
                "  shield: {}: {}",
                text(&shield["verdict"]),
                text(&shield["reason"])
            );
        }
        for said in list(&listener["requests"]) {
            let _ = writeln!(out, "  {}", text(said));
        }
        for cluster in list(&listener["clusters"]) {
            let backup = if cluster["backup"] == true { "backup, " } else { "" };
            let _ = writeln!(
                out,
                "  cluster {}: {backup}weight {}, {} % now, {}",
                text(&cluster["name"]),
                cluster["weight"],
                cluster["share_percent"],
                text(&cluster["balance"])
            );
            if let Some(how) = cluster["http"].as_str() {
                let _ = writeln!(out, "    hosts are spoken to {how}");
            }
            if let Some(why) = cluster["waits_for"].as_str() {
                let _ = writeln!(out, "    no hosts: {why}");
            }
            for host in list(&cluster["hosts"]) {
                let state = if host["takes_connections"] == true {
                    "takes connections"
                } else {
                    text(&host["reason"])
                };
                let backup = if host["backup"] == true { "backup, " } else { "" };
                let _ = writeln!(
                    out,
                    "    {}: {backup}{} active, {state}",
                    text(&host["name"]),
                    host["active_connections"]
                );
            }
        }
        if let Some(cluster) = listener["preferred_cluster"].as_str() {
            let _ = writeln!(out, "  this client prefers cluster {cluster} (`prefer` of the route)");
        }
        if let Some(next) = listener["next_host"].as_str() {
            let _ = writeln!(out, "  next: {next}");
        }
        if seen.is_some() {
            let _ = writeln!(out, "  next: none, because no host takes connections");
            continue;
        }
        let datapath = &listener["datapath"];
        let _ = write!(
            out,
            "  tier {}: {}",
            text(&datapath["tier"]),
            text(&datapath["verdict"])
        );
        if let Some(label) = datapath["not_cut"].as_str() {
            let _ = write!(out, " ({label})");
        }
        let _ = writeln!(out, ": {}", text(&datapath["reason"]));
        let peek = &datapath["kernel_peek"];
        if let Some(label) = peek["left_to_userspace"].as_str() {
            let _ = writeln!(
                out,
                "  kernel peek: not routed in the kernel ({label}): {}",
                text(&peek["reason"])
            );
        } else if peek["routed"] == true {
            let by_client = if peek["depends_on_client"] == true {
                "; `prefer` or `allow` leaves some clients to userspace (see --client)"
            } else {
                ""
            };
            let _ = writeln!(out, "  kernel peek: routed in the kernel, without a socket{by_client}");
        }
    }
    out
}

/// Prints a new or removed object on one line, and a changed one with each field on a line.
fn print_change(change: &ModelChange) {
    let (what, name) = (&change.kind, &change.name);
    match (&change.before, &change.after) {
        (Some(before), None) => println!("- {what} {name}: {before}"),
        (None, after) => println!("+ {what} {name}: {}", after.as_deref().unwrap_or("-")),
        (Some(_), Some(_)) => {
            for FieldChange { field, before, after } in &change.fields {
                let side = |side: &Option<String>| side.clone().unwrap_or_else(|| "none".to_owned());
                let gap = if field.is_empty() { "" } else { " " };
                println!("~ {what} {name}{gap}{field}: {} -> {}", side(before), side(after));
            }
        }
    }
}

/// Prints the differences. Exits with 0 if there are none, 1 if there are some, 2 if the file is wrong.
pub(super) fn diff(file: &Path, socket: &Path, output: OutputFormat) -> anyhow::Result<ExitCode> {
    let body = std::fs::read_to_string(file).map_err(|error| anyhow::anyhow!("reading {}: {error}", file.display()))?;
    match crate::config::parse(&body) {
        Ok(parsed) => parsed
            .warnings
            .iter()
            .for_each(|warning| eprintln!("warning: {warning}")),
        Err(errors) => {
            eprintln!("{}", errors.with_file(file));
            return Ok(ExitCode::from(2));
        }
    }
    let answer = client::post_text(socket, "/api/v1/diff", body)?;
    let changes = client::decode::<ChangesAnswer>(answer.clone())?.changes;
    if output == OutputFormat::Table {
        changes.iter().for_each(print_change);
        if changes.is_empty() {
            println!("nothing would change");
        }
    } else {
        show::emit(&answer, output)?;
    }
    Ok(ExitCode::from(u8::from(!changes.is_empty())))
}

//! Prints answers as tables, JSON or YAML.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use jiff::Zoned;
use serde_json::Value;

use super::{OutputFormat, client};

/// Requests a path and prints the answer.
pub(super) fn print(what: &str, path: &str, socket: &Path, output: OutputFormat) -> anyhow::Result<ExitCode> {
    let answer = client::get(socket, path)?;
    match output {
        OutputFormat::Table => print_text(&table(what, &answer))?,
        _ => emit(&answer, output)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes JSON or YAML.
pub fn emit(value: &Value, output: OutputFormat) -> anyhow::Result<()> {
    match output {
        OutputFormat::Yaml => print_text(&serde_saphyr::to_string(value)?),
        OutputFormat::Json | OutputFormat::Table => print_text(&serde_json::to_string_pretty(value)?),
    }
}

/// Prints text. A reader that closes the pipe early (`| head`) is no error.
pub(super) fn print_text(text: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout(), "{}", text.trim_end()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Returns the columns of each list: title, and where the value stands.
fn columns(what: &str) -> &'static [(&'static str, &'static str)] {
    match what {
        "listeners" => &[
            ("LISTENER", "name"),
            ("PROTOCOL", "protocol"),
            ("LISTEN", "listen"),
            ("TIER", "tier"),
            ("ACTIVE", "active_connections"),
            ("TOTAL", "total_connections"),
        ],
        "records" => &[
            ("NAME", "name"),
            ("TYPE", "type"),
            ("ADDRESS", "address"),
            ("TTL", "ttl"),
        ],
        "routes" => &[
            ("ROUTE", "host"),
            ("CLUSTERS", "clusters"),
            ("ACTIVE", "active_connections"),
            ("TOTAL", "total_connections"),
            ("IN", "bytes_in"),
            ("OUT", "bytes_out"),
        ],
        "clusters" => &[
            ("CLUSTER", "name"),
            ("BALANCE", "balance"),
            ("HOSTS", "hosts"),
            ("HEALTHY", "healthy_hosts"),
            ("ACTIVE", "active_connections"),
            ("IN", "bytes_in"),
            ("OUT", "bytes_out"),
        ],
        "sources" => &[
            ("SOURCE", "name"),
            ("KIND", "kind"),
            ("IN TOUCH", "connected"),
            ("LAST HEARD", "seconds_since_heard"),
            ("FAILURES", "failures"),
            ("CLUSTERS", "clusters"),
            ("LAST ERROR", "last_error"),
        ],
        "applications" => &[
            ("NAMESPACE", "namespace"),
            ("APPLICATION", "name"),
            ("ENDPOINTS", "endpoints"),
            ("ALIASES", "aliases"),
            ("EXPOSED AT", "exposed"),
            ("NOT EXPOSED", "not_exposed"),
        ],
        "services" => &[
            ("SERVICE", "name"),
            ("PROTOCOL", "protocol"),
            ("LISTEN", "listen"),
            ("CLUSTER", "cluster"),
            ("MODE", "mode"),
            ("FLOWS", "flows"),
            ("TOTAL", "flows_total"),
            ("IN", "bytes_in"),
            ("OUT", "bytes_out"),
        ],
        "certificates" => &[
            ("CERTIFICATE", "label"),
            ("NAMES", "names"),
            ("KEY", "key"),
            ("DEFAULT", "default"),
            ("STATE", "state"),
            ("DAYS LEFT", "days_left"),
            ("WARNINGS", "warnings"),
        ],
        "guards" => &[
            ("KIND", "kind"),
            ("NAME", "name"),
            ("PREFIXES", "prefixes"),
            ("MALFORMED", "malformed"),
            ("DENIED", "denied"),
            ("PACKETS", "packets"),
            ("BYTES", "bytes"),
            ("CONNECTIONS", "connections"),
            ("CONCURRENT", "concurrent"),
            ("COOKIES", "cookie"),
        ],
        "service_flows" => &[
            ("CLIENT", "client"),
            ("LISTEN", "listen"),
            ("PROTOCOL", "protocol"),
            ("HOST", "host"),
            ("PACKETS", "packets_in"),
            ("IN", "bytes_in"),
            ("IDLE", "idle_seconds"),
        ],
        "rotations" => &[
            ("OUT OF ROTATION", "subject"),
            ("REASON", "reason"),
            ("SINCE", "since"),
            ("BY", "by"),
            ("JOB", "job"),
        ],
        "ha_groups" => &[
            ("GROUP", "name"),
            ("STATE", "state"),
            ("PRIORITY", "priority"),
            ("ADDRESSES", "vips"),
            ("SOURCES", "sources"),
            ("PREFERS", "prefer"),
        ],
        "peers" => &[
            ("NODE", "node"),
            ("SENDING", "sending"),
            ("WHY NOT", "send_error"),
            ("TOLD ALL", "told_all"),
            ("BEHIND MS", "behind_ms"),
            ("RECEIVING", "receiving"),
            ("COMPLETE", "complete"),
            ("FLOWS SENT", "flows_sent"),
            ("MEAN LAG", "mean_lag_seconds"),
            ("SHADOWS", "shadows"),
        ],
        "jobs" => &[
            ("JOB", "id"),
            ("ACTION", "action"),
            ("WHAT", "subjects"),
            ("PROGRESS", "progress"),
            ("LEFT", "remaining_connections"),
            ("WAITS FOR", "waits_for"),
            ("CLOSED", "closed_connections"),
        ],
        "hosts" => &[
            ("CLUSTER", "cluster"),
            ("HOST", "name"),
            ("ADDRESS", "address"),
            ("STATE", "health"),
            ("SUBSET", "subset"),
            ("WEIGHT", "weight"),
            ("ACTIVE", "active_connections"),
            ("TOTAL", "total_connections"),
            ("REFUSED", "refused_connections"),
            ("IN", "bytes_in"),
            ("OUT", "bytes_out"),
            ("LAST CHECK", "last_check"),
            ("CHECKED BY", "checked_by"),
        ],
        _ => &[
            ("CLIENT", "client"),
            ("LISTENER", "listener"),
            ("ROUTE", "route"),
            ("CLUSTER", "cluster"),
            ("HOST", "host"),
            ("TIER", "tier"),
            ("WHY", "tier_reason"),
            ("AGE", "age_seconds"),
            ("IDLE", "idle_seconds"),
            ("IN", "bytes_in"),
            ("OUT", "bytes_out"),
        ],
    }
}

/// A field of an object as a table shows it.
#[cfg_attr(not(feature = "tui"), expect(dead_code, reason = "`top` reads all fields"))]
pub(super) struct ShownField<'a> {
    pub(super) title: &'static str,
    pub(super) value: &'a Value,
    pub(super) text: String,
}

/// Returns the fields of an object that a table of such objects has.
pub(super) fn fields<'a>(what: &str, row: &'a Value) -> impl Iterator<Item = ShownField<'a>> {
    columns(what).iter().map(move |(title, key)| {
        let value = row.get(key).unwrap_or(&Value::Null);
        ShownField {
            title,
            value,
            text: cell(key, value, row),
        }
    })
}

/// Formats an answer as a table.
#[must_use]
pub fn table(what: &str, answer: &Value) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if what == "status" {
        if let Some(fields) = answer.as_object() {
            for (name, value) in fields.iter().filter(|(name, _)| *name != "apiVersion") {
                table.add_row([name.clone(), cell(name, value, answer)]);
            }
        }
        return table.to_string();
    }
    let columns = columns(what);
    table.set_header(columns.iter().map(|(title, _)| *title));
    let rows = answer.get(what).and_then(Value::as_array);
    for row in rows.into_iter().flatten() {
        table.add_row(fields(what, row).map(|field| field.text));
    }
    for (index, (_, key)) in columns.iter().enumerate() {
        let numeric = rows
            .into_iter()
            .flatten()
            .any(|row| row.get(key).is_some_and(Value::is_number));
        if let Some(column) = table.column_mut(index).filter(|_| numeric) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = table.to_string();
    if let (Some(total), Some(shown)) = (answer.get("total").and_then(Value::as_u64), rows.map(Vec::len))
        && total > shown as u64
    {
        text += &format!("\n{shown} of {total}; --limit shows more\n");
    }
    text
}

fn cell(key: &str, value: &Value, row: &Value) -> String {
    match (key, value) {
        (_, Value::Null) => "-".into(),
        ("health", Value::String(health)) => {
            let flag = |name: &str| row.get(name).and_then(Value::as_bool).unwrap_or(false);
            if flag("draining") {
                "draining".into()
            } else if row.get("out_of_rotation").is_some_and(Value::is_string) {
                format!("{health}, out of rotation")
            } else if flag("ejected") {
                format!("{health}, set aside")
            } else {
                health.clone()
            }
        }
        ("bytes_in" | "bytes_out", Value::Number(n)) => bytes(n.as_u64().unwrap_or(0)),
        ("age_seconds" | "idle_seconds" | "seconds_since_heard", Value::Number(n)) => {
            format!("{:.1}s", n.as_f64().unwrap_or(0.0))
        }
        ("clusters", Value::Array(clusters)) if are_discoveries(clusters) => clusters
            .iter()
            .map(|c| {
                let rejected = c.get("rejected").and_then(Value::as_array).map_or(0, Vec::len);
                let (hosts, routes) = (text(c.get("hosts")), text(c.get("routes")));
                format!(
                    "{}: {hosts} hosts, {routes} routes, {rejected} rejected",
                    text(c.get("cluster"))
                )
            })
            .collect::<Vec<_>>()
            .join("; "),
        ("clusters", Value::Array(clusters)) => clusters
            .iter()
            .map(|c| format!("{}:{}", text(c.get("name")), text(c.get("weight"))))
            .collect::<Vec<_>>()
            .join(" "),
        ("last_error", Value::String(error)) => truncated(error),
        ("since", Value::Number(at)) => at
            .as_i64()
            .and_then(|at| clock(at, &Zoned::now()))
            .unwrap_or_else(|| text(Some(value))),
        ("last_check", check) => match row.get("tls_fault").and_then(Value::as_str) {
            Some(fault) => format!("{}; TLS: {fault}", text(check.get("detail"))),
            None => text(check.get("detail")),
        },
        ("last_reload", reload) => reloaded(reload, &Zoned::now()),
        (_, Value::Array(items)) => items.iter().map(|item| text(Some(item))).collect::<Vec<_>>().join(" "),
        (_, Value::Object(fields)) => fields
            .iter()
            .map(|(name, value)| format!("{name}={}", text(Some(value))))
            .collect::<Vec<_>>()
            .join(" "),
        (_, other) => text(Some(other)),
    }
}

/// Greatest width of an error in a table, in characters; JSON and YAML have the whole text.
const MAX_ERROR_WIDTH: usize = 72;

fn truncated(error: &str) -> String {
    if error.chars().count() <= MAX_ERROR_WIDTH {
        return error.to_owned();
    }
    let short: String = error.chars().take(MAX_ERROR_WIDTH - 3).collect();
    format!("{}...", short.trim_end())
}

/// Formats the result of the last reload, its time by the operator's clock, and its age.
fn reloaded(reload: &Value, now: &Zoned) -> String {
    let outcome = if reload.get("ok").and_then(Value::as_bool).unwrap_or(false) {
        "ok"
    } else {
        "refused"
    };
    let at = reload.get("at").and_then(Value::as_i64);
    let when = at
        .and_then(|at| clock(at, now))
        .map_or_else(String::new, |at| format!(", {at}"));
    let error = reload.get("error").and_then(Value::as_str);
    let error = error.map_or_else(String::new, |error| format!(": {error}"));
    format!("{outcome}, by {}{when}{error}", text(reload.get("source")))
}

/// Formats seconds since 1970 by the operator's clock, with the age.
fn clock(at: i64, now: &Zoned) -> Option<String> {
    let at = jiff::Timestamp::from_second(at).ok()?;
    let age = now.timestamp().duration_since(at).as_secs().max(0);
    let at = at.to_zoned(now.time_zone().clone()).strftime("%Y-%m-%d %H:%M:%S %:z");
    Some(format!("{at} ({} ago)", age_of(age.unsigned_abs())))
}

/// Formats an age by its two largest units.
fn age_of(seconds: u64) -> String {
    let units = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];
    let first = units.iter().position(|(_, length)| seconds >= *length).unwrap_or(3);
    let mut rest = seconds;
    let mut parts = Vec::new();
    for (unit, length) in &units[first..units.len().min(first + 2)] {
        parts.push(format!("{}{unit}", rest / length));
        rest %= length;
    }
    parts.join(" ")
}

/// Returns whether clusters are those that a source has reported, rather than the shares of a route.
fn are_discoveries(clusters: &[Value]) -> bool {
    clusters.iter().any(|cluster| cluster.get("rejected").is_some())
}

fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".into(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{n} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_error_does_not_make_the_table_wide() {
        let error = "the API server of /etc/signalbox/east.kubeconfig cannot be reached: ".repeat(6);
        let answer = json!({ "sources": [{ "name": "kube:east", "connected": false, "last_error": error }] });
        let text = table("sources", &answer);
        let widest = text.lines().map(|line| line.trim_end().chars().count()).max().unwrap();
        assert!(
            widest < 180 && text.contains("east.kubeconfig") && text.contains("..."),
            "{text}"
        );
    }

    #[test]
    fn a_reload_is_shown_by_the_operator_s_clock_with_its_age() {
        let reload = json!({ "ok": true, "source": "SIGHUP", "at": 1_795_351_604, "error": null });
        let zone = jiff::tz::TimeZone::fixed(jiff::tz::offset(2));
        let now = jiff::Timestamp::from_second(1_795_351_604 + 3723)
            .unwrap()
            .to_zoned(zone);
        assert_eq!(
            reloaded(&reload, &now),
            "ok, by SIGHUP, 2026-11-22 14:46:44 +02:00 (1h 2m ago)"
        );
        let refused = json!({ "ok": false, "source": "API", "at": 1_795_355_320, "error": "no such cluster" });
        assert_eq!(
            reloaded(&refused, &now),
            "refused, by API, 2026-11-22 15:48:40 +02:00 (7s ago): no such cluster"
        );
        assert!(cell("last_reload", &reload, &Value::Null).contains(" ago)"));
        assert_eq!(
            (age_of(0), age_of(59), age_of(90_000)),
            ("0s".into(), "59s".into(), "1d 1h".into())
        );
    }

    #[test]
    fn hosts_are_shown_with_their_true_state() {
        let answer = json!({ "hosts": [
            { "cluster": "east", "name": "e1", "address": "10.2.0.2", "health": "healthy", "ejected": true, "draining": false,
              "weight": 1, "active_connections": 2, "total_connections": 3, "refused_connections": 0,
              "bytes_in": 1536, "bytes_out": 5, "tls_fault": "its certificate has expired", "last_check": { "ok": true, "detail": "HTTP 200", "seconds": 0.1 } },
        ] });
        let text = table("hosts", &answer);
        for expected in [
            "healthy, set aside",
            "1.5 KiB",
            "5 B",
            "HTTP 200; TLS: its certificate has expired",
        ] {
            assert!(text.contains(expected), "{expected}:\n{text}");
        }
    }
}

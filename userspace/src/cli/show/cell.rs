//! Values of answers, formatted for a table.

use jiff::Zoned;
use serde_json::Value;

pub(super) fn cell(key: &str, value: &Value, row: &Value) -> String {
    match (key, value) {
        (_, Value::Null) => "-".into(),
        ("health", Value::String(health)) => {
            let flag = |name: &str| row.get(name).and_then(Value::as_bool).unwrap_or(false);
            let standing = if row.get("out_of_rotation").is_some_and(Value::is_string) {
                ", out of rotation"
            } else if flag("ejected") {
                ", ejected"
            } else {
                ""
            };
            let backup = if flag("backup") { ", backup" } else { "" };
            if flag("draining") {
                "draining".into()
            } else if row.get("not_resolved").is_some_and(Value::is_string) && health != "unresolved" {
                format!("{health}{standing}{backup}, name not resolved")
            } else {
                format!("{health}{standing}{backup}")
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
        // The reason why no router answers matters only for an unhealthy host.
        ("checked_by", Value::String(how)) if row.get("health").is_some_and(|health| health == "healthy") => {
            how.split(';').next().unwrap_or_default().to_owned()
        }
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

/// Maximum width of an error in a table, in characters. JSON and YAML have the whole text.
const MAX_ERROR_WIDTH: usize = 72;

fn truncated(error: &str) -> String {
    if error.chars().count() <= MAX_ERROR_WIDTH {
        return error.to_owned();
    }
    let short: String = error.chars().take(MAX_ERROR_WIDTH - 3).collect();
    format!("{}...", short.trim_end())
}

/// Formats the result of the last reload, its local time, and its age.
pub(super) fn reloaded(reload: &Value, now: &Zoned) -> String {
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

/// Formats seconds since 1970 as local time, with the age.
fn clock(at: i64, now: &Zoned) -> Option<String> {
    let at = jiff::Timestamp::from_second(at).ok()?;
    let age = now.timestamp().duration_since(at).as_secs().max(0);
    let at = at.to_zoned(now.time_zone().clone()).strftime("%Y-%m-%d %H:%M:%S %:z");
    Some(format!("{at} ({} ago)", age_of(age.unsigned_abs())))
}

/// Formats an age with its two largest units.
pub(super) fn age_of(seconds: u64) -> String {
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

/// Returns whether clusters are those reported by a source, rather than the shares of a route.
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

//! Cells of a table.

use std::borrow::Cow;

use jiff::Zoned;
use serde_json::Value;
use signalbox_api::status::LastReload;

/// A value as a table shows it.
#[derive(Clone, Debug)]
pub(crate) struct ShownCell {
    pub(crate) text: String,
    /// The value, if it is a number: such cells are aligned to the right and not shortened.
    pub(crate) number: Option<f64>,
}

impl ShownCell {
    fn of_number(number: f64, text: String) -> Self {
        Self {
            text,
            number: Some(number),
        }
    }
}

impl From<String> for ShownCell {
    fn from(text: String) -> Self {
        Self { text, number: None }
    }
}

impl From<&str> for ShownCell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<&String> for ShownCell {
    fn from(text: &String) -> Self {
        text.clone().into()
    }
}

impl From<&Cow<'_, str>> for ShownCell {
    fn from(text: &Cow<'_, str>) -> Self {
        (&**text).into()
    }
}

impl From<bool> for ShownCell {
    fn from(value: bool) -> Self {
        value.to_string().into()
    }
}

impl From<u64> for ShownCell {
    fn from(value: u64) -> Self {
        Self::of_number(value as f64, value.to_string())
    }
}

impl From<u32> for ShownCell {
    fn from(value: u32) -> Self {
        u64::from(value).into()
    }
}

impl From<usize> for ShownCell {
    fn from(value: usize) -> Self {
        (value as u64).into()
    }
}

impl From<i64> for ShownCell {
    fn from(value: i64) -> Self {
        Self::of_number(value as f64, value.to_string())
    }
}

impl From<f64> for ShownCell {
    fn from(value: f64) -> Self {
        Self::of_number(value, format!("{value:?}"))
    }
}

impl<T: Into<Self>> From<Option<T>> for ShownCell {
    fn from(value: Option<T>) -> Self {
        value.map_or_else(|| "-".into(), Into::into)
    }
}

/// Shows a list on one line.
pub(super) fn joined(items: &[String]) -> ShownCell {
    items.join(" ").into()
}

/// Shows a number of bytes.
pub(crate) fn bytes(n: u64) -> ShownCell {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    let text = if unit == 0 {
        format!("{n} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    };
    ShownCell::of_number(n as f64, text)
}

/// Shows a duration.
pub(super) fn seconds(value: f64) -> ShownCell {
    ShownCell::of_number(value, format!("{value:.1}s"))
}

/// Shows seconds since 1970 as local time, with the age.
pub(super) fn since(at: u64) -> ShownCell {
    let text = clock(at, &Zoned::now()).unwrap_or_else(|| at.to_string());
    ShownCell::of_number(at as f64, text)
}

/// Maximum width of an error in a table, in characters. JSON and YAML have the whole text.
const MAX_ERROR_WIDTH: usize = 72;

pub(super) fn truncated(error: &str) -> String {
    if error.chars().count() <= MAX_ERROR_WIDTH {
        return error.to_owned();
    }
    let short: String = error.chars().take(MAX_ERROR_WIDTH - 3).collect();
    format!("{}...", short.trim_end())
}

/// Formats the result of the last reload, its local time, and its age.
pub(super) fn reloaded(reload: &LastReload, now: &Zoned) -> String {
    let outcome = if reload.ok { "ok" } else { "refused" };
    let when = clock(reload.at, now).map_or_else(String::new, |at| format!(", {at}"));
    let error = reload.error.as_ref();
    let error = error.map_or_else(String::new, |error| format!(": {error}"));
    format!("{outcome}, by {}{when}{error}", reload.source)
}

/// Formats seconds since 1970 as local time, with the age.
fn clock(at: u64, now: &Zoned) -> Option<String> {
    let at = jiff::Timestamp::from_second(i64::try_from(at).ok()?).ok()?;
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

/// Formats any value on one line.
pub(super) fn value_text(value: &Value) -> String {
    let joined = |all: Vec<String>| all.join(" ");
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        Value::Array(items) => joined(items.iter().map(item_text).collect()),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| format!("{name}={}", item_text(value)));
            joined(fields.collect())
        }
        other => other.to_string(),
    }
}

fn item_text(value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => value.to_string(),
        other => value_text(other),
    }
}

//! Elements of sets and maps, and values to compare with.

use serde_json::Value;

use super::statement;
use crate::firewall::form::{RuleVerdict, SetElements, SetRow};
use crate::firewall::pattern::{ValuePattern, address_number};

/// Elements of a set or map with a name.
pub(super) fn of_set(set: &Value) -> SetElements {
    let has_flag = |wanted: &str| match set.get("flags") {
        None => false,
        Some(Value::Array(flags)) => flags.iter().any(|flag| flag == wanted),
        Some(flag) => flag == wanted,
    };
    // Statements of all elements, such as limits.
    let is_changing = has_flag("dynamic") || set.get("stmt").is_some_and(|statements| *statements != Value::Null);
    let elements = set.get("elem").and_then(Value::as_array);
    let has_verdicts = set.get("map").and_then(Value::as_str) == Some("verdict");
    let is_map = set.get("map").is_some();
    let rows = elements
        .into_iter()
        .flatten()
        .map(|element| match (is_map, has_verdicts) {
            (false, _) => row(element, None),
            (true, true) => map_row(element),
            // The data of other maps is of no interest.
            (true, false) => row(element.get(0).unwrap_or(element), None),
        });
    SetElements {
        is_changing,
        may_expire: has_flag("timeout") || set.get("timeout").is_some(),
        ..SetElements::of(rows.collect())
    }
}

/// Elements of a set without a name.
pub(super) fn of_values(values: &Value) -> SetElements {
    match values {
        Value::Array(elements) => SetElements::of(elements.iter().map(|element| row(element, None)).collect()),
        one => SetElements::of(vec![row(one, None)]),
    }
}

/// Elements of a verdict map without a name.
pub(super) fn of_map(elements: &[Value]) -> SetElements {
    SetElements::of(elements.iter().map(map_row).collect())
}

fn map_row(element: &Value) -> SetRow {
    // A verdict that is not understood leads to a chain that is not there.
    let unknown = || RuleVerdict::Jump(format!("{element:.80}"));
    match element.as_array().map(Vec::as_slice) {
        Some([key, verdict]) => row(key, Some(statement::verdict(verdict).unwrap_or_else(unknown))),
        _ => row(&Value::String("*".to_owned()), Some(unknown())),
    }
}

fn row(element: &Value, verdict: Option<RuleVerdict>) -> SetRow {
    let value = element.get("elem").and_then(|elem| elem.get("val")).unwrap_or(element);
    let mut key: Vec<_> = match value.get("concat").and_then(Value::as_array) {
        Some(parts) => parts.iter().map(pattern).collect(),
        None => vec![pattern(value)],
    };
    // A limit or a quota of the element ends the rule where it is exceeded.
    let plain = ["val", "comment", "counter", "timeout", "expires"];
    let is_plain = |(name, _): (&String, &Value)| plain.contains(&name.as_str());
    let elem = element.get("elem").and_then(Value::as_object);
    if elem.is_some_and(|elem| !elem.iter().all(is_plain)) {
        key = vec![ValuePattern::unknown(); key.len()];
    }
    SetRow { key, verdict }
}

/// A single number, or an address as one.
fn number(value: &Value) -> Option<u128> {
    match value {
        Value::Number(number) => number.as_u64().map(u128::from),
        Value::String(word) => address_number(word),
        _ => None,
    }
}

/// Values of one part of a key.
pub(super) fn pattern(value: &Value) -> ValuePattern {
    let known = match value {
        // All that the others do not match.
        Value::String(word) if word == "*" || word.starts_with('@') => None,
        // The index of an interface that is gone, which another may get; or a `*` that stands for itself.
        Value::String(word) if word.contains('\\') || word.bytes().all(|byte| byte.is_ascii_digit()) => None,
        Value::String(word) => match address_number(word) {
            Some(address) => Some(ValuePattern::range(address, address)),
            None => Some(ValuePattern {
                names: vec![word.clone()],
                ..ValuePattern::default()
            }),
        },
        Value::Object(_) => of_object(value),
        other => number(other).map(|number| ValuePattern::range(number, number)),
    };
    known.unwrap_or_else(ValuePattern::unknown)
}

fn of_object(value: &Value) -> Option<ValuePattern> {
    if let Some(prefix) = value.get("prefix") {
        let address = prefix.get("addr")?.as_str()?;
        let length = u32::try_from(prefix.get("len")?.as_u64()?).ok()?;
        let width = if address.contains(':') { 128 } else { 32 };
        return ValuePattern::prefix(address_number(address)?, length, width);
    }
    let [first, last] = value.get("range")?.as_array()?.as_slice() else {
        return None;
    };
    Some(ValuePattern::range(number(first)?, number(last)?))
}

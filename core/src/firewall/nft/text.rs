//! Rules of nftables as text, much as `nft list` shows them.

use serde_json::Value;

/// Longest text of a rule, in characters.
const MAX_TEXT: usize = 200;

pub(super) fn of_rule(statements: &[Value]) -> String {
    let words: Vec<String> = statements.iter().map(text).filter(|word| !word.is_empty()).collect();
    let text = words.join(" ");
    if text.chars().count() <= MAX_TEXT {
        return text;
    }
    text.chars().take(MAX_TEXT - 1).chain(['…']).collect()
}

fn list(values: &[Value], between: &str) -> String {
    let shown: Vec<String> = values.iter().take(16).map(text).collect();
    let rest = if values.len() > shown.len() { ", …" } else { "" };
    shown.join(between) + rest
}

/// Text of a statement, an expression or a value.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(word) => word.clone(),
        Value::Array(pair) if pair.len() == 2 && pair[1].is_object() => list(pair, " : "),
        Value::Array(values) => list(values, ","),
        Value::Object(fields) => {
            let each: Vec<String> = fields.iter().map(|(key, inner)| of_object(key, inner)).collect();
            each.join(" ").trim_end().to_owned()
        }
        other => other.to_string(),
    }
}

fn of_object(key: &str, inner: &Value) -> String {
    let field = |name: &str| inner.get(name).map(text).unwrap_or_default();
    match key {
        "match" => {
            let is_plain = matches!(field("op").as_str(), "==" | "in") && inner["left"].get("&").is_none();
            let op = if is_plain { String::new() } else { field("op") + " " };
            format!("{} {op}{}", field("left"), field("right"))
        }
        "payload" => format!("{} {}", field("protocol"), field("field")),
        "meta" if matches!(field("key").as_str(), "iif" | "oif" | "iifname" | "oifname") => field("key"),
        "meta" | "ct" => format!("{key} {}", field("key")),
        "fib" => format!("fib {} {}", field("flags"), field("result")),
        "prefix" => format!("{}/{}", field("addr"), field("len")),
        "range" => inner.as_array().map(|ends| list(ends, "-")).unwrap_or_default(),
        "concat" => inner.as_array().map(|parts| list(parts, " . ")).unwrap_or_default(),
        "&" | "|" | "^" => inner
            .as_array()
            .map(|parts| list(parts, &format!(" {key} ")))
            .unwrap_or_default(),
        "set" if inner.is_array() => {
            let elements = inner.as_array().map(|elements| list(elements, ", "));
            format!("{{ {} }}", elements.unwrap_or_default())
        }
        "elem" if inner.get("val").is_some() => field("val"),
        "vmap" => format!("{} vmap {}", field("key"), field("data")),
        "mangle" => format!("{} set {}", field("key"), field("value")),
        "jump" | "goto" => format!("{key} {}", field("target")),
        "counter" => key.to_owned(),
        "limit" => format!("limit rate {}/{}", field("rate"), field("per")),
        "xt" => field("name"),
        _ => format!("{key} {}", text(inner)),
    }
}

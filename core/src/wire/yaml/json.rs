//! A tree of YAML as a JSON value, for decoders that do not need positions.

use serde_json::{Map, Number, Value};

use super::{Dialect, NodeKind, YamlError, YamlNode, read};

/// Reads a single document as JSON. An empty text is null.
///
/// # Errors
/// The first mistake of the text.
pub fn read_json(text: &str) -> Result<Value, YamlError> {
    let documents = read(text, Dialect::Plain)?;
    Ok(documents.first().map_or(Value::Null, to_json))
}

/// Types are those of YAML's core schema (YAML 1.2, 10.3.2). If a key occurs twice, the last one counts.
fn to_json(node: &YamlNode) -> Value {
    match &node.kind {
        NodeKind::Null | NodeKind::Binary => Value::Null,
        NodeKind::Scalar { text, quoted: true } => Value::String(text.clone()),
        NodeKind::Scalar { text, quoted: false } => plain(text),
        NodeKind::List(items) => Value::Array(items.iter().map(to_json).collect()),
        NodeKind::Map(entries) => {
            let entries = entries.iter().map(|entry| (entry.key.clone(), to_json(&entry.value)));
            Value::Object(entries.collect::<Map<_, _>>())
        }
    }
}

fn plain(text: &str) -> Value {
    match text {
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'));
    let number = is_number.then(|| {
        let digits = text.strip_prefix('+').unwrap_or(text);
        let integer = digits.parse::<i64>().map(Number::from).ok();
        integer.or_else(|| digits.parse::<f64>().ok().and_then(Number::from_f64))
    });
    number
        .flatten()
        .map_or_else(|| Value::String(text.to_owned()), Value::Number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_are_those_of_the_core_schema() {
        let text =
            "{ a: 80, b: '80', c: true, d: \"true\", e: ~, f: [1.5, -3, +4], g: 10.0.0.1, h: v1, i: {}, j: 1e3 }";
        let expected = json!({
            "a": 80, "b": "80", "c": true, "d": "true", "e": null, "f": [1.5, -3, 4], "g": "10.0.0.1", "h": "v1",
            "i": {}, "j": 1000.0,
        });
        assert_eq!(read_json(text).unwrap(), expected);
        assert_eq!(read_json("").unwrap(), Value::Null);
        assert!(read_json("a: [").is_err());
    }
}

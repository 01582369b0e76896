//! Text for terminals: names and messages made safe, numbers with units.

use serde_json::{Map, Value};

/// Replacement for a character that a terminal would obey, or that would be invisible.
const REPLACEMENT: char = '\u{fffd}';

/// Returns whether a character could move the cursor, change colours, turn the direction of text, or be invisible.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{feff}' | '\u{2028}' | '\u{2029}')
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Makes text safe: line ends and tabs become spaces, other such characters a mark.
pub(super) fn safe(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\r' | '\t' => ' ',
            c if is_unsafe(c) => REPLACEMENT,
            c => c,
        })
        .collect()
}

/// Makes all text in an answer safe, including names of fields, which may be names of clusters.
pub(super) fn safe_value(value: Value) -> Value {
    match value {
        Value::String(text) if text.chars().any(is_unsafe) => Value::String(safe(&text)),
        Value::Array(items) => items.into_iter().map(safe_value).collect(),
        Value::Object(fields) => {
            let safe_field = |(name, value): (String, Value)| (safe(&name), safe_value(value));
            Value::Object(fields.into_iter().map(safe_field).collect::<Map<_, _>>())
        }
        other => other,
    }
}

/// Formats a number with three digits and a unit of powers of 1000.
pub(super) fn short(value: f64) -> String {
    const UNITS: [&str; 5] = ["", " k", " M", " G", " T"];
    let (mut rest, mut unit) = (value.abs(), 0);
    while rest >= 999.5 && unit < UNITS.len() - 1 {
        rest /= 1000.0;
        unit += 1;
    }
    let digits = match rest {
        _ if unit == 0 && rest.fract() == 0.0 => 0,
        _ if rest < 9.995 => 2,
        _ if rest < 99.95 => 1,
        _ => 0,
    };
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{rest:.digits$}{}", UNITS.get(unit).unwrap_or(&""))
}

/// Formats a number of bytes.
pub(super) fn bytes(value: f64) -> String {
    let text = short(value);
    let gap = if text.contains(' ') { "" } else { " " };
    format!("{text}{gap}B")
}

/// Formats a part of a whole.
pub(super) fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 {
        format!("{:.1} %", 100.0 * part / whole)
    } else {
        "-".to_owned()
    }
}

/// Formats a duration by its largest unit.
pub(super) fn seconds(value: f64) -> String {
    match value {
        v if v < 120.0 => format!("{v:.0} s"),
        v if v < 7200.0 => format!("{:.0} min", v / 60.0),
        v if v < 172_800.0 => format!("{:.1} h", v / 3600.0),
        v => format!("{:.0} d", v / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn terminal_control_and_invisible_characters_are_replaced() {
        assert_eq!(
            safe("east\u{1b}[2J\u{9b}31m\u{7}"),
            "east\u{fffd}[2J\u{fffd}31m\u{fffd}"
        );
        assert_eq!(safe("a\r\nb\tc"), "a  b c");
        assert_eq!(safe("moc.\u{202e}evil\u{200b}"), "moc.\u{fffd}evil\u{fffd}");
        assert_eq!(safe("größe-日本"), "größe-日本");
        let answer = safe_value(json!({ "a\u{1b}": ["x\u{8}", { "b": "\u{1b}]0;title\u{7}" }], "n": 1 }));
        let text = answer.to_string();
        assert!(!text.contains("\\u001b") && !text.chars().any(is_unsafe), "{text}");
        assert_eq!(answer["n"], 1);
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let shown = [0.0, 7.0, 0.5, 999.0, 999.6, 1000.0, 12_345.0, 999_999.0, 3.2e9, -1500.0].map(short);
        assert_eq!(
            shown,
            [
                "0", "7", "0.50", "999", "1.00 k", "1.00 k", "12.3 k", "1.00 M", "3.20 G", "-1.50 k"
            ]
        );
        assert_eq!([bytes(12.0), bytes(12_000.0)], ["12 B", "12.0 kB"]);
        assert_eq!([percent(1.0, 3.0), percent(1.0, 0.0)], ["33.3 %", "-"]);
        assert_eq!(
            [1.2, 600.0, 7200.0, 200_000.0].map(seconds),
            ["1 s", "10 min", "2.0 h", "2 d"]
        );
    }
}

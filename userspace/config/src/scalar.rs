//! Single values: text, names, numbers, durations and words from a list.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::address::{is_hostname, is_of_no_machine};
use super::node::{NodeKind, NodeRef};
use super::report::{Report, alternatives, did_you_mean, quote};

/// Longest time in the configuration: room for every use, and adding it to a clock cannot overflow.
const MAX_TIMEOUT: Duration = Duration::from_secs(8760 * 3600);

const DURATION_FORMAT: &str = "a whole number and ms, s, m or h, as in 250ms, 5s, 2m or 1h";

/// Decodes a value that may be left out; `default` also replaces a mistake that has been reported.
pub(super) fn or_default<T>(
    place: Option<&NodeRef<'_>>,
    default: T,
    read: impl FnOnce(&NodeRef<'_>) -> Option<T>,
) -> T {
    place.and_then(read).unwrap_or(default)
}

/// Decodes a value that may be left out and has no default. `None`: there is a mistake.
pub(super) fn optional_value<T>(
    place: Option<&NodeRef<'_>>,
    read: impl FnOnce(&NodeRef<'_>) -> Option<T>,
) -> Option<Option<T>> {
    place.map_or(Some(None), |place| read(place).map(Some))
}

impl<'a> NodeRef<'a> {
    /// Value as text as it is written; not empty.
    pub(super) fn text(&self, report: &mut Report) -> Option<&'a str> {
        let message = match &self.node.kind {
            NodeKind::Scalar { text, .. } if !text.is_empty() => return Some(text),
            NodeKind::Scalar { .. } => "the value is empty".to_owned(),
            NodeKind::Null => "the value is missing".to_owned(),
            other => {
                let found = other.type_name();
                format!("expected a single value, found {found} (a value with brackets or braces needs quotes)")
            }
        };
        self.error(report, message);
        None
    }

    /// Value as the name of a listener, cluster or host.
    pub(super) fn name(&self, report: &mut Report) -> Option<&'a str> {
        let text = self.text(report)?;
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if text.len() <= 63 && text.bytes().all(allowed) {
            return Some(text);
        }
        self.error(
            report,
            format!(
                "{} is not a name: 1 to 63 letters, digits, `.`, `_` or `-`",
                quote(text)
            ),
        );
        None
    }

    /// Value as a whole number.
    pub(super) fn number<T: TryFrom<u64> + Copy + PartialOrd + Display>(
        &self,
        least: T,
        most: T,
        report: &mut Report,
    ) -> Option<T> {
        let text = self.text(report)?;
        let quoted = matches!(self.node.kind, NodeKind::Scalar { quoted: true, .. });
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        let plain = text.trim_start_matches('0');
        if digits && !plain.is_empty() && plain.len() < text.len() {
            let message = format!(
                "{} begins with 0, which other YAML readers take for octal: write {plain}",
                quote(text)
            );
            self.error(report, message);
            return None;
        }
        if digits && !quoted {
            let number = text.parse::<u64>().ok().and_then(|n| T::try_from(n).ok());
            if let Some(number) = number.filter(|n| (least..=most).contains(n)) {
                return Some(number);
            }
        }
        let hint = if digits && quoted { " without quotes" } else { "" };
        self.error(
            report,
            format!("{} is not a whole number from {least} to {most}{hint}", quote(text)),
        );
        None
    }

    /// Value as a port.
    pub(super) fn port(&self, report: &mut Report) -> Option<u16> {
        self.number(1, u16::MAX, report)
    }

    /// Value as a time, more than nothing.
    pub(super) fn duration(&self, report: &mut Report) -> Option<Duration> {
        let text = self.text(report)?;
        let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
        let digits = text.strip_suffix(unit).unwrap_or_default();
        let quoted = quote(text);
        let message = match (digits, unit) {
            ("", _) => format!("{quoted} is not a duration: write {DURATION_FORMAT}"),
            (_, "") => format!("{quoted} has no unit: write {DURATION_FORMAT}"),
            (_, "ms" | "s" | "m" | "h") => match in_milliseconds(digits, unit) {
                Some(0) => format!("{quoted} is no duration: it must be more than 0"),
                Some(ms) if ms <= MAX_TIMEOUT.as_millis() => {
                    return Some(Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX)));
                }
                _ => format!("{quoted} is too long: at most 8760h (a year)"),
            },
            _ => format!("{quoted} is not a duration: write {DURATION_FORMAT}"),
        };
        self.error(report, message);
        None
    }

    /// Value as one of `words`; `what`: the value's name in messages, with its article.
    pub(super) fn keyword<T: Copy>(&self, what: &str, words: &[(&'static str, T)], report: &mut Report) -> Option<T> {
        let allowed = alternatives(words.iter().map(|(word, _)| *word));
        if matches!(self.node.kind, NodeKind::List(_)) {
            self.error(report, format!("expected {what}, found a list: write one ({allowed})"));
            return None;
        }
        let text = self.text(report)?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        let guess = did_you_mean(report.suggest(text, words.iter().map(|(word, _)| *word)));
        self.error(
            report,
            format!("{} is not {what}{guess} (allowed: {allowed})", quote(text)),
        );
        None
    }

    /// Value as `true` or `false`.
    pub(super) fn flag(&self, report: &mut Report) -> Option<bool> {
        self.keyword("a boolean", &[("true", true), ("false", false)], report)
    }

    /// Value as text, if it is text at all; mistakes are not reported.
    pub(super) fn plain(&self) -> Option<&'a str> {
        match &self.node.kind {
            NodeKind::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// Value as the address of a machine.
    pub(super) fn host_address(&self, report: &mut Report) -> Option<IpAddr> {
        let text = self.text(report)?;
        let message = match text.parse::<IpAddr>() {
            Ok(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => {
                let v4 = v6.to_canonical();
                format!("{} is an IPv4-mapped IPv6 address: write {v4}", quote(text))
            }
            Ok(ip) if ip.is_unspecified() || is_of_no_machine(ip) => {
                format!("{} is not the address of one machine", quote(text))
            }
            Ok(ip) => return Some(ip),
            Err(_) => match text.parse::<SocketAddr>() {
                Ok(at) => format!(
                    "{} has a port: write {}, and the port as `http: {}` (or `https`, `tcp`)",
                    quote(text),
                    at.ip(),
                    at.port()
                ),
                Err(_) => {
                    let hint = if is_hostname(text) {
                        ": names are not looked up, write the address"
                    } else {
                        ""
                    };
                    format!(
                        "{} is not an IP address, such as 10.2.0.2 or fd00:2::4{hint}",
                        quote(text)
                    )
                }
            },
        };
        self.error(report, message);
        None
    }
}

fn in_milliseconds(digits: &str, unit: &str) -> Option<u128> {
    let scale = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => 3_600_000,
    };
    digits.parse::<u64>().ok().map(|number| u128::from(number) * scale)
}

/// Shows a duration as the configuration writes it.
pub(super) fn duration_text(time: Duration) -> String {
    let ms = time.as_millis();
    [(3_600_000, "h"), (60_000, "m"), (1000, "s")]
        .iter()
        .find(|(scale, _)| ms >= *scale && ms.is_multiple_of(*scale))
        .map_or_else(|| format!("{ms}ms"), |(scale, unit)| format!("{}{unit}", ms / scale))
}

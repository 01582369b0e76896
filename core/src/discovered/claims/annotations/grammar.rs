//! Values of the annotations of OpenShift's router. Each function accepts a valid value, or describes valid ones.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::discovered::discovery::MAX_LIMIT;
use crate::model::Balance;
use crate::wire::http::cookie::SameSite;
use crate::wire::http::forwarded::ForwardedPolicy;
use crate::wire::http::path::is_route_path;

/// Longest time that HAProxy counts, to which the router clips longer ones.
const MAX_TIMEOUT: Duration = Duration::from_millis(2_147_483_647);

/// Reason against a value: a description of valid values.
type Expected = &'static str;

/// Flag, in the words of Go's `ParseBool`.
pub(super) fn flag(text: &str) -> Result<bool, Expected> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err("write \"true\" or \"false\""),
    }
}

/// Limit of connections or requests.
pub(super) fn limit(text: &str) -> Result<u32, Expected> {
    let number = text
        .parse::<u32>()
        .ok()
        .filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
    number
        .filter(|number| (1..=MAX_LIMIT).contains(number))
        .ok_or("write a whole number from 1 to 1000000")
}

/// Time, in milliseconds where there is no unit, clipped as the router clips it.
pub(super) fn timeout(text: &str) -> Result<Duration, Expected> {
    const EXPECTED: Expected = "write a whole number above 0 and us, ms, s, m, h or d, such as 30s";
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() || number.starts_with('0') {
        return Err(EXPECTED);
    }
    // A number of more digits than 64 bits hold is beyond the longest time in any unit.
    let number = number.parse::<u64>().unwrap_or(u64::MAX);
    let milliseconds = |factor: u64| Duration::from_millis(number.saturating_mul(factor));
    let time = match unit {
        "us" => Duration::from_millis(number.div_ceil(1000)),
        "" | "ms" => milliseconds(1),
        "s" => milliseconds(1000),
        "m" => milliseconds(60_000),
        "h" => milliseconds(3_600_000),
        "d" => milliseconds(86_400_000),
        _ => return Err(EXPECTED),
    };
    Ok(time.min(MAX_TIMEOUT))
}

/// Addresses and prefixes of a list, and the entries that are neither. Empty: no client is served. (The router reads a
/// list with a space at its beginning or end as no list, and then serves all clients.)
pub(super) fn allow_list(text: &str) -> (Vec<IpNet>, Vec<&str>) {
    let (mut prefixes, mut bad) = (Vec::new(), Vec::new());
    if text.starts_with(char::is_whitespace) || text.ends_with(char::is_whitespace) {
        return (prefixes, bad);
    }
    for entry in text.split_ascii_whitespace() {
        let address = entry.parse::<IpAddr>().map(IpNet::from);
        match entry.parse::<IpNet>().or(address) {
            Ok(prefix) => prefixes.push(prefix),
            Err(_) => bad.push(entry),
        }
    }
    (prefixes, bad)
}

/// Algorithm of balancing.
pub(super) fn balance(text: &str) -> Result<Balance, Expected> {
    match text {
        "roundrobin" => Ok(Balance::RoundRobin),
        "leastconn" => Ok(Balance::LeastConnections),
        "source" => Ok(Balance::Maglev),
        "random" => Ok(Balance::RandomTwo),
        _ => Err("write roundrobin, leastconn, source or random"),
    }
}

/// Name of a cookie, of the characters that the router takes.
pub(super) fn cookie_name(text: &str) -> Result<String, Expected> {
    let is_good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    if !text.is_empty() && text.bytes().all(is_good) {
        Ok(text.to_owned())
    } else {
        Err("write letters, digits, `_` and `-`")
    }
}

/// Value of `SameSite`.
pub(super) fn same_site(text: &str) -> Result<SameSite, Expected> {
    match text {
        "Lax" => Ok(SameSite::Lax),
        "Strict" => Ok(SameSite::Strict),
        "None" => Ok(SameSite::None),
        _ => Err("write Lax, Strict or None"),
    }
}

/// Policy for forwarded fields.
pub(super) fn forwarded(text: &str) -> Result<ForwardedPolicy, Expected> {
    match text {
        "append" => Ok(ForwardedPolicy::Append),
        "replace" => Ok(ForwardedPolicy::Replace),
        "if-none" => Ok(ForwardedPolicy::IfNone),
        "never" => Ok(ForwardedPolicy::Never),
        _ => Err("write append, replace, if-none or never"),
    }
}

/// Value of Strict-Transport-Security: `max-age` once, `includeSubDomains` and `preload` at most once, in any order.
pub(super) fn hsts(text: &str) -> Result<String, Expected> {
    const EXPECTED: Expected = "write max-age=SECONDS, and perhaps ;includeSubDomains and ;preload";
    let mut seen = Vec::new();
    for directive in text.split(';').map(str::trim) {
        let (name, value) = match directive.split_once('=') {
            Some((name, value)) => (name.trim_end().to_ascii_lowercase(), Some(value.trim_start())),
            None => (directive.to_ascii_lowercase(), None),
        };
        let is_number = |value: &str| !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
        let is_good = match (name.as_str(), value) {
            ("max-age", Some(seconds)) => is_number(seconds),
            ("includesubdomains" | "preload", None) => true,
            _ => false,
        };
        if !is_good || seen.contains(&name) {
            return Err(EXPECTED);
        }
        seen.push(name);
    }
    if seen.iter().any(|name| name == "max-age") {
        Ok(text.trim().to_owned())
    } else {
        Err(EXPECTED)
    }
}

/// Path in place of the Route's own. Percent signs, backslashes, `#` and quotes have a meaning of the router's own.
pub(super) fn rewrite(text: &str) -> Result<String, Expected> {
    let is_plain = !text.contains(['%', '\\', '"', '\'']);
    (is_plain && is_route_path(text))
        .then(|| text.to_owned())
        .ok_or("write a path that begins with `/`, without query, `%`, `\\`, `#`, quotes and spaces")
}

/// Value of a header: a literal text, in which `%%` stands for a percent sign.
pub(super) fn header_value(text: &str) -> Result<String, Expected> {
    let literal = text.replace("%%", "");
    if literal.contains('%') {
        return Err("only literal values are set: no `%[...]`");
    }
    Ok(text.replace("%%", "%"))
}

//! Paths and queries.

use std::fmt::Write as _;

use super::feed::Feed;

/// Returns the path of a feed's objects at one API group and version, with a query.
pub(super) fn path(feed: &Feed, home: &str, query: &str) -> String {
    let plural = feed.resource.plural();
    let mut path = match &feed.namespace {
        Some(namespace) => format!("/{home}/namespaces/{namespace}/{plural}?{query}"),
        None => format!("/{home}/{plural}?{query}"),
    };
    if let Some(labels) = &feed.labels {
        let _ = write!(path, "&labelSelector={}", query_encoded(labels)); // a String takes everything
    }
    path
}

/// Percent-encodes text for a query.
pub(super) fn query_encoded(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => escaped.push(char::from(byte)),
            _ => {
                let _ = write!(escaped, "%{byte:02X}"); // a String takes everything
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_survives_a_query() {
        assert_eq!(
            query_encoded("a/b=c,d in (e, é)&x"),
            "a%2Fb%3Dc%2Cd%20in%20%28e%2C%20%C3%A9%29%26x"
        );
    }
}

//! Names and label selectors as Kubernetes writes them.

use super::node::Place;
use super::report::{Report, quote};

/// A namespace's name.
pub(super) fn namespace(place: &Place<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    if is_namespace(text) {
        return Some(text.to_owned());
    }
    let shown = quote(text);
    place.fault(
        report,
        format!(
            "{shown} is not a namespace: 1 to 63 lower-case letters, digits or `-`, which is neither first nor last"
        ),
    );
    None
}

/// The name of any other object. `what` it is, for messages.
pub(super) fn object_name(place: &Place<'_>, what: &str, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    if is_object_name(text) {
        return Some(text.to_owned());
    }
    let shown = quote(text);
    place.fault(
        report,
        format!(
            "{shown} is not {what}: 1 to 253 lower-case letters, digits, `-` or `.`, which are neither first nor last"
        ),
    );
    None
}

/// A label of DNS (RFC 1123).
pub(super) fn is_namespace(text: &str) -> bool {
    text.len() <= 63 && !text.contains('.') && is_object_name(text)
}

/// Labels of DNS (RFC 1123), as the names of most objects are.
pub(super) fn is_object_name(text: &str) -> bool {
    let ends = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let inner = |b: u8| ends(b) || matches!(b, b'-' | b'.');
    let bytes = text.as_bytes();
    (1..=253).contains(&bytes.len())
        && bytes.iter().all(|b| inner(*b))
        && [bytes.first(), bytes.last()].into_iter().flatten().all(|b| ends(*b))
}

/// A label selector. Only what cannot be one is refused here: the server knows the rest.
pub(super) fn labels(place: &Place<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    if requirements(text).is_some_and(|mut all| all.all(is_requirement)) {
        return Some(text.to_owned());
    }
    let shown = quote(text);
    place.fault(
        report,
        format!(
            "{shown} is not a label selector, such as `router=public`, `tier!=test,shard in (a, b)` or `!internal`"
        ),
    );
    None
}

/// The parts between commas that are not in parentheses; `None`: these do not match.
fn requirements(text: &str) -> Option<impl Iterator<Item = &str>> {
    let mut open = false;
    for character in text.chars() {
        match (character, open) {
            ('(', false) => open = true,
            (')', true) => open = false,
            ('(' | ')', _) => return None,
            _ => {}
        }
    }
    let mut inside = false;
    let parts = text.split(move |c| {
        inside = (inside || c == '(') && c != ')';
        c == ',' && !inside
    });
    (!open).then_some(parts)
}

fn is_requirement(text: &str) -> bool {
    let text = text.trim();
    let set = |op: &str| {
        let (key, values) = text.split_once(op)?;
        Some((key, values.trim().strip_prefix('(')?.strip_suffix(')')?))
    };
    if let Some((key, values)) = set(" notin ").or_else(|| set(" in ")) {
        return is_key(key) && values.split(',').all(|value| is_value(value.trim()));
    }
    for op in ["!=", "==", "="] {
        if let Some((key, value)) = text.split_once(op) {
            return is_key(key) && is_value(value.trim());
        }
    }
    is_key(text.strip_prefix('!').unwrap_or(text))
}

/// `name` or `domain/name`.
fn is_key(text: &str) -> bool {
    let text = text.trim();
    let (domain, name) = text
        .split_once('/')
        .map_or((None, text), |(domain, name)| (Some(domain), name));
    !name.is_empty()
        && is_value(name)
        && domain.is_none_or(|domain| !domain.is_empty() && domain.bytes().all(is_domain))
}

fn is_domain(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.')
}

fn is_value(text: &str) -> bool {
    text.len() <= 63
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_selector(text: &str) -> bool {
        requirements(text).is_some_and(|mut all| all.all(is_requirement))
    }

    #[test]
    fn every_form_of_kubernetes_is_understood() {
        for good in [
            "a=b",
            "a == b",
            "a!=b",
            "a=",
            "a",
            "!a",
            "a in (b)",
            "a in (b, c),d notin (e),f",
            "deploymentconfig=router",
            "ingresscontroller.operator.openshift.io/deployment-ingresscontroller=default",
        ] {
            assert!(is_selector(good), "{good}");
        }
    }

    #[test]
    fn what_cannot_be_one_is_not() {
        for bad in [
            "",
            ",",
            "a=b,",
            "=b",
            "a b",
            "a in b",
            "a in (b",
            "a in (b))",
            "a=b=c",
            "a: b",
            "a=b&x=y",
            "A/B/c=d",
            "é=1",
        ] {
            assert!(!is_selector(bad), "{bad}");
        }
    }
}

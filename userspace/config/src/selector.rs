//! Names and label selectors as Kubernetes writes them.

use signalbox_core::model::labels::Selector;

use super::node::NodeRef;
use super::report::{Report, quote};

/// Decodes a namespace's name.
pub(super) fn namespace(place: &NodeRef<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    if is_namespace(text) {
        return Some(text.to_owned());
    }
    let shown = quote(text);
    place.error(
        report,
        format!(
            "{shown} is not a namespace: 1 to 63 lower-case letters, digits or `-`, which is neither first nor last"
        ),
    );
    None
}

/// Decodes the name of any other object. `what`: the kind of object, for messages.
pub(super) fn object_name(place: &NodeRef<'_>, what: &str, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    if is_object_name(text) {
        return Some(text.to_owned());
    }
    let shown = quote(text);
    place.error(
        report,
        format!(
            "{shown} is not {what}: 1 to 253 lower-case letters, digits, `-` or `.`, which are neither first nor last"
        ),
    );
    None
}

/// Whether a text is a DNS label (RFC 1123).
pub(super) fn is_namespace(text: &str) -> bool {
    text.len() <= 63 && !text.contains('.') && is_object_name(text)
}

/// Whether a text is a series of DNS labels (RFC 1123), as the names of most objects are.
pub(super) fn is_object_name(text: &str) -> bool {
    let ends = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let inner = |b: u8| ends(b) || matches!(b, b'-' | b'.');
    let bytes = text.as_bytes();
    (1..=253).contains(&bytes.len())
        && bytes.iter().all(|b| inner(*b))
        && [bytes.first(), bytes.last()].into_iter().flatten().all(|b| ends(*b))
}

/// Decodes a label selector. The text is kept as the file has it, because the API server reads it too.
pub(super) fn labels(place: &NodeRef<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    match Selector::parse(text) {
        Ok(_) => Some(text.to_owned()),
        Err(error) => {
            let shown = quote(text);
            place.error(
                report,
                format!(
                    "{shown} is not a label selector, such as `router=public`, `tier!=test,shard in (a, b)` or `!internal`: \
                     {error}"
                ),
            );
            None
        }
    }
}

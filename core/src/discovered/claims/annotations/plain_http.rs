//! Treatment of plain HTTP for a Route (`spec.tls.insecureEdgeTerminationPolicy`).

use super::{keys, truncated};
use crate::discovered::claims::object::Object;
use crate::model::tls::InsecurePolicy;

/// Treatment of plain HTTP for a Route. OpenShift's router does not serve plain HTTP to Routes with TLS unless they ask
/// for it.
pub(super) fn policy(object: &Object, notes: &mut Vec<String>) -> InsecurePolicy {
    if !object.ends_tls && !object.passes_tls() {
        return InsecurePolicy::Allow;
    }
    let expected = match object.insecure.as_deref() {
        None | Some("" | "None") => return InsecurePolicy::None,
        Some("Redirect") => return InsecurePolicy::Redirect,
        Some("Allow") if !object.passes_tls() => return InsecurePolicy::Allow,
        _ if object.passes_tls() => "Redirect or None, since TLS passes through",
        _ => "Allow, Redirect or None",
    };
    let text = truncated(object.insecure.as_deref().unwrap_or_default());
    notes.push(format!("{}: {text:?} is ignored: expected {expected}", keys::INSECURE));
    InsecurePolicy::None
}

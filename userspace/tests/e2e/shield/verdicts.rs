//! The shield in the API.

use serde_json::Value;

use crate::lab::Signalbox;
use crate::lab::signalbox::find;

/// A guard by its name.
pub(crate) fn guard(sb: &Signalbox, name: &str) -> Value {
    find(&sb.json("/api/v1/shield")["guards"], "name", name)
}

/// Returns how often a guard has decided so.
pub(crate) fn decided(sb: &Signalbox, name: &str, decision: &str) -> u64 {
    let guard = guard(sb, name);
    guard["decisions"][decision]
        .as_u64()
        .unwrap_or_else(|| panic!("no `{decision}` of {name}: {guard}"))
}

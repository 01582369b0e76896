//! Plan: the operations on the kernel's map that make the wanted bindings. Pure: same input, same operations.

use std::collections::BTreeMap;

use signalbox_common::steer::{SLOT_V4, SLOT_V6, STEER_FIXED_BITS, SteerKey, SteerValue};

use crate::model::Listener;
use crate::wire::address::ipv4_mapped;

/// Key of `STEER_BINDINGS`: prefix length in bits, and the data it covers.
pub type BindingKey = (u32, SteerKey);

/// Contents of `STEER_BINDINGS`.
pub type Bindings = BTreeMap<BindingKey, (u32, u32)>;

/// Operation on `STEER_BINDINGS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindingOp {
    /// Inserts or replaces an entry.
    Set(BindingKey, SteerValue),
    /// Removes an entry.
    Remove(BindingKey),
}

/// Contents that `STEER_BINDINGS` must have for these listeners, each with its number.
#[must_use]
pub fn bindings<'a>(listeners: impl IntoIterator<Item = (&'a Listener, u32)>) -> Bindings {
    let mut wanted = Bindings::new();
    for (listener, id) in listeners {
        for bind in &listener.listen {
            // IPv4 is in the last 32 bits of its mapped form.
            let (family, before, slot) = if bind.prefix.addr().is_ipv4() {
                (4, 96, SLOT_V4)
            } else {
                (6, 0, SLOT_V6)
            };
            let bits = STEER_FIXED_BITS + before + u32::from(bind.prefix.prefix_len());
            let key = SteerKey::new(bind.port, family, ipv4_mapped(bind.prefix.network()));
            wanted.entry((bits, key)).or_insert((id, slot));
        }
    }
    wanted
}

/// Operations that turn `now` into `wanted`: additions first, so that a binding that moves is never absent.
#[must_use]
pub fn diff(now: &Bindings, wanted: &Bindings) -> Vec<BindingOp> {
    let set = wanted
        .iter()
        .filter(|(key, value)| now.get(*key) != Some(*value))
        .map(|(key, &(listener, slot))| BindingOp::Set(*key, SteerValue { listener, slot }));
    let remove = now
        .keys()
        .filter(|key| !wanted.contains_key(*key))
        .map(|key| BindingOp::Remove(*key));
    set.chain(remove).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn apply(map: &mut Bindings, op: BindingOp) {
        match op {
            BindingOp::Set(key, value) => map.insert(key, (value.listener, value.slot)),
            BindingOp::Remove(key) => map.remove(&key),
        };
    }

    fn any_bindings() -> impl Strategy<Value = Bindings> {
        prop::collection::btree_map((32u32..160, 0u16..5, 0u8..5), (0u32..3, 0u32..2), 0..20).prop_map(|m| {
            m.into_iter()
                .map(|((bits, port, last), v)| ((bits, SteerKey::new(port, 6, [last; 16])), v))
                .collect()
        })
    }

    proptest! {
        #[test]
        fn a_diff_yields_the_target_and_no_step_loses_a_kept_key(a in any_bindings(), b in any_bindings()) {
            let mut map = a.clone();
            for op in diff(&a, &b) {
                apply(&mut map, op);
                for key in a.keys().filter(|k| b.contains_key(*k)) {
                    prop_assert!(map.contains_key(key));
                }
            }
            prop_assert_eq!(map, b);
        }
    }
}

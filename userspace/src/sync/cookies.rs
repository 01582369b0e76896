//! The key of SYN cookies that all nodes have in common: a client that has opened a connection and sent nothing yet is
//! served by the node that has the address by then.

use std::sync::atomic::Ordering::Relaxed;

use signalbox_common::peek::cookie_key::CookieKey;
use signalbox_core::availability::sync::{Message, SharedCookieKey};

use super::Node;
use crate::kernel::cut::table::monotonic;
use crate::kernel::peek::OtherKey;
use crate::state::sync::PeerState;

/// This node's key, as other nodes are told of it; `None` without the kernel peek.
pub(super) fn own_key(node: &Node) -> Option<Message> {
    let CookieKey { key, ahead_ms, born } = node.shared.kernel.cookie_keys.get()?.current();
    let clock_ms = now_ms().wrapping_add(ahead_ms);
    Some(Message::CookieKey(SharedCookieKey { born, key, clock_ms }))
}

/// Takes note of another node's key.
pub(super) fn learn(node: &Node, peer: &PeerState, shared: &SharedCookieKey) {
    let Some(keys) = node.shared.kernel.cookie_keys.get() else {
        return;
    };
    let learned = keys.learn(&CookieKey {
        key: shared.key,
        ahead_ms: shared.clock_ms.wrapping_sub(now_ms()),
        born: shared.born,
    });
    if learned == OtherKey::Adopted {
        tracing::info!(node = peer.node, "SYN cookies have the other node's key from now on.");
    }
    let is_shared = matches!(learned, OtherKey::Same | OtherKey::Adopted);
    peer.has_same_cookies.store(is_shared, Relaxed);
}

fn now_ms() -> u64 {
    monotonic().as_millis() as u64
}

//! Samples of packets that the shield has dropped: kept for a while, and streamed to followers.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use parking_lot::Mutex;
use signalbox_api::shield::{DropView, GuardKind};
use signalbox_common::shield::{Decision, DroppedPacket};
use tokio::sync::broadcast;

use crate::kernel::address::from_words;

/// Number of kept samples.
const MAX_KEPT: usize = 1000;

/// Latest samples, and the channel of new ones.
pub struct Drops {
    kept: Mutex<VecDeque<DropView>>,
    subscribers: broadcast::Sender<DropView>,
}

impl Default for Drops {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            subscribers: broadcast::channel(MAX_KEPT).0,
        }
    }
}

impl Drops {
    pub(super) fn add(&self, view: DropView) {
        let mut kept = self.kept.lock();
        if kept.len() == MAX_KEPT {
            kept.pop_front();
        }
        kept.push_back(view.clone());
        drop(kept);
        // A missing follower is no error.
        let _ = self.subscribers.send(view);
    }

    /// Returns the latest samples, the oldest first.
    #[must_use]
    pub fn latest(&self, most: usize) -> Vec<DropView> {
        let kept = self.kept.lock();
        kept.iter().skip(kept.len().saturating_sub(most)).cloned().collect()
    }

    /// Subscribes to new samples.
    #[must_use]
    pub fn follow(&self) -> broadcast::Receiver<DropView> {
        self.subscribers.subscribe()
    }
}

/// Returns the metric label of a verdict.
#[must_use]
pub fn label(judged: u32) -> &'static str {
    Decision::ALL
        .get(judged as usize)
        .map_or("unknown", |judged| judged.reason().label())
}

pub(super) fn view(dropped: &DroppedPacket, names: &HashMap<u32, (GuardKind, String)>) -> DropView {
    let ago = crate::kernel::cut::table::clock().saturating_sub(dropped.time);
    let at = |address, port: u32| SocketAddr::new(from_words(address), port as u16);
    let guard = names.get(&dropped.guard);
    DropView {
        time_ms: crate::sys::unix_ms().saturating_sub(ago / 1_000_000),
        source: at(dropped.source, dropped.ports >> 16),
        destination: at(dropped.destination, dropped.ports),
        protocol: if dropped.protocol == 6 { "tcp" } else { "udp" }.into(),
        guard: guard.map(|(_, name)| name.clone()).unwrap_or_default(),
        kind: guard.map(|(kind, _)| *kind),
        reason: label(dropped.decision).into(),
        bytes: dropped.length,
        flags: letters(dropped.flags),
        interface: nix::net::if_::if_indextoname(dropped.ifindex)
            .ok()
            .and_then(|name| name.into_string().ok())
            .unwrap_or_default(),
    }
}

/// Formats TCP's control bits by their first letters, the lowest first (RFC 9293, section 3.1).
fn letters(flags: u32) -> String {
    let all = "FSRPAUEC".chars().enumerate();
    all.filter(|(bit, _)| flags >> bit & 1 != 0)
        .map(|(_, letter)| letter)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_bits_are_letters_and_the_oldest_samples_go() {
        assert_eq!((letters(0x12), letters(0)), ("SA".to_owned(), String::new()));
        let drops = Drops::default();
        for length in 0..MAX_KEPT as u32 + 5 {
            let dropped = DroppedPacket {
                length,
                decision: Decision::Denied as u32,
                ..DroppedPacket::default()
            };
            drops.add(view(&dropped, &HashMap::new()));
        }
        let latest = drops.latest(MAX_KEPT * 2);
        assert_eq!(
            (latest.len(), latest[0].bytes, &*latest[0].reason),
            (MAX_KEPT, 5, "denied")
        );
        assert_eq!(drops.latest(1)[0].bytes, MAX_KEPT as u32 + 4);
    }
}

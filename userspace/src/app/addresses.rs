//! Virtual addresses when the process ends: they leave first, and connections are accepted until they have left.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::state::Shared;
use crate::sync;

/// Time for addresses to leave, at most. keepalived needs some tenths of a second.
const END_TIMEOUT: Duration = Duration::from_secs(3);
/// Time in which neighbours learn the new owner's Ethernet address: until then their SYNs come here.
const NEIGHBOUR_INTERVAL: Duration = Duration::from_millis(300);

/// Makes the connections of groups that leave with this process drain here, before the supervisor learns of the end.
pub(super) async fn hand_over(shared: &Arc<Shared>, period: Duration) {
    shared.ha.begin_to_end();
    let mut all = JoinSet::new();
    for group in shared.ha.owned().iter() {
        let (shared, group) = (Arc::clone(shared), group.clone());
        // The result is logged where it occurs.
        all.spawn(async move { sync::hand_over::request(&shared, &group, period).await });
    }
    let _ = all.join_all().await;
}

/// Waits until the addresses have left. Without a supervisor, or a program that reports, none of them are known.
pub(super) async fn have_left(shared: &Shared, period: Duration) {
    let mut owned = shared.ha.subscribe();
    if owned.borrow().is_empty() {
        return;
    }
    let all_left = owned.wait_for(|owned| owned.is_empty());
    let _ = tokio::time::timeout(period.min(END_TIMEOUT), all_left).await;
    tokio::time::sleep(period.min(NEIGHBOUR_INTERVAL)).await;
}

//! Virtual addresses when the process ends: they leave first, and connections are accepted until they have left.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::state::Shared;
use crate::sync;

/// Time for addresses to leave, at most. keepalived needs some tenths of a second.
const END_TIMEOUT: Duration = Duration::from_secs(3);
/// How often it is asked whether they have left.
const ASK_INTERVAL: Duration = Duration::from_millis(10);
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
    let is_here = || !shared.ha.owned().is_empty();
    if !is_here() {
        return;
    }
    let end = Instant::now() + period.min(END_TIMEOUT);
    while is_here() && Instant::now() < end {
        tokio::time::sleep(ASK_INTERVAL).await;
    }
    tokio::time::sleep(period.min(NEIGHBOUR_INTERVAL)).await;
}

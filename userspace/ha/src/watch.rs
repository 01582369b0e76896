//! The round of checks, one each interval.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{Settings, check};

/// Checks endlessly, and publishes whether the node is well: not until the first check has been passed.
pub(crate) async fn run(settings: watch::Receiver<Arc<Settings>>, result: watch::Sender<bool>) {
    let mut told = None;
    loop {
        let current = Arc::clone(&settings.borrow());
        let interval = current.ha.watch.interval;
        let next = tokio::time::Instant::now() + interval;
        let outcome = check::once(&current).await;
        if told != Some(outcome.is_ok()) {
            match &outcome {
                Ok(()) => tracing::info!("The check of this node is passed."),
                Err(why) => tracing::warn!(why, "The check of this node has failed."),
            }
        }
        told = Some(outcome.is_ok());
        let is_well = outcome.is_ok();
        result.send_if_modified(|last| std::mem::replace(last, is_well) != is_well);
        tokio::time::sleep_until(next).await;
    }
}

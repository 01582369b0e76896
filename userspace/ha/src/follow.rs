//! The connection to signalbox: whether it is there and ready, as it reports itself, and reports of states to it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use signalbox_api::ha::Condition;
use signalbox_sources::client::ApiClient;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Settings;

/// Time without a heartbeat after which signalbox counts as hung: it reports its condition twice a second.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two attempts to reach a signalbox that does not answer.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Follows signalbox endlessly, and publishes its condition.
pub(crate) async fn run(settings: watch::Receiver<Arc<Settings>>, condition: watch::Sender<Condition>) {
    loop {
        let socket = settings.borrow().socket.clone();
        // A process that ends may have a successor, which answers at once: only if there is none is signalbox dead.
        if follow(socket, &condition).await {
            continue;
        }
        let publish = |last: &mut Condition| std::mem::take(last) != Condition::default();
        if condition.send_if_modified(publish) {
            tracing::warn!("signalbox does not answer.");
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Follows one process; returns whether it has answered, and another attempt is due at once.
async fn follow(socket: PathBuf, condition: &watch::Sender<Condition>) -> bool {
    let client = ApiClient::Socket(socket);
    let (heard, mut last) = (watch::Sender::new(Instant::now()), None::<Condition>);
    let mut silence = heard.subscribe();
    let lines = client.stream_lines("/api/v1/ha/follow", String::new(), |line| {
        let Some(data) = line.strip_prefix(b"data: ") else {
            return true;
        };
        let Ok(new) = serde_json::from_slice::<Condition>(data) else {
            return true;
        };
        heard.send_replace(Instant::now());
        // A process that stops is followed no longer, unless it is the one that has the socket.
        let leaves = new.stopping && last.as_ref().is_some_and(|last| !last.stopping);
        last = Some(new.clone());
        if !leaves {
            condition.send_if_modified(|old| std::mem::replace(old, new.clone()) != new);
        }
        !leaves
    });
    let is_silent = async {
        loop {
            let deadline = *silence.borrow_and_update() + SILENCE_TIMEOUT;
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => return,
                changed = silence.changed() => if changed.is_err() { std::future::pending::<()>().await },
            }
        }
    };
    tokio::select! {
        _ = lines => {}
        () = is_silent => {
            tracing::warn!("signalbox has not said anything for too long.");
            return false;
        }
    }
    last.is_some()
}

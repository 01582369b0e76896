//! Asks each host, again and again, whether it is well. Tells the store what it hears; decides nothing.

mod probe;

use std::sync::Arc;
use std::time::{Duration, Instant};

use signalbox_common::hash;
use signalbox_core::model::{HealthCheck, Host};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::state::{CheckResult, HostState};
use crate::store::Event;

/// Checks a host until aborted. `recheck` asks for a check sooner than its turn.
pub fn spawn(
    check: HealthCheck,
    host: Host,
    state: Arc<HostState>,
    recheck: Arc<Notify>,
    events: mpsc::UnboundedSender<Event>,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let prober = probe::Prober::new(&check.probe, &host);
        let mut round = 0;
        loop {
            let began = Instant::now();
            let outcome = match timeout(check.timeout, prober.ask()).await {
                Ok(outcome) => outcome,
                Err(_) => Some(Err(format!("no answer within {:?}", check.timeout))),
            };
            // Nothing is said of a host that could not be asked: our shortage must not take all hosts down.
            if let Some(outcome) = outcome {
                let (ok, detail) = match outcome {
                    Ok(detail) => (true, detail),
                    Err(detail) => (false, detail),
                };
                let seconds = began.elapsed().as_secs_f64();
                let result = CheckResult { ok, detail, seconds };
                if events.send(Event::Checked(Arc::clone(&state), result)).is_err() {
                    return;
                }
            }
            round += 1;
            // The interval runs from start to start, or a slow answer would stretch it.
            let next = (began + jittered(check.interval, &state.name, round)).into();
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = recheck.notified() => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    })
}

/// The interval, shortened by up to a tenth, so that the checks of many hosts spread out by themselves.
fn jittered(interval: Duration, name: &str, round: u64) -> Duration {
    let tenth = hash::mix(hash::bytes(round, name.as_bytes())) % 1000;
    interval - interval / 10 * tenth as u32 / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_only_shortens_and_by_a_tenth_at_most() {
        let interval = Duration::from_secs(5);
        for round in 0..1000 {
            let wait = jittered(interval, "east-1", round);
            assert!(wait <= interval && wait >= interval * 9 / 10, "{wait:?}");
        }
    }
}

//! Checks the health of hosts, each in a separate task. Reports to the store and decides nothing.

mod host_check;
mod name_probe;
mod probe;
mod udp;

use std::sync::Arc;
use std::time::{Duration, Instant};

use signalbox_api::hosts::LastCheck;
use signalbox_common::hash;
use signalbox_core::model::{HealthCheck, Host};
use signalbox_core::routing::health::Hysteresis;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

pub use name_probe::{NameProber, ProbeTls};

use crate::control::event::StoreEvent;
use crate::state::HostState;

/// Delay after a request for a recheck, so that many failed connections lead to one check.
const RECHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Checks a host until aborted. `recheck` requests a check before the next is due. `counted` has the results of earlier
/// checks.
pub fn spawn(
    check: HealthCheck,
    host: Host,
    state: Arc<HostState>,
    mut counted: Hysteresis,
    recheck: Arc<Notify>,
    events: mpsc::UnboundedSender<StoreEvent>,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut question = host_check::HostCheck::new(&check, &host);
        let mut round = 0;
        loop {
            let began = Instant::now();
            let verdict = question.ask().await;
            question.tell_handshake(&state.handshake);
            // A check that failed because the balancer lacks resources says nothing about the host: it must not take
            // all hosts down.
            if let Some(verdict) = verdict {
                let (ok, detail) = match verdict.outcome {
                    Ok(detail) => (true, detail),
                    Err(detail) => (false, detail),
                };
                // The store counts too, and decides. This count only sets the interval.
                counted.observe(ok, check.rise, check.fall);
                let seconds = began.elapsed().as_secs_f64();
                let result = LastCheck {
                    ok,
                    detail,
                    asked: Some(verdict.description),
                    seconds: Some(seconds),
                };
                if events.send(StoreEvent::Checked(Arc::clone(&state), result)).is_err() {
                    return;
                }
            }
            round += 1;
            let until_next = jittered(check.until_next(&counted), &state.name, round);
            // The interval is from start to start: otherwise a slow answer would delay the next check.
            let next = tokio::time::Instant::from(began + until_next);
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                // Only the first failure is found sooner: under load, others would follow at once, whatever `fall` is.
                () = recheck.notified(), if !counted.is_counting() => {
                    tokio::time::sleep_until(next.min(tokio::time::Instant::now() + RECHECK_INTERVAL)).await;
                }
            }
        }
    })
}

/// Shortens an interval by up to a tenth, to spread out the checks of many hosts.
fn jittered(interval: Duration, name: &str, round: u64) -> Duration {
    let tenth = hash::mix(hash::bytes(round, name.as_bytes())) % 1000;
    interval - interval / 10 * tenth as u32 / 1000
}

#[cfg(test)]
mod tests {
    use signalbox_core::model::{HttpProbe, Probe};

    use super::*;

    fn host() -> Host {
        Host {
            name: "h".into(),
            address: [127, 0, 0, 1].into(),
            http: None,
            https: None,
            tcp: None,
            ports: std::collections::BTreeMap::new(),
            weight: 1,
            backup: false,
            health_page: None,
        }
    }

    #[tokio::test]
    async fn a_host_that_hangs_is_down_by_the_first_check_that_hangs() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let probe = HttpProbe {
            port: Some(port),
            path: "/".into(),
            host_header: None,
            tls: None,
        };
        let check = HealthCheck {
            probe: Probe::Http(probe),
            interval: Duration::from_millis(600),
            timeout: Duration::from_millis(300),
            ..HealthCheck::DEFAULT
        };
        let host = host();
        let state = Arc::new(HostState::new("east", "h", host.address));
        let (events, mut told) = mpsc::unbounded_channel();
        let checks = spawn(
            check.clone(),
            host,
            state,
            Hysteresis::default(),
            Arc::default(),
            events,
        );
        let mut hysteresis = Hysteresis::default();
        let mut verdict = async |health: &str| {
            let Some(StoreEvent::Checked(_, result)) = told.recv().await else {
                panic!("a check's verdict");
            };
            let now = hysteresis.observe(result.ok, check.rise, check.fall);
            assert_eq!(format!("{now:?}"), health, "{result:?}");
            result.detail
        };
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 200 OK\r\n\r\n")
            .await
            .unwrap();
        verdict("Some(Healthy)").await;
        // From here on the kernel accepts but no process answers, as with a stopped process.
        assert_eq!(verdict("Some(Unhealthy)").await, "no answer within 300ms");
        checks.abort();
    }

    /// The fast interval applies while checks are counted: with an hour's interval this test would not end.
    #[tokio::test]
    async fn counted_checks_follow_each_other_at_the_fast_interval() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let check = HealthCheck {
            probe: Probe::Tcp {
                port: Some(listener.local_addr().unwrap().port()),
            },
            interval: Duration::from_secs(3600),
            fast_interval: Some(Duration::from_millis(10)),
            rise: 3,
            ..HealthCheck::DEFAULT
        };
        let mut counted = Hysteresis::default();
        counted.observe(false, check.rise, check.fall);
        let state = Arc::new(HostState::new("east", "h", host().address));
        let (events, mut told) = mpsc::unbounded_channel();
        let checks = spawn(check, host(), state, counted, Arc::default(), events);
        for _ in 0..3 {
            assert!(matches!(told.recv().await, Some(StoreEvent::Checked(_, result)) if result.ok));
        }
        checks.abort();
    }

    /// A failed connect has the host checked, but each further check of `fall` waits its time.
    #[tokio::test]
    async fn failed_connects_count_once_towards_fall() {
        let port = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr();
        let check = HealthCheck {
            probe: Probe::Tcp {
                port: Some(port.unwrap().port()),
            },
            interval: Duration::from_secs(3600),
            fall: 2,
            ..HealthCheck::DEFAULT
        };
        let mut counted = Hysteresis::default();
        counted.observe(true, check.rise, check.fall);
        let state = Arc::new(HostState::new("east", "h", host().address));
        let (events, mut told) = mpsc::unbounded_channel();
        let recheck = Arc::<Notify>::default();
        let checks = spawn(check, host(), state, counted, Arc::clone(&recheck), events);
        assert!(matches!(told.recv().await, Some(StoreEvent::Checked(_, result)) if !result.ok));
        recheck.notify_one();
        let next = tokio::time::timeout(RECHECK_INTERVAL * 4, told.recv()).await;
        assert!(next.is_err(), "a failed connect counts as a check of its own");
        checks.abort();
    }

    #[test]
    fn jitter_only_shortens_and_by_a_tenth_at_most() {
        let interval = Duration::from_secs(5);
        for round in 0..1000 {
            let wait = jittered(interval, "east-1", round);
            assert!(wait <= interval && wait >= interval * 9 / 10, "{wait:?}");
        }
    }
}

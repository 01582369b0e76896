//! Consumer of messages: tries one broker after the other, takes each message, then acknowledges it.
//!
//! A message is never refused with NACK. ActiveMQ would answer by moving the message to its own dead-letter queue,
//! where no one would look for it, so a full disk here would lose an event. A message that cannot be recorded is kept,
//! not acknowledged, and tried again; with a prefetch of one nothing overtakes it, until it is recorded or an operator
//! has it skipped. If the process dies first, the broker delivers the message again.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::connect::connect;
use super::session::{BrokerEvent, HEART_BEAT_INTERVAL, Message, Session};
use super::{EventsError, RoutingSpi, SOURCE};
use signalbox_sources::backoff::Backoff;

/// First and longest pause before the next attempt.
const RETRY_INTERVALS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// Time limit of a connect, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Most errors kept as logged, because brokers put addresses and other varying text into their messages.
const MAX_ERROR_CHARS: usize = 100;

/// Age from which on a lost connection resets the back-off, as does a message.
const MIN_GOOD_CONNECTION_INTERVAL: Duration = Duration::from_secs(30);

fn backoff() -> Backoff {
    Backoff::new(RETRY_INTERVALS.0, RETRY_INTERVALS.1, SOURCE)
}

/// Consumes endlessly. May be dropped at any point: unacknowledged messages are delivered again.
pub(super) async fn run(spi: Arc<RoutingSpi>) -> Infallible {
    if spi.settings.brokers.is_empty() {
        // Without brokers, events are only posted, and the source is up to date at any time.
        spi.status.mark_heard();
        return std::future::pending().await;
    }
    let mut backoff = self::backoff();
    let mut said = HashSet::new();
    loop {
        for broker in &spi.settings.brokers {
            let begun = Instant::now();
            let mut took = false;
            let host = &broker.host;
            let stream = timeout(CONNECT_TIMEOUT, connect(broker, spi.settings.tls.as_ref()));
            let stream = stream.await.unwrap_or_else(|_| Err("connecting: no answer".to_owned()));
            let session = match stream {
                Ok(stream) => Session::open(stream, host, &spi.settings, HEART_BEAT_INTERVAL).await,
                Err(error) => Err(error),
            };
            let error = match session {
                Ok(mut session) => {
                    let Err(error) = serve(&spi, &mut session, &mut took).await;
                    error
                }
                Err(error) => error,
            };
            let error = format!("{broker}: {error}");
            // Logged once for each error: an attempt that fails again is no change of state.
            if said.insert(error.clone()) {
                tracing::warn!(error, "The broker of routing events cannot be reached.");
            }
            if took || said.len() >= MAX_ERROR_CHARS {
                said.clear();
            }
            spi.status.mark_failed(error);
            if took || begun.elapsed() >= MIN_GOOD_CONNECTION_INTERVAL {
                backoff.reset();
                // The broker may only be restarting: the next one comes first, but not at once.
                sleep(backoff.pause()).await;
            }
        }
        sleep(backoff.pause()).await;
    }
}

async fn serve(spi: &Arc<RoutingSpi>, session: &mut Session, took: &mut bool) -> Result<Infallible, String> {
    let mut subscribed = false;
    loop {
        match session.next_event().await? {
            BrokerEvent::Subscribed => {
                tracing::info!("Routing events are received.");
                subscribed = true;
                spi.status.mark_heard();
            }
            // Heart-beats prove that nothing has happened: the source is up to date.
            BrokerEvent::HeartBeat if subscribed => spi.status.mark_heard(),
            BrokerEvent::HeartBeat => {}
            BrokerEvent::Message(message) => {
                take(spi, session, &message).await?;
                session.ack(&message).await?;
                spi.status.mark_heard();
                *took = true;
            }
        }
    }
}

/// Guard that removes the waiting message when dropped, after any outcome.
struct ClearOnDrop<'a>(&'a RoutingSpi);

impl Drop for ClearOnDrop<'_> {
    fn drop(&mut self) {
        self.0.blocked_message.clear();
    }
}

/// Takes a message. Returns when it may be acknowledged.
async fn take(spi: &Arc<RoutingSpi>, session: &mut Session, message: &Message) -> Result<(), String> {
    let mut backoff = self::backoff();
    let _opens = ClearOnDrop(spi);
    loop {
        let text = match std::str::from_utf8(&message.body) {
            _ if message.cut => Err((
                "the message is too large".to_owned(),
                String::from_utf8_lossy(&message.body),
            )),
            Ok(text) => Ok(text),
            Err(error) => Err((
                format!("the message is not UTF-8: {error}"),
                String::from_utf8_lossy(&message.body),
            )),
        };
        let result = match text {
            Ok(text) => match session.run_with_heart_beats(spi.apply_text(text)).await? {
                Err(EventsError::Text(error)) => add_dead_letter(spi, session, &error.to_string(), text).await?,
                other => other.map(drop),
            },
            Err((reason, text)) => add_dead_letter(spi, session, &reason, &text).await?,
        };
        let Err(error) = result else { return Ok(()) };
        tracing::warn!(%error, "A routing event cannot be recorded and waits.");
        spi.status.events.inc("waiting");
        let error = error.to_string();
        let text = String::from_utf8_lossy(&message.body);
        let skip = spi.blocked_message.wait(&error, &text);
        spi.status.mark_failed(error.clone());
        let pause = async {
            tokio::select! {
                asked = skip => asked.ok(),
                () = sleep(backoff.pause()) => None,
            }
        };
        if let Some(asked) = session.run_with_heart_beats(pause).await? {
            session
                .run_with_heart_beats(spi.pass_over(asked, &error, &text))
                .await?;
            return Ok(());
        }
    }
}

async fn add_dead_letter(
    spi: &Arc<RoutingSpi>,
    session: &mut Session,
    reason: &str,
    text: &str,
) -> Result<Result<(), EventsError>, String> {
    let result = session.run_with_heart_beats(spi.add_dead_letter(reason, text)).await?;
    if result.is_ok() {
        tracing::warn!(reason, "A message is not a routing event: it is kept as a dead letter.");
    }
    Ok(result)
}

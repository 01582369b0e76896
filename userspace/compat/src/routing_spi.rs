//! OpenShift's routing SPI: from events of an ActiveMQ broker over STOMP, or posted over HTTP, to reports to the store.
//!
//! This module owns the connection to the broker, the ledger's records, the files of certificates, and messages that
//! could not be understood; `core::discovered::spi` decides what events mean. The data flow: broker -> `session` -> `consume` ->
//! `intake` -> ledger, files, then [`DiscoveryUpdate`](super::DiscoveryUpdate), then the acknowledgement. An
//! acknowledged message survives a crash; others are delivered again.

mod blocked;
mod certificates;
mod connect;
mod consume;
mod dead_letters;
mod intake;
mod ledger;
mod outcome;
mod rotation;
mod session;
mod stomp;

use std::convert::Infallible;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use signalbox_core::discovered::discovery::Discovered;
use signalbox_core::discovered::spi::{AppKey, Application, parse};
use signalbox_core::model::{Cluster, RoutingEvents};

use blocked::{BlockedSlot, SkipRequest};
use intake::{AppliedEvents, Intake};
use signalbox_sources::SourceStatus;

pub use blocked::SkipError;
pub use intake::{SOURCE, UpdateSink};
pub use ledger::Ledger;
pub use outcome::{EventsError, OpenError};
pub use rotation::{EndpointRotation, OWNER, PendingRotation, RotationSink};
pub use signalbox_api::events::{Blocked, DeadLetter, EventsOutcome};

/// Returns what a cluster of an application waits for, if the configuration names it; `None`: nothing.
#[must_use]
pub fn why_waiting(discovered: &Discovered, cluster: &Cluster) -> Option<&'static str> {
    let application = cluster.application_name()?;
    let is_known = discovered.get(SOURCE).is_some_and(|of| of.contains_key(application));
    (!is_known).then_some("no routing event has reported this application yet")
}

/// Source of routing events.
pub struct RoutingSpi {
    settings: RoutingEvents,
    status: Arc<SourceStatus>,
    /// Lock of the state, held while the ledger writes: events are taken one after the other.
    intake: Mutex<Intake>,
    blocked_message: BlockedSlot,
}

impl RoutingSpi {
    /// Restores the state from `records` (all of the ledger's; unknown keys are ignored), brings the files of
    /// certificates up to date, and reports every application. Blocks on files.
    ///
    /// # Errors
    /// A record makes no sense, or the directory for certificates cannot be used.
    pub fn open(
        settings: RoutingEvents,
        records: impl IntoIterator<Item = (String, Vec<u8>)>,
        ledger: Arc<dyn Ledger>,
        tell: UpdateSink,
        ask: RotationSink,
    ) -> Result<Arc<Self>, OpenError> {
        let books = Intake::open(settings.clone(), records, ledger, tell, ask)?;
        Ok(Arc::new(Self {
            settings,
            status: SourceStatus::new(SOURCE, SOURCE),
            intake: Mutex::new(books),
            blocked_message: BlockedSlot::default(),
        }))
    }

    /// Returns the source's status. Events are counted by action, and as `bad_message`, `waiting` (for the ledger),
    /// `skipped` (by an operator) or `refused` (by the store).
    #[must_use]
    pub fn status(&self) -> &Arc<SourceStatus> {
        &self.status
    }

    /// Consumes from the brokers endlessly. May be dropped at any point: unacknowledged messages are delivered again.
    pub async fn run(self: Arc<Self>) -> Infallible {
        consume::run(self).await
    }

    /// Takes the events of a text, one or many documents, as if the broker had sent them: all of them or none. On
    /// return they are recorded, and the store has answered.
    ///
    /// # Errors
    /// The text is wrong (the poster's fault), or it could not be recorded (ours; it can be posted again).
    pub async fn apply_text(self: &Arc<Self>, text: &str) -> Result<EventsOutcome, EventsError> {
        let (spi, text) = (Arc::clone(self), text.to_owned());
        let AppliedEvents {
            mut outcome,
            answers,
            rotations: turns,
        } = blocking(move || spi.intake().apply(&text, |kind| spi.status.events.inc(kind))).await?;
        for (cluster, answer) in answers {
            // A closed channel means that the store does not object.
            if let Ok(Err(reason)) = answer.await {
                tracing::warn!(cluster, reason, "The store refuses the content of a routing event.");
                self.status.events.inc("refused");
                outcome.refused.insert(cluster, reason);
            }
        }
        for turn in turns {
            // Without an answer the process is ending, and the events come again.
            let answer = turn.await.unwrap_or_else(|_| Err("signalbox is ending".to_owned()));
            answer.map_err(EventsError::Rotation)?;
        }
        if self.settings.brokers.is_empty() {
            self.status.mark_heard();
        }
        Ok(outcome)
    }

    /// Returns what a text of events would change; changes, records and counts nothing.
    ///
    /// # Errors
    /// The text is wrong.
    pub fn dry_run(&self, text: &str) -> Result<EventsOutcome, EventsError> {
        let events = parse(text)?;
        let changed = self.intake().applications.changes_after(&events);
        Ok(EventsOutcome {
            events: events.len(),
            changed: changed.keys().map(AppKey::to_string).collect(),
            ..EventsOutcome::default()
        })
    }

    /// Returns the message from the broker that cannot be recorded, for which all later ones wait.
    #[must_use]
    pub fn blocked(&self) -> Option<Blocked> {
        self.blocked_message.blocked()
    }

    /// Skips the message that cannot be recorded: it becomes a dead letter, and the next one is taken.
    ///
    /// # Errors
    /// No message waits, or the connection to the broker has just been lost.
    pub async fn skip(&self) -> Result<DeadLetter, SkipError> {
        self.blocked_message.skip().await
    }

    async fn pass_over(self: &Arc<Self>, request: SkipRequest, reason: &str, text: &str) {
        let (spi, reason, text) = (Arc::clone(self), reason.to_owned(), text.to_owned());
        let skip = move || spi.intake().skip(&reason, &text, |kind| spi.status.events.inc(kind));
        let letter = blocking(skip).await;
        tracing::warn!(reason = letter.reason, "A message was skipped.");
        // The operator's request may have been cancelled.
        let _ = request.send(letter);
    }

    /// Returns all applications, in order, for views: secrets are hidden in their JSON. Waits while the ledger writes.
    #[must_use]
    pub fn applications(&self) -> Vec<Application> {
        self.intake().applications.iter().cloned().collect()
    }

    /// Shows each application, in order. Waits while the ledger writes; the ledger waits for this.
    pub fn for_each(&self, mut show: impl FnMut(&Application)) {
        self.intake().applications.iter().for_each(&mut show);
    }

    /// Returns an application.
    #[must_use]
    pub fn application(&self, key: &AppKey) -> Option<Application> {
        self.intake().applications.get(key).cloned()
    }

    /// Returns dead letters, oldest first, at most the newest 100. Waits while the ledger writes.
    #[must_use]
    pub fn dead_letters(&self) -> Vec<DeadLetter> {
        self.intake().dead.iter().cloned().collect()
    }

    /// Records nothing any more: when this returns, another instance may be opened from the ledger, with other
    /// settings.
    pub fn close(&self) {
        self.intake().closed = true;
    }

    async fn add_dead_letter(self: &Arc<Self>, reason: &str, text: &str) -> Result<(), EventsError> {
        let (spi, reason, text) = (Arc::clone(self), reason.to_owned(), text.to_owned());
        blocking(move || {
            spi.intake()
                .add_dead_letter(&reason, &text, |kind| spi.status.events.inc(kind))
        })
        .await
    }

    fn intake(&self) -> MutexGuard<'_, Intake> {
        // A panic leaves the state as the ledger has it: changes are made to both or, at worst, only reported later.
        self.intake.lock()
    }
}

/// Runs work that waits for a disk on a thread for blocking work.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and this future with it.
            Err(_) => std::future::pending().await,
        },
    }
}

//! OpenShift's routing SPI: events from an ActiveMQ broker over STOMP, or posted over HTTP, to what the store is told.
//!
//! Owns: the connection to the broker, the ledger's records, the files of certificates, messages that nobody understood.
//! Never: what events mean (`core::spi`). broker -> `session` -> `consume` -> `intake` -> ledger, files, then
//! [`Learnt`](super::Learnt), then the acknowledgement. What was acknowledged survives a crash; what was not comes again.

mod blocked;
mod certificates;
mod connect;
mod consume;
mod dead_letters;
mod intake;
mod ledger;
mod outcome;
mod session;
mod stomp;
mod turning;

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use signalbox_core::learned::Lore;
use signalbox_core::model::{Cluster, RoutingEvents};
use signalbox_core::spi::{AppKey, Application, parse};

use super::Standing;
use blocked::{Asked, Gate};
use intake::{Books, Taken};

pub use blocked::{Blocked, SkipError};
pub use dead_letters::DeadLetter;
pub use intake::{SOURCE, Tell};
pub use ledger::Ledger;
pub use outcome::{ApplyError, OpenError, Outcome};
pub use turning::{AskTurn, OWNER, Turn, Turning};

/// What the cluster of an application that the configuration names waits for; `None`: nothing.
#[must_use]
pub fn awaited(lore: &Lore, cluster: &Cluster) -> Option<&'static str> {
    let application = cluster.application_name()?;
    let is_known = lore.get(SOURCE).is_some_and(|of| of.contains_key(application));
    (!is_known).then_some("no routing event has told of this application yet")
}

/// The source.
pub struct RoutingSpi {
    settings: RoutingEvents,
    standing: Arc<Standing>,
    /// Held while the ledger writes: events are taken one after the other.
    books: Mutex<Books>,
    gate: Gate,
}

impl RoutingSpi {
    /// Restores what `records` (all that the ledger has; of other keys nothing is made) say, makes the files of
    /// certificates what they should be, and tells of every application. Blocks on files.
    ///
    /// # Errors
    /// A record makes no sense, or the directory for certificates cannot be used.
    pub fn open(
        settings: RoutingEvents,
        records: impl IntoIterator<Item = (String, Vec<u8>)>,
        ledger: Arc<dyn Ledger>,
        tell: Tell,
        ask: AskTurn,
    ) -> Result<Arc<Self>, OpenError> {
        let books = Books::open(settings.clone(), records, ledger, tell, ask)?;
        Ok(Arc::new(Self {
            settings,
            standing: Standing::new(SOURCE, SOURCE),
            books: Mutex::new(books),
            gate: Gate::default(),
        }))
    }

    /// How it is doing; events are counted by what they say, and as `bad_message`, `waiting` (for the ledger),
    /// `skipped` (by an operator) or `refused` (by the store).
    #[must_use]
    pub fn standing(&self) -> &Arc<Standing> {
        &self.standing
    }

    /// Consumes from the brokers, for ever. It may be dropped at any point: what was not acknowledged comes again.
    pub async fn run(self: Arc<Self>) -> Infallible {
        consume::run(self).await
    }

    /// Takes the events of a text, one or many documents, as if the broker had sent them: all of them or none. When it
    /// returns, they are recorded, and the store has answered.
    ///
    /// # Errors
    /// The text is wrong (the poster's fault), or it could not be recorded (ours; it can be posted again).
    pub async fn apply_text(self: &Arc<Self>, text: &str) -> Result<Outcome, ApplyError> {
        let (spi, text) = (Arc::clone(self), text.to_owned());
        let Taken {
            mut outcome,
            answers,
            turns,
        } = blocking(move || spi.books().take(&text, |kind| spi.standing.events.inc(kind))).await?;
        for (cluster, answer) in answers {
            // Whoever drops the question has nothing against it.
            if let Ok(Err(reason)) = answer.await {
                tracing::warn!(cluster, reason, "The store does not take what a routing event says.");
                self.standing.events.inc("refused");
                outcome.refused.insert(cluster, reason);
            }
        }
        for turn in turns {
            // Without an answer the process is ending, and the events come again.
            let answer = turn.await.unwrap_or_else(|_| Err("signalbox is ending".to_owned()));
            answer.map_err(ApplyError::Rotation)?;
        }
        if self.settings.brokers.is_empty() {
            self.standing.heard();
        }
        Ok(outcome)
    }

    /// What a text of events would change; nothing is changed, recorded or counted.
    ///
    /// # Errors
    /// The text is wrong.
    pub fn try_text(&self, text: &str) -> Result<Outcome, ApplyError> {
        let events = parse(text)?;
        let changed = self.books().applications.after(&events);
        Ok(Outcome {
            events: events.len(),
            changed: changed.keys().map(AppKey::to_string).collect(),
            ..Outcome::default()
        })
    }

    /// The message from the broker that cannot be recorded, for which all after it wait.
    #[must_use]
    pub fn blocked(&self) -> Option<Blocked> {
        self.gate.blocked()
    }

    /// Passes the message over that cannot be recorded: it is one of the dead letters, and the next one is taken.
    ///
    /// # Errors
    /// No message waits, or the connection to the broker was lost in that moment.
    pub async fn skip(&self) -> Result<DeadLetter, SkipError> {
        self.gate.skip().await
    }

    async fn pass_over(self: &Arc<Self>, asked: Asked, reason: &str, text: &str) {
        let (spi, reason, text) = (Arc::clone(self), reason.to_owned(), text.to_owned());
        let skip = move || spi.books().skip(&reason, &text, |kind| spi.standing.events.inc(kind));
        let letter = blocking(skip).await;
        tracing::warn!(reason = letter.reason, "A message was passed over.");
        // Whoever asked may have gone.
        let _ = asked.send(letter);
    }

    /// All applications, in order, for views: secrets are hidden in their JSON. Waits while the ledger writes.
    #[must_use]
    pub fn applications(&self) -> Vec<Application> {
        self.books().applications.iter().cloned().collect()
    }

    /// Shows each of them, in order. Waits while the ledger writes, which waits for this.
    pub fn each(&self, mut show: impl FnMut(&Application)) {
        self.books().applications.iter().for_each(&mut show);
    }

    /// One of them.
    #[must_use]
    pub fn application(&self, key: &AppKey) -> Option<Application> {
        self.books().applications.get(key).cloned()
    }

    /// Messages that nobody understood, oldest first, at most the newest 100. Waits while the ledger writes.
    #[must_use]
    pub fn dead_letters(&self) -> Vec<DeadLetter> {
        self.books().dead.iter().cloned().collect()
    }

    /// Records nothing any more: when this returns, another may be opened from the ledger, with other settings.
    pub fn close(&self) {
        self.books().closed = true;
    }

    async fn bury(self: &Arc<Self>, reason: &str, text: &str) -> Result<(), ApplyError> {
        let (spi, reason, text) = (Arc::clone(self), reason.to_owned(), text.to_owned());
        blocking(move || spi.books().bury(&reason, &text, |kind| spi.standing.events.inc(kind))).await
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // What a panic left is what the ledger has: changes are made to both or, at worst, only told later.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs what waits for a disk where nobody else has to wait for it.
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

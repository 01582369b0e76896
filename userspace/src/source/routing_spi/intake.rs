//! Intake of messages: a text is understood, recorded, and only then told to the store.

use std::collections::BTreeSet;
use std::sync::Arc;

use signalbox_core::model::RoutingEvents;
use signalbox_core::spi::{AppKey, Application, Applications, Change, Event, learned, parse};
use tokio::sync::oneshot;

use super::certificates::Certificates;
use super::dead_letters::{DeadLetter, DeadLetters};
use super::ledger::{self, Key, Ledger};
use super::outcome::{ApplyError, OpenError, Outcome};
use super::turning::{self, AskTurn, Turn, Turning};
use crate::source::Learnt;

/// Function that tells the store. Called in order, under a lock: it must not block.
pub type Tell = Box<dyn Fn(Learnt) + Send + Sync>;

/// Name of the source at the store.
pub const SOURCE: &str = "routing-spi";

/// Result of a text, with the store's answers that are still to come, by cluster.
pub(super) struct Taken {
    pub(super) outcome: Outcome,
    pub(super) answers: Vec<(String, oneshot::Receiver<Result<(), String>>)>,
    /// Answers of the store about rotations.
    pub(super) turns: Vec<oneshot::Receiver<Result<(), String>>>,
}

/// State of the source, and the places that it is written to.
pub(super) struct Books {
    settings: RoutingEvents,
    ledger: Arc<dyn Ledger>,
    tell: Tell,
    ask: AskTurn,
    certificates: Option<Certificates>,
    pub(super) applications: Applications,
    pub(super) dead: DeadLetters,
    /// Applications that are recorded, but not yet written to files and told.
    unsettled: BTreeSet<AppKey>,
    /// True once another instance has the ledger.
    pub(super) closed: bool,
}

impl Books {
    pub(super) fn open(
        settings: RoutingEvents,
        records: impl IntoIterator<Item = (String, Vec<u8>)>,
        ledger: Arc<dyn Ledger>,
        tell: Tell,
        ask: AskTurn,
    ) -> Result<Self, OpenError> {
        let mut books = Self {
            certificates: settings.certificates.as_deref().map(Certificates::open).transpose()?,
            settings,
            ledger,
            tell,
            ask,
            applications: Applications::default(),
            dead: DeadLetters::default(),
            unsettled: BTreeSet::new(),
            closed: false,
        };
        for (key, bytes) in records {
            books
                .restore(&key, &bytes)
                .map_err(|reason| OpenError::Record { key, reason })?;
        }
        if let Some(certificates) = &books.certificates {
            certificates.settle_all(books.applications.iter())?;
        }
        for application in books.applications.iter() {
            drop(books.tell(&application.key, Some(application))); // whoever restores waits for no answer
        }
        Ok(books)
    }

    fn restore(&mut self, key: &str, bytes: &[u8]) -> Result<(), String> {
        match ledger::read(key) {
            Some(Key::Application) => {
                let application = Application::from_record(bytes).map_err(|error| error.to_string())?;
                if ledger::application(&application.key) != key {
                    return Err(format!("it is one of {}", application.key));
                }
                self.applications.restore(application);
            }
            Some(Key::DeadLetter(number)) => {
                let letter = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
                self.dead.restore(number, letter);
            }
            None => {}
        }
        Ok(())
    }

    /// Takes all events of a text, or none. Blocks on the ledger and on files.
    pub(super) fn take(&mut self, text: &str, count: impl Fn(&'static str)) -> Result<Taken, ApplyError> {
        let mut events = parse(text)?;
        if self.certificates.is_none() {
            events.iter_mut().for_each(forget_keys);
        }
        let changed = self.applications.after(&events);
        let leaving = turning::leaving(&events, &self.applications);
        if !changed.is_empty() {
            let record = |(key, application): (&AppKey, &Option<Application>)| {
                (ledger::application(key), application.as_ref().map(Application::record))
            };
            let records: Vec<_> = changed.iter().map(record).collect();
            self.record(&records)?;
            self.unsettled.extend(changed.keys().cloned());
            self.applications.commit(changed);
        }
        let mut taken = Taken {
            outcome: Outcome {
                events: events.len(),
                ..Outcome::default()
            },
            answers: Vec::new(),
            turns: Vec::new(),
        };
        // Applications of earlier texts come too, if their files could not be written then.
        while let Some(key) = self.unsettled.first().cloned() {
            let application = self.applications.get(&key);
            if let Some(certificates) = &self.certificates {
                certificates.settle(&key, application)?;
            }
            taken.answers.push((key.to_string(), self.tell(&key, application)));
            taken.outcome.changed.push(key.to_string());
            self.unsettled.remove(&key);
        }
        taken.turns = self.turn(turning::of(&events, &leaving, &self.applications));
        for event in &events {
            count(kind(&event.change));
        }
        Ok(taken)
    }

    fn turn(&self, all: Vec<Turning>) -> Vec<oneshot::Receiver<Result<(), String>>> {
        let asked = all.into_iter().map(|what| {
            let (done, answer) = oneshot::channel();
            (self.ask)(Turn { what, done });
            answer
        });
        asked.collect()
    }

    /// Sets a message aside for good.
    pub(super) fn bury(&mut self, reason: &str, text: &str, count: impl Fn(&'static str)) -> Result<(), ApplyError> {
        let letter = DeadLetter::new(reason, text);
        self.ledger
            .record(&self.dead.change(&letter))
            .map_err(ApplyError::Ledger)?;
        self.dead.add(letter);
        count("bad_message");
        Ok(())
    }

    /// Passes over a message that could not be taken. Applications that it has changed on record, while their files
    /// could not be written, are told to the store: they must not hold up later messages.
    pub(super) fn skip(&mut self, reason: &str, text: &str, count: impl Fn(&'static str)) -> DeadLetter {
        let letter = DeadLetter::new(&format!("an operator had it skipped; it waited because {reason}"), text);
        if let Err(error) = self.ledger.record(&self.dead.change(&letter)) {
            tracing::warn!(
                error,
                "A message that was skipped is known until this process ends, and no longer."
            );
        }
        self.dead.add(letter.clone());
        for key in std::mem::take(&mut self.unsettled) {
            drop(self.tell(&key, self.applications.get(&key))); // nobody waits for the answer
        }
        count("skipped");
        letter
    }

    fn record(&self, changed: &[(String, Option<Vec<u8>>)]) -> Result<(), ApplyError> {
        if self.closed {
            return Err(ApplyError::Ledger("the source is closed".to_owned()));
        }
        self.ledger.record(changed).map_err(ApplyError::Ledger)
    }

    fn tell(&self, key: &AppKey, application: Option<&Application>) -> oneshot::Receiver<Result<(), String>> {
        let (done, answer) = oneshot::channel();
        let RoutingEvents { naming, filter, .. } = &self.settings;
        let cluster = key.to_string();
        let asking = self.settings.asking_of(&cluster);
        (self.tell)(Learnt {
            source: SOURCE.to_owned(),
            cluster,
            what: application.map(|application| Arc::new(learned(application, naming, filter, &asking))),
            done: Some(done),
        });
        answer
    }
}

/// Removes private keys that nobody will use: keeping them is a needless risk.
fn forget_keys(event: &mut Event) {
    if let Change::AddCertificate { certificate, .. } = &mut event.change {
        certificate.private_key = None;
        certificate.pass_phrase = None;
    }
}

const fn kind(change: &Change) -> &'static str {
    match change {
        Change::Create { .. } => "create_application",
        Change::Delete => "delete_application",
        Change::AddEndpoint { .. } => "add_public_endpoint",
        Change::RemoveEndpoint { .. } => "remove_public_endpoint",
        Change::AddAlias(_) => "add_alias",
        Change::RemoveAlias(_) => "remove_alias",
        Change::AddCertificate { .. } => "add_ssl",
        Change::RemoveCertificate(_) => "remove_ssl",
        Change::Stop(_) => "stop",
        Change::Start(_) => "start",
        Change::RotateOut { .. } => "rotate_out",
        Change::RotateIn(_) => "rotate_in",
        Change::AddGeography { .. } => "add_geography",
        Change::RemoveGeography { .. } => "remove_geography",
        Change::Duplicate => "deprecated_duplicate",
    }
}

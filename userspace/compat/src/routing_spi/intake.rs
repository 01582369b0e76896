//! Intake of messages: a text is understood, recorded, and only then reported to the store.

use std::collections::BTreeSet;
use std::sync::Arc;

use signalbox_core::discovered::spi::{AppChange, AppKey, Application, Applications, RoutingEvent, discover, parse};
use signalbox_core::model::RoutingEvents;
use tokio::sync::oneshot;

use super::certificates::CertificateFiles;
use super::dead_letters::{DeadLetters, dead_letter};
use super::ledger::{self, Ledger, LedgerKey};
use super::outcome::{EventsError, OpenError};
use super::rotation::{self, EndpointRotation, PendingRotation, RotationSink};
use super::{DeadLetter, EventsOutcome};
use signalbox_sources::DiscoveryUpdate;

/// Function that reports to the store. Called in order, under a lock: it must not block.
pub type UpdateSink = Box<dyn Fn(DiscoveryUpdate) + Send + Sync>;

/// Name of the source at the store.
pub const SOURCE: &str = "routing-spi";

/// Result of a text, with the store's answers that are still to come, by cluster.
pub(super) struct AppliedEvents {
    pub(super) outcome: EventsOutcome,
    pub(super) answers: Vec<(String, oneshot::Receiver<Result<(), String>>)>,
    /// Answers of the store about rotations.
    pub(super) rotations: Vec<oneshot::Receiver<Result<(), String>>>,
}

/// State of the source, and the places that it is written to.
pub(super) struct Intake {
    settings: RoutingEvents,
    ledger: Arc<dyn Ledger>,
    updates: UpdateSink,
    rotate: RotationSink,
    certificates: Option<CertificateFiles>,
    pub(super) applications: Applications,
    pub(super) dead: DeadLetters,
    /// Applications that are recorded, but not yet written to files and reported.
    unsynced: BTreeSet<AppKey>,
    /// True once another instance has the ledger.
    pub(super) closed: bool,
}

impl Intake {
    pub(super) fn open(
        settings: RoutingEvents,
        records: impl IntoIterator<Item = (String, Vec<u8>)>,
        ledger: Arc<dyn Ledger>,
        tell: UpdateSink,
        ask: RotationSink,
    ) -> Result<Self, OpenError> {
        let mut books = Self {
            certificates: settings
                .certificates
                .as_deref()
                .map(CertificateFiles::open)
                .transpose()?,
            settings,
            ledger,
            updates: tell,
            rotate: ask,
            applications: Applications::default(),
            dead: DeadLetters::default(),
            unsynced: BTreeSet::new(),
            closed: false,
        };
        for (key, bytes) in records {
            books
                .restore(&key, &bytes)
                .map_err(|reason| OpenError::Record { key, reason })?;
        }
        if let Some(certificates) = &books.certificates {
            certificates.reconcile_all(books.applications.iter())?;
        }
        for application in books.applications.iter() {
            drop(books.send_update(&application.key, Some(application))); // no caller of a restore waits for an answer
        }
        Ok(books)
    }

    fn restore(&mut self, key: &str, bytes: &[u8]) -> Result<(), String> {
        match ledger::read(key) {
            Some(LedgerKey::Application) => {
                let application = Application::from_record(bytes).map_err(|error| error.to_string())?;
                if ledger::application(&application.key) != key {
                    return Err(format!("it is one of {}", application.key));
                }
                self.applications.restore(application);
            }
            Some(LedgerKey::DeadLetter(number)) => {
                let letter = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
                self.dead.restore(number, letter);
            }
            None => {}
        }
        Ok(())
    }

    /// Takes all events of a text, or none. Blocks on the ledger and on files.
    pub(super) fn apply(&mut self, text: &str, count: impl Fn(&'static str)) -> Result<AppliedEvents, EventsError> {
        let mut events = parse(text)?;
        if self.certificates.is_none() {
            events.iter_mut().for_each(forget_keys);
        }
        let changed = self.applications.changes_after(&events);
        let leaving = rotation::deleted_gears(&events, &self.applications);
        if !changed.is_empty() {
            let record = |(key, application): (&AppKey, &Option<Application>)| {
                (
                    ledger::application(key),
                    application.as_ref().map(Application::to_record),
                )
            };
            let records: Vec<_> = changed.iter().map(record).collect();
            self.record(&records)?;
            self.unsynced.extend(changed.keys().cloned());
            self.applications.commit(changed);
        }
        let mut taken = AppliedEvents {
            outcome: EventsOutcome {
                events: events.len(),
                ..EventsOutcome::default()
            },
            answers: Vec::new(),
            rotations: Vec::new(),
        };
        // Applications of earlier texts come too, if their files could not be written then.
        while let Some(key) = self.unsynced.first().cloned() {
            let application = self.applications.get(&key);
            if let Some(certificates) = &self.certificates {
                certificates.reconcile(&key, application)?;
            }
            taken
                .answers
                .push((key.to_string(), self.send_update(&key, application)));
            taken.outcome.changed.push(key.to_string());
            self.unsynced.remove(&key);
        }
        taken.rotations = self.request_rotations(rotation::requested_rotations(&events, &leaving, &self.applications));
        for event in &events {
            count(kind(&event.change));
        }
        Ok(taken)
    }

    fn request_rotations(&self, all: Vec<EndpointRotation>) -> Vec<oneshot::Receiver<Result<(), String>>> {
        let asked = all.into_iter().map(|what| {
            let (done, answer) = oneshot::channel();
            (self.rotate)(PendingRotation { request: what, done });
            answer
        });
        asked.collect()
    }

    /// Sets a message aside for good.
    pub(super) fn add_dead_letter(
        &mut self,
        reason: &str,
        text: &str,
        count: impl Fn(&'static str),
    ) -> Result<(), EventsError> {
        let letter = dead_letter(reason, text);
        self.ledger
            .record(&self.dead.record_of(&letter))
            .map_err(EventsError::Ledger)?;
        self.dead.add(letter);
        count("bad_message");
        Ok(())
    }

    /// Skips a message that could not be taken. Applications that it has changed on record, while their files could not
    /// be written, are reported to the store: they must not hold up later messages.
    pub(super) fn skip(&mut self, reason: &str, text: &str, count: impl Fn(&'static str)) -> DeadLetter {
        let letter = dead_letter(&format!("an operator had it skipped; it waited because {reason}"), text);
        if let Err(error) = self.ledger.record(&self.dead.record_of(&letter)) {
            tracing::warn!(
                error,
                "A skipped message could not be recorded: it is remembered only until this process ends."
            );
        }
        self.dead.add(letter.clone());
        for key in std::mem::take(&mut self.unsynced) {
            drop(self.send_update(&key, self.applications.get(&key))); // no caller waits for the answer
        }
        count("skipped");
        letter
    }

    fn record(&self, changed: &[(String, Option<Vec<u8>>)]) -> Result<(), EventsError> {
        if self.closed {
            return Err(EventsError::Ledger("the source is closed".to_owned()));
        }
        self.ledger.record(changed).map_err(EventsError::Ledger)
    }

    fn send_update(&self, key: &AppKey, application: Option<&Application>) -> oneshot::Receiver<Result<(), String>> {
        let (done, answer) = oneshot::channel();
        let RoutingEvents { naming, filter, .. } = &self.settings;
        let cluster = key.to_string();
        let asking = self.settings.health_page_of(&cluster);
        (self.updates)(DiscoveryUpdate {
            source: SOURCE.to_owned(),
            cluster,
            discovery: application.map(|application| Arc::new(discover(application, naming, filter, &asking))),
            done: Some(done),
        });
        answer
    }
}

/// Removes private keys that will not be used: keeping them is a needless risk.
fn forget_keys(event: &mut RoutingEvent) {
    if let AppChange::AddCertificate { certificate, .. } = &mut event.change {
        certificate.private_key = None;
        certificate.pass_phrase = None;
    }
}

const fn kind(change: &AppChange) -> &'static str {
    match change {
        AppChange::Create { .. } => "create_application",
        AppChange::Delete => "delete_application",
        AppChange::AddEndpoint { .. } => "add_public_endpoint",
        AppChange::RemoveEndpoint { .. } => "remove_public_endpoint",
        AppChange::AddAlias(_) => "add_alias",
        AppChange::RemoveAlias(_) => "remove_alias",
        AppChange::AddCertificate { .. } => "add_ssl",
        AppChange::RemoveCertificate(_) => "remove_ssl",
        AppChange::Stop(_) => "stop",
        AppChange::Start(_) => "start",
        AppChange::RotateOut { .. } => "rotate_out",
        AppChange::RotateIn(_) => "rotate_in",
        AppChange::AddGeography { .. } => "add_geography",
        AppChange::RemoveGeography { .. } => "remove_geography",
        AppChange::Duplicate => "deprecated_duplicate",
    }
}

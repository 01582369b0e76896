//! Runs the source of OpenShift's routing events as configured, with the store's database as its ledger.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use signalbox_core::model::RoutingEvents;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::compat::routing_spi::{Ledger, PendingRotation, RoutingSpi, SOURCE};
use crate::control::event::StoreEvent;
use crate::control::state_db::StateDb;
use crate::source::DiscoveryUpdate;
use crate::state::Shared;

/// Kind of the ledger's records.
const KIND: &str = "routing-spi";

/// The running source, for the API.
pub type CurrentSource = Arc<RwLock<Option<Arc<RoutingSpi>>>>;

/// Runner of the source of routing events.
pub struct RoutingSupervisor {
    shared: Arc<Shared>,
    durable: Arc<StateDb>,
    current: CurrentSource,
    out: mpsc::UnboundedSender<DiscoveryUpdate>,
    events: mpsc::UnboundedSender<StoreEvent>,
    /// Collector of reports at the start, when [`Self::start`] returns them instead of sending them to the store.
    restored: Arc<Mutex<Option<Vec<DiscoveryUpdate>>>>,
    running: Option<(RoutingEvents, JoinHandle<()>)>,
    /// Settings with which the source could not be opened, so that this is logged only once.
    failed: Option<RoutingEvents>,
}

struct StateDbLedger(Arc<StateDb>);

impl Ledger for StateDbLedger {
    fn record(&self, changed: &[(String, Option<Vec<u8>>)]) -> Result<(), String> {
        let changes: Vec<_> = changed
            .iter()
            .map(|(key, value)| (KIND, key.clone(), value.clone()))
            .collect();
        self.0.put(&changes).map_err(|error| crate::sys::error_chain(&error))
    }
}

impl RoutingSupervisor {
    #[must_use]
    pub fn new(
        shared: Arc<Shared>,
        durable: Arc<StateDb>,
        current: CurrentSource,
        out: mpsc::UnboundedSender<DiscoveryUpdate>,
        events: mpsc::UnboundedSender<StoreEvent>,
    ) -> Self {
        Self {
            shared,
            durable,
            current,
            out,
            events,
            restored: Arc::default(),
            running: None,
            failed: None,
        }
    }

    /// Starts the source, and returns all known applications for the first table.
    pub fn start(&mut self, wanted: Option<&RoutingEvents>) -> Vec<DiscoveryUpdate> {
        *self.restored.lock() = Some(Vec::new());
        self.follow(wanted);
        self.restored.lock().take().unwrap_or_default()
    }

    /// Runs the source with these settings, or stops it. Blocks on files.
    pub fn follow(&mut self, wanted: Option<&RoutingEvents>) {
        if self.running.as_ref().map(|(settings, _)| settings) == wanted {
            return;
        }
        self.close();
        let Some(settings) = wanted else {
            self.failed = None;
            return;
        };
        match self.open(settings) {
            Ok(spi) => {
                self.shared.add_source(Arc::clone(spi.status()));
                let task = tokio::spawn(async move { match spi.run().await {} });
                self.running = Some((settings.clone(), task));
                self.failed = None;
            }
            Err(error) if self.failed.as_ref() != Some(settings) => {
                tracing::error!(error, "Routing events are not received.");
                self.failed = Some(settings.clone());
            }
            Err(_) => {}
        }
    }

    /// Tries again to open the source, since the file may be available by now.
    pub fn retry(&mut self) {
        if let Some(settings) = self.failed.clone() {
            self.follow(Some(&settings));
        }
    }

    fn open(&self, settings: &RoutingEvents) -> Result<Arc<RoutingSpi>, String> {
        let records = self
            .durable
            .raw(KIND)
            .map_err(|error| crate::sys::error_chain(&error))?;
        let ledger = Arc::new(StateDbLedger(Arc::clone(&self.durable)));
        let (out, known) = (self.out.clone(), Arc::clone(&self.restored));
        let tell = Box::new(move |learnt: DiscoveryUpdate| {
            if let Some(known) = &mut *known.lock() {
                known.push(learnt);
                return;
            }
            // Without a store the process is ending, so the event is not acknowledged.
            let _ = out.send(learnt);
        });
        let events = self.events.clone();
        let ask = Box::new(move |turn: PendingRotation| drop(events.send(StoreEvent::SourceRotation(turn))));
        let spi = RoutingSpi::open(settings.clone(), records, ledger, tell, ask);
        let spi = spi.map_err(|error| crate::sys::error_chain(&error))?;
        *self.current.write() = Some(Arc::clone(&spi));
        Ok(spi)
    }

    /// Stops the source. It no longer uses the ledger when this returns.
    pub fn close(&mut self) {
        if let Some((_, task)) = self.running.take() {
            task.abort();
        }
        let closed = self.current.write().take();
        if let Some(spi) = closed {
            spi.close();
            self.shared.forget_source(SOURCE);
        }
    }

    /// Stops the source and leaves the ledger to another process. [`Self::retry`] starts it again if that process
    /// fails.
    pub fn pause(&mut self) {
        if let Some((settings, _)) = &self.running {
            self.failed = Some(settings.clone());
        }
        self.close();
    }

    /// Stops the source for good, because another process now receives the events.
    pub fn stop(&mut self) {
        self.close();
        self.failed = None;
    }

    /// Returns whether the source is configured, even if it could not be opened.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.running.is_some() || self.failed.is_some()
    }
}

impl Drop for RoutingSupervisor {
    fn drop(&mut self) {
        self.close();
    }
}

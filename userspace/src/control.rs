//! Control handle: signals, files, the admin API and the demo use it to control a running signalbox.

mod cluster_certificates;
mod cut_flows;
pub mod degraded;
pub mod etcd;
pub mod event;
pub mod fanout;
pub mod features;
pub mod file_watch;
pub mod health;
pub mod kept_certificates;
pub mod listener_set;
pub mod migrate;
pub mod migration_names;
pub mod migration_orders;
mod migration_peers;
pub mod migration_step;
pub mod migrations;
pub mod name_probes;
mod name_watches;
pub mod probe_rounds;
mod rotate;
pub mod rotation_jobs;
pub mod routing;
pub mod state_db;
pub mod store;
pub mod takeover;
pub mod watchers;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use signalbox_api::flows::FlowView;
use signalbox_core::discovered::merge::{ClusterWeights, TesterOverrides};
use signalbox_core::model::shield::Prefixes;
use signalbox_core::routing::obstacle::PeekObstacle;
use tokio::sync::{mpsc, oneshot};

use crate::config::{self, ConfigError};
use crate::control::event::{Applied, Configuration, PrefixChange, StoreEvent, fingerprint};
use crate::control::migrations::Migrations;
use crate::control::rotation_jobs::Jobs;
use crate::control::routing::CurrentSource;
use crate::control::store::persistent_state::ConfigOverride;
use crate::datapath::cut::registry::Registry;
use crate::datapath::flow::FlowFilter;
use crate::datapath::worker::WorkerHandle;
use crate::kernel::Cut;
use crate::kernel::counters::Counters;
use crate::reconcile::flow_gc::FlowGc;
use crate::reconcile::kernel_peek::KernelPeek;
use crate::reconcile::l4::Services;
use crate::state::Shared;

/// Facts about the machine, determined at the start.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub steering: &'static str,
    pub workers: usize,
    pub max_connections: u32,
    /// Why the kernel peek's program is not loaded; `None` if it is.
    pub without_peek: Option<PeekObstacle>,
    /// Reason why socket maps are unavailable.
    pub sockmap: Option<String>,
    /// Degraded features, each with the reason.
    pub degraded: Vec<(&'static str, String)>,
}

/// Control handle of a running signalbox.
#[derive(Clone)]
pub struct Control {
    pub shared: Arc<Shared>,
    pub workers: Vec<WorkerHandle>,
    pub counters: Option<Arc<Counters>>,
    pub facts: Arc<Facts>,
    pub events: mpsc::UnboundedSender<StoreEvent>,
    /// Configuration file that `reload` reads. The demo has none.
    pub file: Option<Arc<ConfigFile>>,
    pub kernel: KernelHandles,
    pub jobs: Arc<Jobs>,
    pub migrations: Arc<Migrations>,
    /// The source of OpenShift's routing events, if there is one.
    pub routing: CurrentSource,
}

/// The configuration file.
pub struct ConfigFile {
    pub path: PathBuf,
    /// Text when the file was last read, accepted or not.
    last_text: Mutex<String>,
    /// Held while the file is read and applied: texts are applied in the order in which they were read.
    turn: tokio::sync::Mutex<()>,
}

impl ConfigFile {
    /// The file that was read at the start.
    #[must_use]
    pub fn new(path: PathBuf, text: String) -> Arc<Self> {
        Arc::new(Self {
            path,
            last_text: Mutex::new(text),
            turn: tokio::sync::Mutex::default(),
        })
    }
}

/// Threads and tables that keep the kernel's part of the work.
#[derive(Clone)]
pub struct KernelHandles {
    /// Tier `cut`, if it is in use.
    pub cut: Option<(Arc<Cut>, Arc<Registry>)>,
    pub flow_gc: Option<Arc<FlowGc>>,
    pub kernel_peek: Option<Arc<KernelPeek>>,
    /// Layer-4 services.
    pub services: Arc<Services>,
}

/// Reason why a change was refused.
#[derive(Debug, Serialize)]
pub struct ChangeError {
    pub error: String,
    /// Errors in a configuration, each with its position.
    pub errors: Vec<ConfigError>,
}

impl ChangeError {
    fn with_error(error: impl Into<String>) -> Self {
        Self {
            error: error.into(),
            errors: Vec::new(),
        }
    }
}

impl Control {
    /// Reads the configuration file again and applies it.
    pub async fn reload(&self, source: &str) -> Result<Applied, ChangeError> {
        let Some(file) = &self.file else {
            return Err(ChangeError::with_error(
                "this signalbox was started without a configuration file",
            ));
        };
        let _turn = file.turn.lock().await;
        match tokio::fs::read_to_string(&file.path).await {
            Ok(text) => {
                self.remember_text(&text);
                self.apply_text(&text, source).await
            }
            Err(error) => Err(self.record_refusal(
                source,
                ChangeError::with_error(format!("reading {}: {error}", file.path.display())),
            )),
        }
    }

    /// Reloads the configuration file only if its text has changed since it was last read: otherwise changes by API
    /// would be undone. A file that is missing for the moment is ignored.
    pub async fn reload_if_changed(&self, source: &str) {
        let Some(file) = &self.file else { return };
        let _turn = file.turn.lock().await;
        if let Ok(text) = tokio::fs::read_to_string(&file.path).await
            && self.remember_text(&text)
        {
            // A refusal is logged and counted where it occurs.
            let _ = self.apply_text(&text, source).await;
        }
    }

    /// Remembers the text of the configuration file. False if it has not changed.
    pub fn remember_text(&self, text: &str) -> bool {
        let Some(file) = &self.file else { return true };
        let mut read = file.last_text.lock();
        let news = *read != text;
        if news {
            text.clone_into(&mut read);
        }
        news
    }

    /// Applies a configuration given as text, completely or not at all, as if read from the file.
    pub async fn apply_text(&self, text: &str, source: &str) -> Result<Applied, ChangeError> {
        self.apply(text, source, None).await
    }

    /// Applies a configuration that replaces the file's, until the file is changed or read again.
    pub async fn apply_override(&self, text: &str, source: &str) -> Result<Applied, ChangeError> {
        let instead = self.file.as_ref().map(|file| ConfigOverride {
            of: fingerprint(&file.last_text.lock()),
            text: text.to_owned(),
        });
        self.apply(text, source, instead).await
    }

    async fn apply(&self, text: &str, source: &str, instead: Option<ConfigOverride>) -> Result<Applied, ChangeError> {
        let parsed = match config::parse(text) {
            Ok(parsed) => parsed,
            Err(errors) => {
                let file = self
                    .file
                    .as_ref()
                    .map_or_else(|| source.into(), |file| file.path.clone());
                let listed: Vec<ConfigError> = errors.iter().cloned().collect();
                let error = errors.with_file(&file).to_string();
                return Err(self.record_refusal(source, ChangeError { error, errors: listed }));
            }
        };
        for warning in &parsed.warnings {
            tracing::warn!(line = warning.line, path = warning.path, "{}", warning.message);
        }
        let (reply, outcome) = oneshot::channel();
        let configuration = Configuration {
            model: parsed.model,
            origin: source.into(),
            config_override: instead,
        };
        self.send_event(StoreEvent::Apply(Box::new(configuration), reply))?;
        outcome
            .await
            .unwrap_or_else(|_| Err("signalbox is ending".into()))
            .map_err(ChangeError::with_error)
    }

    /// Records and logs a change that was refused before it reached the store.
    fn record_refusal(&self, source: &str, refused: ChangeError) -> ChangeError {
        tracing::error!(
            source,
            error = refused.error,
            "Configuration refused: the current one stays active."
        );
        self.shared.applied.reloads.record(source, Some(refused.error.clone()));
        refused
    }

    /// Changes the weights of all given routes, or none. Routes without weights get those of the file and sources.
    pub async fn set_weights(&self, set: BTreeMap<String, Option<ClusterWeights>>) -> Result<Applied, ChangeError> {
        let (reply, outcome) = oneshot::channel();
        self.send_event(StoreEvent::SetWeights(set, reply))?;
        outcome
            .await
            .unwrap_or_else(|_| Err("signalbox is ending".into()))
            .map_err(ChangeError::with_error)
    }

    /// Applies the testers of migrations, which replace the earlier ones.
    pub async fn set_testers(&self, testers: TesterOverrides) -> Result<(), String> {
        let (reply, outcome) = oneshot::channel();
        self.send_event(StoreEvent::SetTesters(testers, reply))
            .map_err(|refused| refused.error)?;
        outcome.await.unwrap_or_else(|_| Err("signalbox is ending".into()))
    }

    /// Changes the shield's prefixes of a listener or a service, or those for all if the name is empty.
    pub async fn set_prefixes(&self, name: &str, change: PrefixChange) -> Result<Arc<Prefixes>, ChangeError> {
        let (reply, outcome) = oneshot::channel();
        self.send_event(StoreEvent::SetPrefixes(name.into(), change, reply))?;
        outcome
            .await
            .unwrap_or_else(|_| Err("signalbox is ending".into()))
            .map_err(ChangeError::with_error)
    }

    fn send_event(&self, event: StoreEvent) -> Result<(), ChangeError> {
        self.events
            .send(event)
            .map_err(|_| ChangeError::with_error("signalbox is ending"))
    }

    /// Returns flows of all workers and of the flow table: the number of matches, and some of them.
    pub async fn flows(&self, filter: &FlowFilter) -> (usize, Vec<FlowView>) {
        let (mut total, mut all) = (0, Vec::new());
        for worker in &self.workers {
            let wanted = FlowFilter {
                limit: filter.limit - all.len().min(filter.limit),
                ..filter.clone()
            };
            let (matching, some) = worker.list(wanted).await;
            total += matching;
            all.extend(some);
        }
        if let Some((cut, registry)) = self.kernel.cut.clone() {
            let wanted = FlowFilter {
                limit: filter.limit - all.len().min(filter.limit),
                ..filter.clone()
            };
            let listing = tokio::task::spawn_blocking(move || cut_flows::list(&cut, &registry, &wanted));
            let (matching, some) = listing.await.unwrap_or_default();
            total += matching;
            all.extend(some);
        }
        (total, all)
    }
}

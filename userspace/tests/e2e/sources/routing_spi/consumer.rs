//! The source under test, with a store that remembers its reports.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use signalbox::compat::routing_spi::{Ledger, PendingRotation, RoutingSpi};
use signalbox::source::DiscoveryUpdate;
use signalbox_core::discovered::discovery::ClusterDiscovery;
use signalbox_core::discovered::spi::{AppKey, Application, discover};
use signalbox_core::model::{Broker, RoutingEvents};
use signalbox_core::model::{EndpointFilter, HealthPageTemplate, Naming};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::activemq::LONG;
use super::disk::Disk;
use super::naive::headless;
use crate::kube_api::watching::view_of;
use crate::lab::eventually;

pub(crate) const QUEUE: &str = "/queue/routing";

type Told = Arc<Mutex<BTreeMap<String, ClusterDiscovery>>>;

/// A running source.
pub(crate) struct Consumer {
    pub(crate) spi: Arc<RoutingSpi>,
    pub(crate) told: Told,
    task: JoinHandle<()>,
}

pub(crate) fn settings(ports: &[u16], destination: &str) -> RoutingEvents {
    let broker = |port: &u16| Broker {
        host: "127.0.0.1".into(),
        port: *port,
    };
    RoutingEvents {
        brokers: ports.iter().map(broker).collect(),
        tls: None,
        login: None,
        destination: destination.into(),
        client_id: None,
        subscription: None,
        filter: EndpointFilter {
            types: ["load_balancer".to_owned()].into(),
        },
        naming: Naming {
            prefix: "ha-".into(),
            domain: Some("apps.example.com".into()),
        },
        certificates: None,
        applications: Vec::new(),
        expose: Vec::new(),
    }
}

impl Consumer {
    /// Opens it from the ledger's records, and lets it run.
    pub(crate) fn start(runtime: &Runtime, settings: RoutingEvents, disk: &Arc<Disk>) -> Self {
        let told = Told::default();
        let store = Arc::clone(&told);
        let tell = move |learnt: DiscoveryUpdate| {
            assert_eq!(learnt.source, "routing-spi");
            let mut store = store.lock().unwrap();
            match learnt.discovery {
                Some(what) => store.insert(learnt.cluster, ClusterDiscovery::clone(&what)),
                None => store.remove(&learnt.cluster),
            };
            let _ = learnt.done.unwrap().send(Ok(()));
        };
        let ledger: Arc<dyn Ledger> = Arc::<Disk>::clone(disk);
        let ask = |turn: PendingRotation| turn.done.send(Ok(())).unwrap();
        let spi = RoutingSpi::open(settings, disk.records(), ledger, Box::new(tell), Box::new(ask)).unwrap();
        let running = Arc::clone(&spi);
        let task = runtime.spawn(async move {
            running.run().await;
        });
        Self { spi, told, task }
    }

    /// Kills the consumer like its process: nothing more is sent to the broker, acknowledged or recorded.
    pub(crate) fn kill(self, runtime: &Runtime) {
        self.task.abort();
        assert!(runtime.block_on(self.task).unwrap_err().is_cancelled());
        self.spi.close();
    }

    /// Kills the consumer where the ledger has stopped it. Returns the number of messages taken.
    pub(crate) fn kill_stopped(self, runtime: &Runtime, disk: &Disk) -> u64 {
        disk.wait_stopped();
        self.task.abort();
        assert!(runtime.block_on(self.task).unwrap_err().is_cancelled());
        disk.release();
        // Waits for unfinished work.
        self.spi.close();
        taken(&self.spi)
    }

    /// Events and bad messages that were taken.
    pub(crate) fn taken(&self) -> u64 {
        let events = self.spi.status().events.get();
        events
            .iter()
            .filter(|(kind, _)| *kind != "waiting")
            .map(|(_, count)| count)
            .sum()
    }

    pub(crate) fn wait_for(&self, app: &str) {
        let there = || {
            self.spi
                .applications()
                .iter()
                .any(|application| application.key.app == app)
        };
        assert!(
            eventually(LONG, there),
            "{app} is not known: {}",
            view_of(self.spi.status())
        );
    }

    /// Asserts that exactly these applications are known, on disk, and reported.
    pub(crate) fn assert_is(&self, disk: &Disk, wanted: &BTreeMap<AppKey, Application>, settings: &RoutingEvents) {
        let known: Vec<Application> = self.spi.applications().into_iter().map(headless).collect();
        let wanted: Vec<Application> = wanted.values().cloned().collect();
        let keys = |all: &[Application]| all.iter().map(|a| a.key.clone()).collect::<BTreeSet<_>>();
        assert_eq!(keys(&known), keys(&wanted));
        assert_eq!(known, wanted);
        let records = disk
            .records()
            .into_iter()
            .filter(|(key, _)| key.starts_with("application/"));
        let kept: BTreeMap<AppKey, Application> = records
            .map(|(_, bytes)| headless(Application::from_record(&bytes).unwrap()))
            .map(|application| (application.key.clone(), application))
            .collect();
        assert_eq!(kept.into_values().collect::<Vec<_>>(), wanted);
        let told = self.told.lock().unwrap();
        let expected: BTreeMap<String, ClusterDiscovery> = wanted
            .iter()
            .map(|one| {
                (
                    one.key.to_string(),
                    discover(one, &settings.naming, &settings.filter, &HealthPageTemplate::default()),
                )
            })
            .collect();
        assert_eq!(*told, expected);
    }
}

fn taken(spi: &RoutingSpi) -> u64 {
    let events = spi.status().events.get();
    events
        .iter()
        .filter(|(kind, _)| *kind != "waiting")
        .map(|(_, count)| count)
        .sum()
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Returns the directory of a test's certificates.
pub(crate) fn certificates(scratch: &super::activemq::Scratch) -> Option<PathBuf> {
    Some(scratch.path().join("certificates"))
}

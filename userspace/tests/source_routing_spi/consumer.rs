//! The source under test, with a ledger that can be told to fail or to stop, and a store that remembers what it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};

use signalbox::source::Learnt;
use signalbox::source::routing_spi::{Ledger, RoutingSpi};
use signalbox_core::learned::Learned;
use signalbox_core::model::{Broker, RoutingEvents};
use signalbox_core::spi::{AppKey, Application, Filter, Naming, learned};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::activemq::LONG;
use super::lab::eventually;

pub(crate) const QUEUE: &str = "/queue/routing";

/// Records that outlive the consumer.
#[derive(Default)]
pub(crate) struct Disk {
    records: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Calls that have come, calls that shall fail from now on, and at which call to stop.
    plan: Mutex<Plan>,
    changed: Condvar,
}

#[derive(Default)]
struct Plan {
    calls: u64,
    failures: u64,
    stop: Option<Stop>,
    stopped: bool,
}

/// Where the consumer is to die.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    BeforeRecord,
    AfterRecord,
}

struct Stop {
    at: u64,
    moment: Moment,
}

impl Disk {
    pub(crate) fn records(&self) -> Vec<(String, Vec<u8>)> {
        let records = self.records.lock().unwrap();
        records
            .iter()
            .map(|(key, bytes)| (key.clone(), bytes.clone()))
            .collect()
    }

    pub(crate) fn calls(&self) -> u64 {
        self.plan.lock().unwrap().calls
    }

    pub(crate) fn fail(&self, times: u64) {
        self.plan.lock().unwrap().failures = times;
    }

    /// Failures still to come.
    pub(crate) fn failures(&self) -> u64 {
        self.plan.lock().unwrap().failures
    }

    /// The next call but `calls` will not return until `release`.
    pub(crate) fn stop_after(&self, calls: u64, moment: Moment) {
        let mut plan = self.plan.lock().unwrap();
        let at = plan.calls + calls;
        plan.stop = Some(Stop { at, moment });
    }

    pub(crate) fn wait_stopped(&self) {
        let plan = self.plan.lock().unwrap();
        let (plan, _) = self
            .changed
            .wait_timeout_while(plan, LONG, |plan| !plan.stopped)
            .unwrap();
        assert!(plan.stopped, "no further event came");
    }

    pub(crate) fn release(&self) {
        let mut plan = self.plan.lock().unwrap();
        (plan.stop, plan.stopped) = (None, false);
        self.changed.notify_all();
    }
}

impl Ledger for Disk {
    fn record(&self, changed: &[(String, Option<Vec<u8>>)]) -> Result<(), String> {
        let mut plan = self.plan.lock().unwrap();
        plan.calls += 1;
        if plan.failures > 0 {
            plan.failures -= 1;
            return Err("no space left on device".to_owned());
        }
        let stop = plan
            .stop
            .as_ref()
            .filter(|stop| plan.calls > stop.at)
            .map(|stop| stop.moment);
        if stop != Some(Moment::BeforeRecord) {
            let mut records = self.records.lock().unwrap();
            for (key, bytes) in changed {
                match bytes {
                    Some(bytes) => records.insert(key.clone(), bytes.clone()),
                    None => records.remove(key),
                };
            }
        }
        if stop.is_some() {
            plan.stopped = true;
            self.changed.notify_all();
            let _released = self.changed.wait_while(plan, |plan| plan.stopped).unwrap();
        }
        match stop {
            Some(Moment::BeforeRecord) => Err("the process died".to_owned()),
            _ => Ok(()),
        }
    }
}

type Told = Arc<Mutex<BTreeMap<String, Learned>>>;

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
        filter: Filter {
            types: ["load_balancer".to_owned()].into(),
        },
        naming: Naming {
            prefix: "ha-".into(),
            domain: Some("apps.example.com".into()),
        },
        certificates: None,
    }
}

impl Consumer {
    /// Opens it from what the ledger has, and lets it run.
    pub(crate) fn start(runtime: &Runtime, settings: RoutingEvents, disk: &Arc<Disk>) -> Self {
        let told = Told::default();
        let store = Arc::clone(&told);
        let tell = move |learnt: Learnt| {
            assert_eq!(learnt.source, "routing-spi");
            let mut store = store.lock().unwrap();
            match learnt.what {
                Some(what) => store.insert(learnt.cluster, Learned::clone(&what)),
                None => store.remove(&learnt.cluster),
            };
            let _ = learnt.done.unwrap().send(Ok(()));
        };
        let ledger: Arc<dyn Ledger> = Arc::<Disk>::clone(disk);
        let spi = RoutingSpi::open(settings, disk.records(), ledger, Box::new(tell)).unwrap();
        let running = Arc::clone(&spi);
        let task = runtime.spawn(async move {
            running.run().await;
        });
        Self { spi, told, task }
    }

    /// As if the process had died: nothing is said to the broker, nothing acknowledged or recorded any more.
    pub(crate) fn kill(self, runtime: &Runtime) {
        self.task.abort();
        assert!(runtime.block_on(self.task).unwrap_err().is_cancelled());
        self.spi.close();
    }

    /// As if it had died where the ledger has stopped it. Returns what it had taken.
    pub(crate) fn kill_stopped(self, runtime: &Runtime, disk: &Disk) -> u64 {
        disk.wait_stopped();
        self.task.abort();
        assert!(runtime.block_on(self.task).unwrap_err().is_cancelled());
        disk.release();
        // Waits for what was under way.
        self.spi.close();
        taken(&self.spi)
    }

    /// Events and bad messages that were taken.
    pub(crate) fn taken(&self) -> u64 {
        let events = self.spi.standing().events.get();
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
            self.spi.standing().view()
        );
    }

    /// Asserts that all that is known, on disk, and told are these applications.
    pub(crate) fn assert_is(&self, disk: &Disk, wanted: &BTreeMap<AppKey, Application>, settings: &RoutingEvents) {
        let known: Vec<Application> = self.spi.applications();
        let wanted: Vec<Application> = wanted.values().cloned().collect();
        let keys = |all: &[Application]| all.iter().map(|a| a.key.clone()).collect::<BTreeSet<_>>();
        assert_eq!(keys(&known), keys(&wanted));
        assert_eq!(known, wanted);
        let records = disk
            .records()
            .into_iter()
            .filter(|(key, _)| key.starts_with("application/"));
        let kept: BTreeMap<AppKey, Application> = records
            .map(|(_, bytes)| Application::from_record(&bytes).unwrap())
            .map(|application| (application.key.clone(), application))
            .collect();
        assert_eq!(kept.into_values().collect::<Vec<_>>(), wanted);
        let told = self.told.lock().unwrap();
        let expected: BTreeMap<String, Learned> = wanted
            .iter()
            .map(|one| (one.key.to_string(), learned(one, &settings.naming, &settings.filter)))
            .collect();
        assert_eq!(*told, expected);
    }
}

fn taken(spi: &RoutingSpi) -> u64 {
    let events = spi.standing().events.get();
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

/// Where a test's certificates go.
pub(crate) fn certificates(scratch: &super::activemq::Scratch) -> Option<PathBuf> {
    Some(scratch.path().join("certificates"))
}

//! A source under test, and its expected reports.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use signalbox::source::kube::{Settings, Timings};
use signalbox::source::{self, DiscoveryUpdate, SourceStatus};
use signalbox_core::discovered::claims::{self, ClusterObjects, ObjectKind};
use signalbox_core::discovered::discovery::ClusterDiscovery;
use signalbox_core::model::kubernetes::{
    AddressType, ApiServerAccess, KubernetesSource, Resource, Routers, ShardFilter,
};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::JoinHandle;

use super::Api;
use super::store::Selection;

/// Deadline: nothing takes as long, unless it never comes.
const NEVER: Duration = Duration::from_secs(60);

/// Everything by default, in a hurry.
pub(crate) fn settings(api: &Api) -> Settings {
    Settings {
        source: KubernetesSource {
            access: ApiServerAccess::Url {
                url: format!("http://{}", api.addr),
                token: None,
                ca: None,
            },
            resources: None,
            namespaces: Vec::new(),
            labels: None,
            shard: ShardFilter::default(),
            wildcards: false,
            certificates: false,
            routers: Routers {
                pods: None,
                address: AddressType::Internal,
                http: None,
                https: None,
            },
        },
        certificates: None,
        timings: Timings {
            settle: Duration::from_millis(5),
            retry: Duration::from_millis(5),
            max_retry: Duration::from_millis(50),
            check: Duration::from_millis(20),
            absent: Duration::from_millis(50),
            forbidden_retry: Duration::from_millis(50),
            relist: Duration::from_secs(3600),
            program_timeout: Duration::from_secs(30),
            answer_timeout: Duration::from_secs(30),
            watch_timeout: Duration::from_secs(1),
            silence_timeout: Duration::from_secs(30),
        },
    }
}

/// Computes the meaning of the server's objects from all of them at once.
pub(crate) fn meaning(api: &Api, settings: &Settings) -> ClusterDiscovery {
    let store = api.store.lock().unwrap();
    let asked = &settings.source;
    let namespaces: Vec<Option<String>> = match asked.namespaces.as_slice() {
        [] => vec![None],
        some => some.iter().cloned().map(Some).collect(),
    };
    let pairs = |labels: &str| {
        let pairs = labels.split(',').filter_map(|one| one.split_once('='));
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    };
    let mut objects = Vec::new();
    for (plural, resource) in Resource::ALL {
        if asked.resources.as_ref().is_some_and(|some| !some.contains(&resource)) {
            continue;
        }
        let kind = match resource {
            Resource::Routes => ObjectKind::Route,
            Resource::Ingresses => ObjectKind::Ingress,
            Resource::TlsRoutes => ObjectKind::TlsRoute,
            Resource::HttpRoutes => ObjectKind::HttpRoute,
        };
        for namespace in &namespaces {
            let labels = asked.labels.as_deref().map(pairs).unwrap_or_default();
            let namespace = namespace.clone();
            let found = store.select(plural, &Selection { namespace, labels });
            objects.extend(
                found
                    .iter()
                    .filter_map(|object| source::kube::object(kind, object).ok()),
            );
        }
    }
    let pods = asked.router_pods().into_iter().flat_map(|place| {
        let (namespace, labels) = (Some(place.namespace), pairs(&place.labels));
        store.select("pods", &Selection { namespace, labels })
    });
    let pods: Vec<_> = pods.filter_map(|object| source::kube::pod(&object).ok()).collect();
    let nodes = store.select("nodes", &Selection::default());
    let nodes: Vec<_> = nodes
        .iter()
        .filter_map(|object: &Value| source::kube::node(object).ok())
        .collect();
    let nodes: &[_] = if asked.routers.address == AddressType::External {
        &nodes
    } else {
        &[]
    };
    let of_labels = |labels: &String| {
        let labels = pairs(labels);
        let selection = Selection {
            namespace: None,
            labels,
        };
        let found = store.select("namespaces", &selection);
        found.iter().map(|one| source::kube::namespace(one).unwrap()).collect()
    };
    let namespaces: Option<Vec<String>> = asked.shard.namespace_labels.as_ref().map(of_labels);
    let namespaces = namespaces
        .as_ref()
        .filter(|_| !store.moods.forbidden.contains("namespaces"));
    let classes = store.select("ingressclasses", &Selection::default());
    let classes: Vec<_> = classes.iter().filter_map(|one| source::kube::class(one).ok()).collect();
    let may_see = |plural| !store.moods.forbidden.contains(plural);
    let gateways = store.select("gateways", &Selection::default());
    let gateways: Vec<_> = gateways
        .iter()
        .filter_map(|one| source::kube::gateway(one).ok())
        .collect();
    let seen = ClusterObjects {
        objects: objects.iter().collect(),
        pods: pods.iter().collect(),
        nodes: nodes.iter().collect(),
        namespaces: namespaces.map(|all| all.iter().map(String::as_str).collect()),
        gateways: may_see("gateways").then(|| gateways.iter().collect()),
        ingress_classes: may_see("ingressclasses").then(|| classes.iter().collect()),
    };
    claims::discover(seen, &settings.rules())
}

/// A running source.
pub(crate) struct Watching {
    pub(crate) settings: Settings,
    pub(crate) standing: Arc<SourceStatus>,
    /// Reported knowledge, in order.
    pub(crate) told: Vec<ClusterDiscovery>,
    out: UnboundedReceiver<DiscoveryUpdate>,
    task: JoinHandle<()>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watching {
    pub(crate) fn start(settings: Settings) -> Self {
        let standing = SourceStatus::new("kube:east", "kubernetes");
        let (sender, out) = mpsc::unbounded_channel();
        let task = source::kube::spawn(settings.clone(), "east".to_owned(), Arc::clone(&standing), sender);
        Self {
            settings,
            standing,
            told: Vec::new(),
            out,
            task,
        }
    }

    /// Waits until its reports agree with the server's objects.
    #[track_caller]
    pub(crate) fn settles(&mut self, api: &Api) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let expected = meaning(api, &self.settings);
            while self.told.last() != Some(&expected) {
                match tokio::time::timeout(NEVER, self.out.recv()).await {
                    Ok(Some(learnt)) => self.note(learnt),
                    Ok(None) => panic!("{caller}: the source has ended"),
                    Err(_) => panic!(
                        "{caller}: expected {expected:#?}\ntold {:#?}\nstanding {:#}",
                        self.told.last(),
                        view_of(&self.standing)
                    ),
                }
            }
        }
    }

    /// Takes the reports so far, without waiting.
    pub(crate) fn drain(&mut self) -> usize {
        while let Ok(learnt) = self.out.try_recv() {
            self.note(learnt);
        }
        self.told.len()
    }

    fn note(&mut self, learnt: DiscoveryUpdate) {
        assert_eq!((learnt.source.as_str(), learnt.cluster.as_str()), ("kube:east", "east"));
        self.told.push(ClusterDiscovery::clone(
            &learnt.discovery.expect("a cluster that is watched is not gone"),
        ));
    }

    /// Waits until its standing is such.
    #[track_caller]
    pub(crate) fn stands(&self, what: impl Fn(&Value) -> bool) -> impl Future<Output = Value> {
        let (caller, standing) = (std::panic::Location::caller(), Arc::clone(&self.standing));
        async move {
            let wait = async {
                loop {
                    let view = view_of(&standing);
                    if what(&view) {
                        return view;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let waited = tokio::time::timeout(NEVER, wait).await;
            waited.unwrap_or_else(|_| panic!("{caller}: {:#}", view_of(&standing)))
        }
    }
}

/// Returns a source's status as the API shows it.
pub(crate) fn view_of(source: &SourceStatus) -> Value {
    serde_json::to_value(source.view()).unwrap()
}

/// Returns the number of events of a kind.
pub(crate) fn count(view: &Value, event: &str) -> u64 {
    view["events"][event].as_u64().unwrap_or(0)
}

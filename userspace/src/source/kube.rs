//! Watches a cluster's API server for router hosts and names: the same inside the balancer and in `signalbox agent`.
//!
//! One [`feed`] per resource and namespace lists, then watches, and [`decode`]s what it sees into the core's small
//! objects. The [`hub`] holds them all, has `core::claims` decide what they mean, and tells. When the server is lost
//! everything stays as it was told last. Only this module knows the kube crate, and uses of it kubeconfigs and TLS alone:
//! its watcher keeps bookmarks to itself and refuses a whole list for one object that it cannot decode, and its client
//! runs credential programs on threads that cannot be given up.

mod client;
mod complaint;
mod connect;
mod decode;
mod feed;
mod hub;
mod lines;
mod odd;
mod path;
mod program;
mod proxy;
mod reach;
mod read;
mod trouble;
mod way;
mod what;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use signalbox_core::claims::Rules;
use signalbox_core::model::kubernetes::{AddressType, KubernetesSource, Resource, Routers};
use tokio::sync::mpsc::{UnboundedSender, channel};
use tokio::task::{JoinHandle, JoinSet};

use super::{Learnt, Standing};
use connect::Connector;
use feed::{Feed, Need};
use hub::Hub;
use what::What;

pub use decode::{class, gateway, namespace, node, object, pod};

/// How many events may wait for the hub before feeds stop reading: they come from the network, faster than they are
/// dealt with only while a list is read.
const WAITING: usize = 1024;

/// What is watched, and how patiently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What the configuration says.
    pub source: KubernetesSource,
    /// How patiently.
    pub pace: Pace,
}

impl Settings {
    /// With the usual patience.
    #[must_use]
    pub fn new(source: KubernetesSource) -> Self {
        Self {
            source,
            pace: Pace::default(),
        }
    }

    /// What the core has to know of it.
    #[must_use]
    pub fn rules(&self) -> Rules {
        let Routers {
            address, http, https, ..
        } = self.source.routers;
        Rules {
            choice: self.source.choice.clone(),
            labelled: self.source.labels.is_some(),
            wildcards: self.source.wildcards,
            address,
            http,
            https,
        }
    }
}

/// Times, which tests shorten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// From telling to telling again. A change after a longer quiet is told of at once, what follows it together.
    pub settle: Duration,
    /// Until the first new attempt after a failure; half of it at least, by chance.
    pub retry: Duration,
    /// The longest time until a new attempt, which is doubled up to here.
    pub retry_most: Duration,
    /// How often a server that is lost, and the files that a connection needs, are looked at.
    pub look: Duration,
    /// Until a resource that the server does not have is asked for again.
    pub absent: Duration,
    /// Until router pods are asked for again in a place where they may not be seen, while they are seen in another.
    pub excused: Duration,
    /// Until a list is read again although its watch has nothing against it: what has gone wrong unseen ends here.
    pub relist: Duration,
    /// For the program that gets the credentials.
    pub program: Duration,
    /// For the server to begin an answer.
    pub answer: Duration,
    /// How long a watch is asked to last. Older servers send no bookmarks: its end is then all that is heard.
    pub watch: Duration,
    /// Without a word on a watch, after which it is given up; longer than it lasts.
    pub silence: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            settle: Duration::from_millis(100),
            retry: Duration::from_millis(250),
            retry_most: Duration::from_secs(30),
            look: Duration::from_secs(1),
            absent: Duration::from_secs(60),
            excused: Duration::from_secs(300),
            relist: Duration::from_secs(3600),
            program: Duration::from_secs(30),
            answer: Duration::from_secs(60),
            watch: Duration::from_secs(120),
            silence: Duration::from_secs(180),
        }
    }
}

/// Watches until aborted, or until nobody receives any more, and tells as the source `kube:CLUSTER`. The first time is
/// when everything has been listed once.
pub fn spawn(
    settings: Settings,
    cluster: String,
    standing: Arc<Standing>,
    out: UnboundedSender<Learnt>,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        let connector = Arc::new(Connector::new(settings.source.connection.clone(), settings.pace));
        let (news, told) = channel(WAITING);
        let feeds = feeds(&settings.source);
        let hub = Hub::new(&settings, cluster, Arc::clone(&standing), &feeds);
        // Dropped, and so aborted, with this task.
        let mut running = JoinSet::new();
        for (number, feed) in feeds.into_iter().enumerate() {
            let teller = feed::Teller::new(number, news.clone());
            let (connector, standing) = (Arc::clone(&connector), Arc::clone(&standing));
            running.spawn(feed::follow(feed, connector, settings.pace, standing, teller));
        }
        drop(news);
        running.spawn(reach::tend(connector, settings.pace.look));
        hub.run(told, out).await;
    })
}

/// All that is watched.
fn feeds(source: &KubernetesSource) -> Vec<Feed> {
    let all = Resource::ALL.map(|(_, resource)| resource);
    let resources = source.resources.as_deref().unwrap_or(&all);
    let namespaces: Vec<Option<&String>> = if source.namespaces.is_empty() {
        vec![None]
    } else {
        source.namespaces.iter().map(Some).collect()
    };
    let mut feeds = Vec::new();
    for resource in resources {
        feeds.extend(namespaces.iter().map(|namespace| Feed {
            what: What::of(*resource),
            namespace: namespace.cloned(),
            labels: source.labels.clone(),
            need: Need::Must,
        }));
    }
    let need = match source.routers.pods {
        None => Need::Guess,
        Some(_) => Need::Must,
    };
    feeds.extend(source.router_pods().into_iter().map(|pods| Feed {
        what: What::Pods,
        namespace: Some(pods.namespace),
        labels: Some(pods.labels),
        need,
    }));
    // A pod knows its node's internal address; for another the account needs the right to see nodes.
    if source.routers.address == AddressType::External {
        feeds.push(Feed {
            what: What::Nodes,
            namespace: None,
            labels: None,
            need: Need::Must,
        });
    }
    feeds.extend(helpers(source, resources));
    feeds
}

/// What decides on objects that do not say it themselves.
fn helpers(source: &KubernetesSource, resources: &[Resource]) -> Vec<Feed> {
    let choice = &source.choice;
    let everywhere = |what, labels: Option<String>, need| Feed {
        what,
        namespace: None,
        labels,
        need,
    };
    let mut feeds = Vec::new();
    if let Some(labels) = &choice.namespace_labels {
        let by_status = !choice.router_names.is_empty();
        let need = if by_status { Need::Help } else { Need::Must };
        feeds.push(everywhere(What::Namespaces, Some(labels.clone()), need));
    }
    if resources.contains(&Resource::Ingresses) && !choice.ingress_classes.is_empty() {
        feeds.push(everywhere(What::IngressClasses, None, Need::Help));
    }
    if resources.contains(&Resource::HttpRoutes) || resources.contains(&Resource::TlsRoutes) {
        if !choice.gateway_classes.is_empty() {
            feeds.push(everywhere(What::Gateways, None, Need::Must));
        }
        let namespaces: BTreeSet<&String> = choice.gateways.iter().map(|gateway| &gateway.namespace).collect();
        feeds.extend(namespaces.into_iter().map(|namespace| Feed {
            what: What::Gateways,
            namespace: Some(namespace.clone()),
            labels: None,
            need: Need::Help,
        }));
    }
    feeds
}

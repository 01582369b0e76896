//! Events for the store: every change of configuration, health, rotation and discovery, in order.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::Arc;

use ipnet::IpNet;
use signalbox_api::hosts::LastCheck;
use signalbox_core::discovered::merge::{ClusterWeights, TesterOverrides};
use signalbox_core::model::Model;
use signalbox_core::model::shield::Prefixes;
use tokio::sync::oneshot;

use super::etcd::SharedRecords;
use super::listener_set::Offer;
use super::rotation_jobs::{Job, RotateError, RotationRequest};
use super::store::persistent_state::ConfigOverride;
use crate::compat::routing_spi::PendingRotation;
use crate::datapath::accept::StopMode;
use crate::source::DiscoveryUpdate;
use crate::state::HostState;

/// Event for the store.
pub enum StoreEvent {
    Checked(Arc<HostState>, LastCheck),
    /// A new configuration, and its origin.
    Apply(Box<Configuration>, oneshot::Sender<Result<Applied, String>>),
    /// New weights of routes, by name: (cluster, weight).
    SetWeights(
        BTreeMap<String, Option<ClusterWeights>>,
        oneshot::Sender<Result<Applied, String>>,
    ),
    /// Testers of all migrations, which replace the earlier ones.
    SetTesters(TesterOverrides, oneshot::Sender<Result<(), String>>),
    /// New prefixes of a listener or a service, or of all if the name is empty.
    SetPrefixes(String, PrefixChange, oneshot::Sender<Result<Arc<Prefixes>, String>>),
    /// New report of a source about a cluster.
    Discovery(DiscoveryUpdate),
    /// Current records that balancers share.
    SharedRecords(SharedRecords),
    /// Request to take subjects out of rotation, or back in.
    Rotate(RotationRequest, oneshot::Sender<Result<Job, RotateError>>),
    /// Rotation requested by a routing event.
    SourceRotation(PendingRotation),
    /// Request to cancel a rotation.
    CancelRotation(u64, oneshot::Sender<Result<Job, RotateError>>),
    /// Progress of a job.
    JobChanged(u64),
    /// Progress of a migration. Answered when it is on disk.
    MigrationChanged(u64, oneshot::Sender<Result<(), String>>),
    /// Stops listening. Queued connections are accepted first, or left to the process with duplicates of the sockets.
    StopListening(StopMode, oneshot::Sender<()>),
    /// Returns duplicates of the listening sockets, and of the link of the program that steers connections to them.
    DuplicateSockets(oneshot::Sender<io::Result<Offer>>),
    /// Hands the listening sockets to another process.
    HandOver(oneshot::Sender<Offer>),
    /// Failure of the process that should have taken over.
    HandOverFailed,
    /// Success of the process that took over: it now accepts connections.
    HandedOver(oneshot::Sender<()>),
}

/// Configuration with its origin.
pub struct Configuration {
    pub model: Model,
    pub origin: String,
    /// Text that replaces the file's configuration, even after a restart.
    pub config_override: Option<ConfigOverride>,
}

/// Returns a number that changes with the text of a configuration.
#[must_use]
pub fn fingerprint(text: &str) -> u64 {
    signalbox_common::hash::bytes(0, text.as_bytes())
}

/// Effect of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Applied {
    pub hosts_added: usize,
    pub hosts_removed: usize,
    pub routes: usize,
    pub addresses: usize,
}

/// A change of prefixes.
pub enum PrefixChange {
    /// Replaces all prefixes.
    Replace(Prefixes),
    /// Adds prefixes, and removes those in `forget`: they are neither denied nor allowed.
    Edit { add: Prefixes, forget: Vec<IpNet> },
}

impl PrefixChange {
    /// Returns whether the change only removes.
    #[must_use]
    pub fn adds_nothing(&self) -> bool {
        match self {
            Self::Replace(add) | Self::Edit { add, .. } => add.is_empty(),
        }
    }

    pub(super) fn applied(self, before: Option<&Arc<Prefixes>>) -> Prefixes {
        let (mut all, add, gone) = match self {
            Self::Replace(all) => (all, Prefixes::default(), Vec::new()),
            Self::Edit { add, forget } => (before.map(|before| (**before).clone()).unwrap_or_default(), add, forget),
        };
        // The latest verdict on a prefix counts.
        let said: HashSet<IpNet> = add
            .deny
            .iter()
            .chain(&add.allow)
            .chain(&gone)
            .map(IpNet::trunc)
            .collect();
        for list in [&mut all.deny, &mut all.allow] {
            list.retain(|net| !said.contains(&net.trunc()));
        }
        all.deny.extend(add.deny);
        all.allow.extend(add.allow);
        for list in [&mut all.deny, &mut all.allow] {
            list.iter_mut().for_each(|net| *net = net.trunc());
        }
        all
    }
}

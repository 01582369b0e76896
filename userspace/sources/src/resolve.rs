//! Hostnames whose addresses are hosts of a cluster: each is a source, which asks the machine's name servers again when
//! the time to live of their answer is over.

mod ask;
mod message;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use signalbox_core::discovered::discovery::ClusterDiscovery;
use signalbox_core::model::Host;
use signalbox_core::wire::hostname::Hostname;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::{JoinHandle, JoinSet};

use crate::backoff::Backoff;
use crate::{DiscoveryUpdate, SourceStatus};
use message::KINDS;

/// Least time from one resolution to the next.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Longest time until a resolution that has failed is tried again.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Most addresses of a hostname that become hosts.
const MAX_ADDRESSES: usize = 256;

/// A hostname that is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedName {
    pub cluster: String,
    pub hostname: Hostname,
    /// Longest time from one resolution to the next.
    pub interval: Duration,
}

/// Addresses of both kinds.
type Addresses = [Vec<IpAddr>; 2];

/// Follows a hostname from the addresses that are known of it.
pub fn spawn(
    name: FollowedName,
    known: impl Iterator<Item = IpAddr>,
    status: Arc<SourceStatus>,
    out: UnboundedSender<DiscoveryUpdate>,
) -> JoinHandle<()> {
    let (v4, v6) = known.partition(IpAddr::is_ipv4);
    tokio::spawn(follow(name, [v4, v6], status, out))
}

async fn follow(
    name: FollowedName,
    mut addresses: Addresses,
    status: Arc<SourceStatus>,
    out: UnboundedSender<DiscoveryUpdate>,
) {
    let longest_retry = name.interval.clamp(MIN_INTERVAL, MAX_RETRY_INTERVAL);
    let mut backoff = Backoff::new(MIN_INTERVAL, longest_retry, name.hostname.as_str());
    let mut is_failing = false;
    let publish = |addresses: &Addresses| {
        let update = DiscoveryUpdate {
            source: status.name.clone(),
            cluster: name.cluster.clone(),
            discovery: Some(Arc::new(discovery(addresses))),
            done: None,
        };
        out.send(update).is_ok()
    };
    loop {
        let (ttl, error) = resolve(&name.hostname, &mut addresses, &publish).await;
        if addresses.iter().any(|of_kind| !of_kind.is_empty()) && !publish(&addresses) {
            return;
        }
        let (cluster, hostname) = (name.cluster.as_str(), name.hostname.as_str());
        let pause = if let Some(error) = error {
            if !is_failing {
                tracing::warn!(
                    cluster,
                    hostname,
                    error,
                    "Hostname of hosts is not resolved: the addresses known of it stay."
                );
            }
            is_failing = true;
            status.mark_failed(error);
            backoff.pause()
        } else {
            if is_failing {
                tracing::info!(cluster, hostname, "Hostname of hosts is resolved again.");
            }
            is_failing = false;
            status.mark_heard();
            backoff.reset();
            ttl.unwrap_or(name.interval).min(name.interval).max(MIN_INTERVAL)
        };
        tokio::time::sleep(pause).await;
    }
}

/// Resolves a hostname, and publishes addresses of a kind that have changed before those of the other kind are there; an
/// answer without any address changes nothing. Returns how long the answer holds, and why it is not whole.
async fn resolve(
    hostname: &Hostname,
    addresses: &mut Addresses,
    publish: impl Fn(&Addresses) -> bool,
) -> (Option<Duration>, Option<String>) {
    let mut asked = JoinSet::new();
    for (at, kind) in KINDS.into_iter().enumerate() {
        let hostname = hostname.clone();
        asked.spawn(async move { (at, ask::ask(&hostname, kind).await) });
    }
    let (mut ttl, mut error, mut gone) = (None, None, [false; KINDS.len()]);
    while let Some(Ok((at, outcome))) = asked.join_next().await {
        match outcome {
            Ok(mut answer) => {
                // Servers rotate the order of the addresses.
                answer.addresses.sort_unstable();
                answer.addresses.dedup();
                answer.addresses.truncate(MAX_ADDRESSES);
                ttl = ttl.into_iter().chain(answer.ttl).min();
                gone[at] = answer.addresses.is_empty();
                if !gone[at] && addresses[at] != answer.addresses {
                    addresses[at] = answer.addresses;
                    publish(addresses);
                }
            }
            Err(why) => error = error.or(Some(why)),
        }
    }
    if addresses.iter().zip(gone).all(|(kept, gone)| gone || kept.is_empty()) {
        return (ttl, error.or_else(|| Some("the name has no address".to_owned())));
    }
    for (kept, _) in addresses.iter_mut().zip(gone).filter(|(_, gone)| *gone) {
        kept.clear();
    }
    (ttl, error)
}

/// Knowledge of the addresses; the configuration has all other facts about the hosts.
fn discovery(addresses: &Addresses) -> ClusterDiscovery {
    let host = |address: &IpAddr| Host {
        name: address.to_string(),
        address: *address,
        http: None,
        https: None,
        tcp: None,
        ports: std::collections::BTreeMap::new(),
        weight: 1,
        backup: false,
        health_page: None,
    };
    ClusterDiscovery {
        hosts: addresses.iter().flatten().map(host).collect(),
        ..ClusterDiscovery::default()
    }
}

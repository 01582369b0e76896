//! Hosts of the store: their health and ejection, and changes with a new model.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use signalbox_api::changes::ChangeEvent;
use signalbox_api::hosts::LastCheck;
use signalbox_core::model::{Cluster, Ejection, HealthCheck, Host};
use signalbox_core::routing::ejection::EjectionState;
use signalbox_core::routing::health::{Health, Hysteresis};
use signalbox_tls::host_fault::HostTlsFault;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::Store;
use crate::control::event::Applied;
use crate::control::health;
use crate::state::HostState;

/// A host of the active model, and the task that probes it.
pub(super) struct HostEntry {
    pub(super) state: Arc<HostState>,
    hysteresis: Hysteresis,
    pub(super) ejection_record: EjectionState,
    configured: Host,
    check: HealthCheck,
    ejection: Ejection,
    /// Reasons of failed TLS handshakes that have been logged.
    logged_faults: BTreeSet<String>,
    recheck: Arc<Notify>,
    probe: JoinHandle<()>,
}

/// Maximum number of remembered reasons for a host's failed handshakes: a host chooses the names in its certificates.
const MAX_LOGGED_FAULTS: usize = 16;

/// Event of a host that is ejected for a reason, or tried again.
fn ejection(host: &HostState, reason: Option<&str>) -> ChangeEvent {
    ChangeEvent::Ejection {
        cluster: host.cluster.clone(),
        host: host.name.clone(),
        ejected: reason.is_some(),
        detail: reason.map(str::to_owned),
    }
}

impl Drop for HostEntry {
    fn drop(&mut self) {
        self.probe.abort();
    }
}

/// Names of a cluster and of one of its hosts.
pub(super) type HostKey = (String, String);

impl Store {
    pub(super) fn entry(&mut self, host: &Arc<HostState>) -> Option<&mut HostEntry> {
        // Found by name, because there may be thousands of hosts, each checked every few seconds.
        let key = (host.cluster.clone(), host.name.clone());
        self.states
            .hosts
            .get_mut(&key)
            .filter(|entry| Arc::ptr_eq(&entry.state, host))
    }

    pub(super) fn checked(&mut self, host: &Arc<HostState>, result: LastCheck) {
        let Some(cluster) = self.states.clusters.get(&host.cluster) else {
            return;
        };
        if result.ok {
            cluster.checks_ok.inc();
        } else {
            cluster.checks_failed.inc();
        }
        let ok = result.ok;
        let detail = result.detail.clone();
        *host.last_check.lock() = Some(result);
        let Some(entry) = self.entry(host) else { return };
        let Some(health) = entry.hysteresis.observe(ok, entry.check.rise, entry.check.fall) else {
            return;
        };
        host.decide_health(health);
        self.needs_publish = true;
        match health {
            Health::Unhealthy => tracing::warn!(cluster = host.cluster, host = host.name, detail, "Host is down."),
            _ => tracing::info!(cluster = host.cluster, host = host.name, detail, "Host is up."),
        }
        self.shared.announce(ChangeEvent::Health {
            cluster: host.cluster.clone(),
            host: host.name.clone(),
            healthy: health != Health::Unhealthy,
            detail,
        });
    }

    /// Requests a check of a host before the next is due.
    pub(super) fn recheck(&mut self, host: &Arc<HostState>) {
        if let Some(entry) = self.entry(host) {
            entry.recheck.notify_one();
        }
    }

    pub(super) fn connect_failed(&mut self, host: &Arc<HostState>, error: &str) {
        let now = self.started.elapsed();
        let same = |entry: &&HostEntry| entry.state.cluster == host.cluster;
        let of = self.states.hosts.values().filter(same).count();
        let ejected = self
            .states
            .hosts
            .values()
            .filter(same)
            .filter(|entry| entry.ejection_record.is_ejected())
            .count();
        let Some(entry) = self.entry(host) else { return };
        // A failed connect requests a check before the next is due.
        entry.recheck.notify_one();
        let policy = entry.ejection;
        if entry.ejection_record.record_failure(&policy, now, (ejected, of)) {
            host.ejected.store(true, Relaxed);
            self.needs_publish = true;
            tracing::warn!(
                cluster = host.cluster,
                host = host.name,
                error,
                "Host is ejected after failed connects."
            );
            self.shared.announce(ejection(host, Some(error)));
        }
    }

    /// Reports why a TLS handshake with a host failed: each reason once in the log, the last in the host's view.
    pub(super) fn tls_failed(&mut self, host: &Arc<HostState>, fault: HostTlsFault) {
        let Some(entry) = self.entry(host) else { return };
        if entry.logged_faults.len() >= MAX_LOGGED_FAULTS {
            entry.logged_faults.clear();
        }
        let HostTlsFault { reason, asked } = fault;
        if entry.logged_faults.insert(reason.clone()) {
            tracing::warn!(
                cluster = host.cluster,
                host = host.name,
                reason,
                asked,
                "Host is not trusted, or TLS to it fails: this reason is not logged again."
            );
        }
        host.set_tls_fault(Some(reason));
    }

    /// Ends the ejections whose time is over.
    pub(super) fn end_ejections(&mut self) {
        let now = self.started.elapsed();
        for entry in self.states.hosts.values_mut() {
            if entry.ejection_record.expire(now) {
                entry.state.ejected.store(false, Relaxed);
                self.needs_publish = true;
                tracing::info!(
                    cluster = entry.state.cluster,
                    host = entry.state.name,
                    "Host is tried again."
                );
                self.shared.announce(ejection(&entry.state, None));
            }
        }
    }

    pub(super) fn reconcile_hosts(&mut self, applied: &mut Applied) {
        let mut before = std::mem::take(&mut self.states.hosts);
        let mut gone = Vec::new();
        let model = Arc::clone(&self.active.model);
        for cluster in &model.clusters {
            for host in &cluster.hosts {
                let key = (cluster.name.clone(), host.name.clone());
                let mut kept = before.remove(&key);
                // A host with another address is another host: the old one drains.
                if kept.as_ref().is_some_and(|old| old.configured.address != host.address) {
                    gone.extend(kept.take());
                }
                let entry = match kept {
                    Some(mut old) if old.check == cluster.health && old.configured == *host => {
                        old.ejection = cluster.ejection;
                        old
                    }
                    // A changed check keeps the host: its counters, connections and health stay.
                    Some(old) => {
                        let mut new = self.start(cluster, host, Arc::clone(&old.state), old.hysteresis.clone());
                        new.ejection_record = old.ejection_record.clone();
                        new
                    }
                    None => {
                        applied.hosts_added += 1;
                        let state = self.revive(cluster, host);
                        self.start(cluster, host, state, Hysteresis::default())
                    }
                };
                self.states.hosts.insert(key, entry);
            }
        }
        for gone in gone.into_iter().chain(before.into_values()) {
            if self
                .states
                .hosts
                .values()
                .any(|entry| Arc::ptr_eq(&entry.state, &gone.state))
            {
                continue;
            }
            applied.hosts_removed += 1;
            gone.state.draining.store(true, Relaxed);
            self.states.draining.push(Arc::clone(&gone.state));
        }
    }

    /// Returns the state of a host: a new one, or that of a returning host whose connections still drain.
    pub(super) fn revive(&mut self, cluster: &Cluster, host: &Host) -> Arc<HostState> {
        let same =
            |old: &Arc<HostState>| old.cluster == cluster.name && old.name == host.name && old.address == host.address;
        if let Some(at) = self.states.draining.iter().position(same) {
            let state = self.states.draining.swap_remove(at);
            state.draining.store(false, Relaxed);
            state.ejected.store(false, Relaxed);
            state.set_health(Health::Unknown);
            return state;
        }
        let state = HostState::new(&cluster.name, &host.name, host.address);
        Arc::new(state.counted_by(self.shared.limits.words.gauge()))
    }

    pub(super) fn start(
        &self,
        cluster: &Cluster,
        host: &Host,
        state: Arc<HostState>,
        hysteresis: Hysteresis,
    ) -> HostEntry {
        let recheck = Arc::<Notify>::default();
        let probe = health::spawn(
            cluster.health.clone(),
            host.clone(),
            Arc::clone(&state),
            hysteresis.clone(),
            Arc::clone(&recheck),
            self.events.clone(),
        );
        HostEntry {
            state,
            hysteresis,
            ejection_record: EjectionState::default(),
            configured: host.clone(),
            check: cluster.health.clone(),
            ejection: cluster.ejection,
            logged_faults: BTreeSet::new(),
            recheck,
            probe,
        }
    }
}

//! The supervisor: gives addresses to this node, and takes them away.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use signalbox_core::availability::ha::addresses::OwnedAddress;
use signalbox_core::availability::ha::notice::GroupState;
use signalbox_core::model::ha::HaMode;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::eligibility::Eligibility;
use crate::keepalived::{self, CONFIG_FILE, Keepalived};
use crate::notices::Notices;
use crate::{Directory, Settings, address, firewall, planned};
use signalbox_api::ha::Condition;

/// Pause before the first restart of keepalived; it doubles with each.
const FIRST_RESTART_INTERVAL: Duration = Duration::from_millis(200);
const MAX_RESTART_INTERVAL: Duration = Duration::from_secs(10);
/// Lifetime of a keepalived after which its end starts a new series of restarts.
const STABLE_INTERVAL: Duration = Duration::from_secs(60);
const NEW_CONFIG_FILE: &str = "keepalived.conf.new";

/// Process that gives addresses to this node.
enum Backend {
    Running {
        process: Keepalived,
        since: Instant,
    },
    /// The process has ended, and is started again at a time.
    Ended {
        restart_at: Instant,
    },
    /// There is none: the supervisor itself adds addresses.
    None,
}

/// Event of the process that gives addresses to this node.
pub(super) enum BackendEvent {
    /// The process has ended, with this status.
    Ended(String),
    RestartDue,
}

pub(super) struct Supervisor {
    directory: Directory,
    settings: watch::Receiver<Arc<Settings>>,
    pub(super) notices: Notices,
    backend: Backend,
    restart_interval: Duration,
    eligibility: Eligibility,
    /// Last decision; `None`: there is none yet.
    is_eligible: Option<bool>,
}

impl Supervisor {
    pub(super) fn new(directory: Directory, settings: watch::Receiver<Arc<Settings>>, notices: Notices) -> Self {
        Self {
            directory,
            settings,
            notices,
            backend: Backend::None,
            restart_interval: FIRST_RESTART_INTERVAL,
            eligibility: Eligibility::default(),
            is_eligible: None,
        }
    }

    fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.borrow())
    }

    /// Begins, without addresses: those that a killed supervisor has left are removed.
    pub(super) async fn start(&mut self) -> anyhow::Result<()> {
        let settings = self.settings();
        self.directory.set_ready(false)?;
        self.directory
            .add_groups(settings.ha.groups.iter().map(|group| group.name.as_str()))?;
        keepalived::end_orphan(&self.directory).await;
        self.remove_addresses(&settings).await;
        if settings.ha.mode == HaMode::Keepalived {
            self.prepare(&settings).await?;
            self.commit()?;
            self.spawn()?;
        }
        Ok(())
    }

    /// Writes new settings for keepalived, and has keepalived check them.
    pub(super) async fn prepare(&self, settings: &Settings) -> anyhow::Result<()> {
        if settings.ha.mode != HaMode::Keepalived {
            return Ok(());
        }
        self.directory
            .add_groups(settings.ha.groups.iter().map(|group| group.name.as_str()))?;
        let file = self.directory.file(NEW_CONFIG_FILE);
        let text = settings.keepalived(self.directory.text())?;
        signalbox_sys::write_private(self.directory.path(), NEW_CONFIG_FILE, text.as_bytes())
            .with_context(|| format!("writing {}", file.display()))?;
        keepalived::test(&file).await
    }

    fn commit(&self) -> anyhow::Result<()> {
        let (new, file) = (self.directory.file(NEW_CONFIG_FILE), self.directory.file(CONFIG_FILE));
        fs::rename(&new, &file).with_context(|| format!("renaming {}", new.display()))
    }

    fn spawn(&mut self) -> anyhow::Result<()> {
        let process = Keepalived::start(&self.directory)?;
        let since = Instant::now();
        self.backend = Backend::Running { process, since };
        Ok(())
    }

    /// Applies settings that have been prepared.
    pub(super) async fn reload(&mut self, before: &Settings) {
        let settings = self.settings();
        if settings.ha.mode == HaMode::Keepalived {
            if let Err(error) = self.commit() {
                let error = format!("{error:#}");
                tracing::error!(error, "keepalived keeps its configuration.");
                return;
            }
            if let Backend::Running { process, .. } = &self.backend {
                process.reload();
            }
        } else {
            let kept = settings.addresses(|_| false);
            let gone: Vec<_> = before
                .addresses(|_| false)
                .into_iter()
                .filter(|old| !kept.contains(old))
                .collect();
            self.remove(&gone).await;
            self.is_eligible = None;
        }
        if before.ha.firewall && !settings.ha.firewall {
            super::close_firewall().await;
        }
        self.open_firewall().await;
    }

    /// Decides whether this node may have addresses; returns when to decide again though nothing changes.
    pub(super) async fn decide(&mut self, condition: &Condition, is_well: bool) -> Option<Duration> {
        let settings = self.settings();
        let now = std::time::Instant::now();
        let (is_eligible, again) = self.eligibility.decide(&settings.ha, condition, is_well, now);
        if self.is_eligible != Some(is_eligible) {
            tracing::info!(
                is_eligible,
                ready = condition.ready,
                is_well,
                may_preempt = condition.may_preempt,
                reasons = condition.reasons.join("; "),
                "This node's eligibility for addresses has changed."
            );
            if is_eligible && planned::reclaims(&settings.ha) {
                self.reclaim(&settings).await;
            }
            if let Err(error) = self.directory.set_ready(is_eligible) {
                let error = format!("{error:#}");
                tracing::error!(
                    error,
                    "keepalived could not be told whether this node may have addresses."
                );
            }
        }
        self.is_eligible = Some(is_eligible);
        if settings.ha.mode == HaMode::Address {
            self.place_addresses(&settings, is_eligible).await;
        }
        again
    }

    /// Has other nodes hand over the groups that this one takes next.
    async fn reclaim(&self, settings: &Settings) {
        let names = settings.ha.groups.iter().map(|group| group.name.clone());
        let groups: Vec<_> = names.filter(|group| !self.directory.is_released(group)).collect();
        planned::reclaim(&settings.socket, &groups).await;
    }

    /// Has the connections of this node's groups that cannot move along drain here: all of its addresses leave.
    pub(super) async fn hand_over(&self, condition: &Condition) {
        let settings = self.settings();
        // A signalbox that stops has done so itself.
        if condition.pid == 0 || condition.stopping || !planned::drains(&settings.ha) {
            return;
        }
        planned::hand_over(&settings.socket, self.notices.masters()).await;
    }

    /// Adds addresses to the loopback interface, or removes them.
    async fn place_addresses(&mut self, settings: &Settings, is_eligible: bool) {
        let is_out = |group: &str| !is_eligible || self.directory.is_released(group);
        let wanted = settings.addresses(is_out);
        let unwanted = settings.addresses(|group| !is_out(group));
        self.remove(&unwanted).await;
        if let Err(error) = address::add(&wanted).await {
            let error = format!("{error:#}");
            tracing::error!(error, "Addresses could not be added.");
            return;
        }
        let states: Vec<_> = settings
            .ha
            .groups
            .iter()
            .map(|group| (&group.name, is_out(&group.name)))
            .collect();
        for (group, is_out) in states {
            let state = if is_out { GroupState::Fault } else { GroupState::Master };
            self.notices.set(group, state);
        }
    }

    /// Waits until keepalived has ended, or must be started again. May be cancelled and called again.
    pub(super) async fn next(&mut self) -> BackendEvent {
        match &mut self.backend {
            Backend::None => std::future::pending().await,
            Backend::Running { process, .. } => {
                let status = process.ended().await;
                BackendEvent::Ended(status.map_or_else(|error| error.to_string(), |status| status.to_string()))
            }
            Backend::Ended { restart_at } => {
                tokio::time::sleep_until(*restart_at).await;
                BackendEvent::RestartDue
            }
        }
    }

    /// Acts on an event.
    pub(super) async fn handle(&mut self, event: BackendEvent) {
        match event {
            BackendEvent::Ended(status) => {
                if matches!(&self.backend, Backend::Running { since, .. } if since.elapsed() >= STABLE_INTERVAL) {
                    self.restart_interval = FIRST_RESTART_INTERVAL;
                }
                let again_in_ms = self.restart_interval.as_millis();
                tracing::error!(status, again_in_ms, "keepalived has ended.");
                self.backend = Backend::Ended {
                    restart_at: Instant::now() + self.restart_interval,
                };
                self.restart_interval = (self.restart_interval * 2).min(MAX_RESTART_INTERVAL);
                self.clean_up().await;
            }
            BackendEvent::RestartDue => {
                if let Err(error) = self.spawn() {
                    let error = format!("{error:#}");
                    tracing::error!(error, "keepalived cannot be started.");
                    self.backend = Backend::Ended {
                        restart_at: Instant::now() + MAX_RESTART_INTERVAL,
                    };
                }
            }
        }
    }

    /// Removes leftovers of a keepalived that did not end on its own.
    async fn clean_up(&mut self) {
        keepalived::end_orphan(&self.directory).await;
        self.remove_addresses(&self.settings()).await;
        self.notices.lose_all();
    }

    /// Gives all addresses up.
    pub(super) async fn stop(&mut self) {
        if let Backend::Running { process, .. } = &mut self.backend {
            process.stop().await;
        }
        self.backend = Backend::None;
        keepalived::end_orphan(&self.directory).await;
        let settings = self.settings();
        self.remove_addresses(&settings).await;
        if settings.ha.firewall {
            super::close_firewall().await;
        }
    }

    async fn remove_addresses(&self, settings: &Settings) {
        self.remove(&settings.addresses(|_| false)).await;
    }

    async fn remove(&self, addresses: &[OwnedAddress]) {
        if addresses.is_empty() {
            return;
        }
        match address::remove(addresses).await {
            Ok(removed) if removed.is_empty() => {}
            Ok(removed) => {
                let removed: Vec<_> = removed.iter().map(|owned| owned.address.to_string()).collect();
                tracing::info!(addresses = removed.join(" "), "Addresses have been removed.");
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "Addresses could not be removed.");
            }
        }
    }

    /// Lets VRRP in where the configuration asks for it.
    pub(super) async fn open_firewall(&self) {
        let settings = self.settings();
        if !settings.ha.firewall || settings.ha.mode != HaMode::Keepalived {
            return;
        }
        match firewall::open().await {
            Ok(0) => {}
            Ok(chains) => tracing::info!(chains, "The firewall lets VRRP in."),
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(error, "The firewall rules that let VRRP in could not be added.");
            }
        }
    }
}

//! `signalbox ha run`: from the configuration to addresses that only an eligible node has.

mod files;
mod lock;
mod supervisor;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use signalbox_core::model::ha::HaMode;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::notices::Notices;
use crate::{Directory, Settings, announce, firewall, follow};
use lock::Locks;
use signalbox_api::ha::Condition;
use supervisor::Supervisor;

/// Time that the last reports have at the end.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the firewall's rules are restored if someone has removed them.
const FIREWALL_INTERVAL: Duration = Duration::from_secs(10);
/// Longest time until eligibility is decided again.
const MAX_DECISION_INTERVAL: Duration = Duration::from_secs(86_400);

/// Arguments of the supervisor.
#[derive(Clone, Debug)]
pub struct Options {
    /// Configuration file.
    pub config: PathBuf,
    /// Runtime directory.
    pub directory: PathBuf,
    /// Admin socket of signalbox, in place of the configuration's.
    pub socket: Option<PathBuf>,
}

impl Options {
    /// Reads the configuration.
    fn settings(&self) -> anyhow::Result<Settings> {
        let mut settings = Settings::load(&self.config)?;
        if let Some(socket) = &self.socket {
            settings.socket.clone_from(socket);
        }
        Ok(settings)
    }
}

/// Runs until told to stop. Must be called on the thread of a runtime that has no other: keepalived ends with it.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let settings = options.settings()?;
    if settings.ha.mode == HaMode::External {
        bail!(
            "`ha.mode` is `external`: what decides there reports by PUT /api/v1/ha/groups/NAME, and nothing is to run"
        );
    }
    let directory = Directory::new(&options.directory)?;
    directory.create()?;
    let _locks = Locks::take(&directory)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let (mut changes, _watcher) = files::watch(&options.config, &directory)?;
    let fifo = pipe::OpenOptions::new()
        .read_write(true)
        .open_receiver(directory.fifo());
    let mut fifo = BufReader::new(fifo.context("opening the FIFO of keepalived")?).lines();

    let (told, settings) = watch::channel(Arc::new(settings));
    let (condition_sender, mut condition) = watch::channel(Condition::default());
    let (well_sender, mut well) = watch::channel(false);
    let (report_sender, reports) = mpsc::unbounded_channel();
    let (call_sender, calls) = mpsc::unbounded_channel();
    let followed = tokio::spawn(follow::run(settings.clone(), condition_sender));
    let checked = tokio::spawn(crate::watch::run(settings.clone(), well_sender));
    let last_words = [
        tokio::spawn(announce::report(settings.clone(), condition.clone(), reports)),
        tokio::spawn(announce::call(settings.clone(), calls)),
    ];
    let notices = Notices::new(settings.clone(), report_sender, call_sender);
    let mut supervisor = Supervisor::new(directory, settings, notices);
    supervisor.start().await?;
    // There may be no systemd.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);

    let mut firewall_at = tokio::time::interval(FIREWALL_INTERVAL);
    let mut again = None;
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => reload(&options, &told, &mut supervisor).await,
            Some(()) = changes.recv() => reload(&options, &told, &mut supervisor).await,
            Ok(()) = condition.changed() => {}
            Ok(()) = well.changed() => {}
            () = tokio::time::sleep(again.unwrap_or(MAX_DECISION_INTERVAL)) => {}
            Ok(Some(line)) = fifo.next_line() => {
                supervisor.notices.take(&line);
                continue;
            }
            event = supervisor.next() => {
                supervisor.handle(event).await;
                continue;
            }
            _ = firewall_at.tick() => {
                supervisor.open_firewall().await;
                continue;
            }
        }
        let (current, is_well) = (condition.borrow_and_update().clone(), *well.borrow_and_update());
        again = supervisor.decide(&current, is_well).await;
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    tracing::info!("Stopping: the addresses are given up.");
    checked.abort();
    let last = condition.borrow_and_update().clone();
    supervisor.hand_over(&last).await;
    supervisor.stop().await;
    while let Ok(Ok(Some(line))) = tokio::time::timeout(Duration::ZERO, fifo.next_line()).await {
        supervisor.notices.take(&line);
    }
    end(supervisor, last_words).await;
    followed.abort();
    Ok(())
}

/// Lets the last reports reach their receivers.
async fn end(mut supervisor: Supervisor, last_words: [JoinHandle<()>; 2]) {
    supervisor.notices.lose_all();
    drop(supervisor);
    let deadline = Instant::now() + LAST_WORDS_TIMEOUT;
    for task in last_words {
        let _ = tokio::time::timeout_at(deadline, task).await;
    }
}

/// Applies a changed configuration; one with mistakes changes nothing.
async fn reload(options: &Options, told: &watch::Sender<Arc<Settings>>, supervisor: &mut Supervisor) {
    let new = match options.settings() {
        Ok(new) => new,
        Err(error) => {
            let error = format!("{error:#}");
            tracing::error!(error, "The configuration is not applied: the current one stays active.");
            return;
        }
    };
    let before = Arc::clone(&told.borrow());
    if *before != new {
        if before.ha.mode != new.ha.mode {
            tracing::error!("Changing `ha.mode` needs a restart of `signalbox ha run`: nothing is changed.");
            return;
        }
        if let Err(error) = supervisor.prepare(&new).await {
            let error = format!("{error:#}");
            tracing::error!(error, "The configuration is not applied: the current one stays active.");
            return;
        }
        told.send_replace(Arc::new(new));
        supervisor.reload(&before).await;
        tracing::info!("The configuration has been reloaded.");
    }
}

/// Removes the rules of the firewall, where there are any.
async fn close_firewall() {
    if let Err(error) = firewall::close().await {
        let error = format!("{error:#}");
        tracing::warn!(error, "The firewall's rules for VRRP could not be removed.");
    }
}

//! The terminal: reads keys and news, draws the view, and always restores the terminal at the end.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use crossterm::event::{Event, EventStream};
use hyper::Method;
use ratatui::DefaultTerminal;
use signalbox_api::rotations::{Action, RotationAnswer, RotationBody};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;

use super::data::Update;
use super::draw::{Palette, draw};
use super::feed;
use super::keys::{HostRotation, Mode, TopCommand, TopState};
use super::text::{safe, safe_value};
use crate::explain::explanation_text;
use signalbox_sources::client::{ApiClient, ClientError, percent_encoded};

/// Interval at which the view is drawn without news, because it shows its age.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);

/// Result of a request to the balancer.
enum Reply {
    /// A text to read, with its title.
    Text(String, String),
    Message(String),
}

/// Shows the view until a key or a signal ends it.
pub(super) async fn watch(client: Arc<ApiClient>, address: String) -> anyhow::Result<ExitCode> {
    let mut ends = EndSignals::new()?;
    in_terminal(async |terminal| {
        tokio::select! {
            ended = interact(terminal, client, &address) => ended.map(|()| ExitCode::SUCCESS),
            number = ends.next() => Ok(ExitCode::from(128 + number)),
        }
    })
    .await
}

/// Runs `work` in a terminal that shows the view, and always restores it at the end.
async fn in_terminal<T>(work: impl AsyncFnOnce(&mut DefaultTerminal) -> anyhow::Result<T>) -> anyhow::Result<T> {
    // This also makes a panic restore the terminal before it is reported.
    let mut terminal = ratatui::try_init().context("the terminal cannot be used")?;
    let ended = work(&mut terminal).await;
    let restored = ratatui::try_restore();
    let value = ended?;
    restored.context("the terminal cannot be restored: `reset` does it")?;
    Ok(value)
}

/// Signals that end a program.
struct EndSignals([(u8, Signal); 3]);

impl EndSignals {
    fn new() -> std::io::Result<Self> {
        let of = |number: u8| signal(SignalKind::from_raw(number.into())).map(|signal| (number, signal));
        Ok(Self([of(1)?, of(2)?, of(15)?]))
    }

    /// Waits for one of SIGHUP, SIGINT and SIGTERM, and returns its number.
    async fn next(&mut self) -> u8 {
        let [(hup, hung_up), (int, interrupted), (term, terminated)] = &mut self.0;
        tokio::select! {
            _ = hung_up.recv() => *hup,
            _ = interrupted.recv() => *int,
            _ = terminated.recv() => *term,
        }
    }
}

async fn interact(terminal: &mut DefaultTerminal, client: Arc<ApiClient>, address: &str) -> anyhow::Result<()> {
    let palette = Palette {
        has_colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    };
    let mut state = TopState::new();
    let (updates, mut news) = mpsc::unbounded_channel();
    let (replies, mut answered) = mpsc::unbounded_channel();
    let (pane, shown_pane) = watch::channel(state.pane);
    let mut readers = feed::start(&client, &updates, shown_pane);
    let mut asked = JoinSet::new();
    let (mut keys, mut seconds) = (EventStream::new(), tokio::time::interval(REDRAW_INTERVAL));
    loop {
        terminal.draw(|frame| draw(frame, &state, address, palette, Instant::now()))?;
        tokio::select! {
            event = keys.next() => if let Event::Key(key) = event.context("the terminal is gone")?? {
                match state.press(key) {
                    Some(TopCommand::Quit) => return Ok(()),
                    Some(command) => {
                        let (client, replies) = (Arc::clone(&client), replies.clone());
                        // The loop lives as long as the process, so a lost reply is not needed any more.
                        asked.spawn(async move { drop(replies.send(ask(&client, command).await)) });
                    }
                    None => {
                        pane.send_if_modified(|shown| std::mem::replace(shown, state.pane) != state.pane);
                    }
                }
            },
            Some(update) = news.recv() => take_all(&mut state, update, &mut news),
            Some(reply) = answered.recv() => show_reply(&mut state, reply),
            _ = seconds.tick() => {}
            ended = next_end(&mut asked), if !asked.is_empty() => ended?,
            _ = readers.join_next() => bail!("a reader has ended: this is a bug in signalbox"),
        }
    }
}

/// Waits for the end of a request. One that panicked has restored the terminal, and the view is not drawn again.
async fn next_end(asked: &mut JoinSet<()>) -> anyhow::Result<()> {
    match asked.join_next().await {
        Some(Err(error)) => bail!("a request has ended ({error}): this is a bug in signalbox"),
        _ => Ok(()),
    }
}

/// Handles all pending news before the view is drawn again.
fn take_all(state: &mut TopState, first: Update, news: &mut mpsc::UnboundedReceiver<Update>) {
    let now = Instant::now();
    state.take(first, now);
    while let Ok(update) = news.try_recv() {
        state.take(update, now);
    }
}

fn show_reply(state: &mut TopState, reply: Reply) {
    match reply {
        // A user who is typing is not interrupted.
        Reply::Text(title, text) if state.mode == Mode::Browse => state.read(title, text),
        Reply::Text(..) => {}
        Reply::Message(message) => state.message = Some(message),
    }
}

/// Sends a request to the balancer, and returns the result.
async fn ask(client: &ApiClient, command: TopCommand) -> Reply {
    let asked = match command {
        TopCommand::Quit => return Reply::Message(String::new()),
        TopCommand::Explain(name) => explain(client, &name).await,
        TopCommand::Rotate(rotation) => rotate(client, &rotation).await,
    };
    asked.unwrap_or_else(|error| Reply::Message(safe(&error.to_string())))
}

async fn explain(client: &ApiClient, name: &str) -> Result<Reply, ClientError> {
    let path = format!("/api/v1/explain?host={}", percent_encoded(name));
    let answer = safe_value(client.ask(Method::GET, &path, None).await?);
    Ok(match serde_json::from_value(answer) {
        Ok(explanation) => Reply::Text(format!("Explain {name}"), explanation_text(&explanation)),
        Err(error) => Reply::Message(format!("the running signalbox has another version: {error}")),
    })
}

async fn rotate(client: &ApiClient, rotation: &HostRotation) -> Result<Reply, ClientError> {
    let body = serde_json::to_string(&rotation_body(rotation)).unwrap_or_default();
    let answer = client.ask(Method::POST, "/api/v1/rotations", Some(body)).await?;
    let (cluster, host) = (&rotation.cluster, &rotation.host);
    let job = serde_json::from_value::<RotationAnswer>(answer)
        .unwrap_or_default()
        .job
        .id;
    let done = if rotation.is_out {
        "gets no new flow"
    } else {
        "is in rotation"
    };
    Ok(Reply::Message(format!("{cluster}/{host} {done} (job {job})")))
}

fn rotation_body(rotation: &HostRotation) -> RotationBody {
    RotationBody {
        action: if rotation.is_out { Action::Out } else { Action::In },
        names: vec![format!("host:{}/{}", rotation.cluster, rotation.host)],
        ..RotationBody::default()
    }
}

#[cfg(test)]
mod tests;

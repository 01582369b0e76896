//! `signalbox events`: posts a dump of routing events in order, and skips a message that blocks all later ones.

mod documents;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use hyper::{Method, StatusCode};
use serde_json::json;
use signalbox_api::events::{Blocked, EventsAnswer, EventsOutcome, EventsStatus, SkipAnswer};
use signalbox_core::discovered::spi;

use super::client::SocketArgs;
use super::{OutputFormat, client, show};
use documents::{EventDocument, split_documents};

#[derive(clap::Subcommand)]
pub(super) enum EventsCommand {
    /// Show the connection to the broker, the message that blocks the others, and the dead letters.
    Show(super::ShowArgs),
    /// Skip the message that cannot be recorded: it becomes a dead letter, and the next message is processed.
    Skip(SocketArgs),
    /// Post the events of a file in order, as if the broker had sent them.
    ///
    /// The file has YAML documents as the broker's plugin publishes them, or one JSON object per line. Events that are
    /// already known change nothing, so a replay may be repeated. Exits with 1 if an event was refused; the other
    /// events are processed.
    Replay {
        /// The file; - for standard input.
        file: PathBuf,
        /// Report what would change, and what would be refused; change nothing.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        show: super::ShowArgs,
    },
}

const PATH: &str = "/api/v1/routing-events";

/// Maximum number of bytes, and of events, in one post. Each post is one write to the disk.
const MAX_POST_BYTES: usize = 1 << 20;
const MAX_POST_EVENTS: usize = 1000;

pub(super) fn run(what: &EventsCommand) -> anyhow::Result<ExitCode> {
    match what {
        EventsCommand::Show(show) => print_status(show),
        EventsCommand::Skip(at) => {
            let path = "/api/v1/routing-events/skip";
            let letter = client::send::<SkipAnswer>(&at.socket, &Method::POST, path, None::<&()>)?.skipped;
            println!("skipped: {}\n{}", letter.reason, letter.text.trim_end());
            Ok(ExitCode::SUCCESS)
        }
        EventsCommand::Replay { file, dry_run, show } => replay(file, *dry_run, show),
    }
}

fn print_status(show: &super::ShowArgs) -> anyhow::Result<ExitCode> {
    let state = client::get(&show.socket, PATH)?;
    if show.output != OutputFormat::Table {
        show::emit(&state, show.output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let state: EventsStatus = client::decode(state)?;
    let contact = if state.source.connected {
        "connected"
    } else {
        "not connected"
    };
    println!("routing events: {contact}");
    if let Some(error) = state.source.contact.and_then(|contact| contact.last_error) {
        println!("  {error}");
    }
    if let Some(Blocked { reason, attempts, .. }) = &state.blocked {
        println!("a message cannot be recorded and blocks all after it ({attempts} attempts): {reason}");
        println!("  to skip it: `signalbox events skip`");
    }
    for letter in &state.dead_letters {
        println!("dead letter: {}", letter.reason);
    }
    Ok(ExitCode::SUCCESS)
}

/// Results of a replay so far.
#[derive(Default)]
struct ReplayStats {
    taken: usize,
    changed: std::collections::BTreeSet<String>,
    refused: u64,
}

fn replay(file: &Path, dry_run: bool, args: &super::ShowArgs) -> anyhow::Result<ExitCode> {
    let socket = &args.socket;
    let (name, text) = read(file)?;
    let mut stats = ReplayStats::default();
    let mut good = Vec::new();
    for piece in split_documents(&text) {
        match spi::parse(&piece.text) {
            Ok(_) => good.push(piece),
            Err(error) => count_refused(&mut stats, &name, piece.first_line + error.line - 1, &error.message),
        }
    }
    let path = if dry_run {
        format!("{PATH}?dry_run=true")
    } else {
        PATH.to_owned()
    };
    for batch in batches(&good) {
        let outcome = post(socket, &path, batch)?;
        if let Ok(outcome) = outcome {
            count_outcome(&mut stats, outcome);
            continue;
        }
        // A balancer of another version may understand less: events are posted one by one to find the refused ones.
        for piece in batch {
            match post(socket, &path, std::slice::from_ref(piece))? {
                Ok(outcome) => count_outcome(&mut stats, outcome),
                Err(why) => count_refused(&mut stats, &name, piece.first_line, &why),
            }
        }
    }
    if args.output != OutputFormat::Table {
        let report = json!({
            "dry_run": dry_run,
            "taken": stats.taken,
            "changed": stats.changed,
            "refused": stats.refused,
        });
        show::emit(&report, args.output)?;
        return Ok(ExitCode::from(u8::from(stats.refused > 0)));
    }
    let (would, changed) = (if dry_run { "would be " } else { "" }, stats.changed.len());
    println!(
        "{} events {would}processed, {changed} applications {would}changed, {} events {would}refused",
        stats.taken, stats.refused
    );
    Ok(ExitCode::from(u8::from(stats.refused > 0)))
}

fn read(file: &Path) -> anyhow::Result<(String, String)> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("reading standard input")?;
        return Ok(("standard input".to_owned(), text));
    }
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {name}"))?;
    Ok((name, text))
}

fn count_refused(stats: &mut ReplayStats, name: &str, line: usize, why: &str) {
    stats.refused += 1;
    eprintln!("{name}:{line}: refused: {why}");
}

fn count_outcome(stats: &mut ReplayStats, outcome: EventsOutcome) {
    stats.taken += outcome.events;
    stats.changed.extend(outcome.changed);
    for (cluster, why) in &outcome.refused {
        eprintln!("{cluster}: recorded, but not applied: {why}");
    }
}

/// Posts some events. Returns the outcome, or why they could not be understood. Any other failure ends the replay.
fn post(socket: &Path, path: &str, some: &[EventDocument]) -> anyhow::Result<Result<EventsOutcome, String>> {
    let body: String = some.iter().map(|piece| piece.text.as_str()).collect();
    let (status, answer) = client::post_text_raw(socket, path, body)?;
    let detail = || client::problem_text(&answer).unwrap_or_else(|| answer.to_string());
    match status {
        status if status.is_success() => Ok(Ok(client::decode::<EventsAnswer>(answer)?.outcome)),
        StatusCode::BAD_REQUEST => Ok(Err(detail())),
        _ => {
            let line = some.first().map_or(1, |piece| piece.first_line);
            bail!(
                "events from line {line} on were not posted: {}; replay the file again",
                detail()
            );
        }
    }
}

/// Returns the events in order, in batches of one post each.
fn batches(all: &[EventDocument]) -> Vec<&[EventDocument]> {
    let (mut batches, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (at, piece) in all.iter().enumerate() {
        if at > start && (bytes + piece.text.len() > MAX_POST_BYTES || at - start >= MAX_POST_EVENTS) {
            batches.extend(all.get(start..at));
            (start, bytes) = (at, 0);
        }
        bytes += piece.text.len();
    }
    batches.extend(all.get(start..).filter(|rest| !rest.is_empty()));
    batches
}

//! `signalbox shield` and `signalbox drops`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use hyper::Method;
use ipnet::IpNet;
use signalbox_api::shield::{
    DropView, DropsAnswer, GuardPrefixesAnswer, PrefixesAnswer, ShieldAnswer, ShieldExplanation,
};
use signalbox_core::model::shield::{self, PrefixEdit, Prefixes};

use super::show::TableArgs;
use super::{OutputFormat, client, show};
use signalbox_sources::client::percent_encoded;

/// Actions on prefixes.
#[derive(Subcommand)]
pub(super) enum ShieldCommand {
    /// Deny addresses or prefixes, now and after restarts.
    Deny(PrefixArgs),
    /// Allow addresses or prefixes although a shorter prefix is denied.
    Allow(PrefixArgs),
    /// Remove prefixes that were denied or allowed with `signalbox shield`.
    Forget(PrefixArgs),
    /// Replace all prefixes that were denied with `signalbox shield` by those of a file, one per line.
    Load {
        file: PathBuf,
        /// Name of the listener or service [default: all].
        #[arg(long, value_name = "NAME")]
        on: Option<String>,
        /// Proceed even if this denies most of the connected clients, or more than a /8 (IPv6: a /16).
        #[arg(long)]
        force: bool,
    },
    /// Show the prefixes that were denied and allowed with `signalbox shield`.
    List,
    /// Explain how each listener and service treats a client.
    Explain {
        /// Address of the client.
        client: std::net::IpAddr,
    },
}

#[derive(clap::Args)]
pub(super) struct PrefixArgs {
    /// Address or prefix, such as 192.0.2.7 or 2001:db8::/32.
    #[arg(required = true, value_parser = net)]
    prefixes: Vec<IpNet>,
    /// Name of the listener or service [default: all].
    #[arg(long, value_name = "NAME")]
    on: Option<String>,
    /// Proceed even if this denies most of the connected clients, or more than a /8 (IPv6: a /16).
    #[arg(long)]
    force: bool,
}

fn net(text: &str) -> Result<IpNet, String> {
    shield::exact_net(text)
}

fn path(on: Option<&str>) -> String {
    format!("/api/v1/shield/prefixes/{}", percent_encoded(on.unwrap_or("*")))
}

pub(super) fn run(what: Option<ShieldCommand>, args: &TableArgs) -> anyhow::Result<ExitCode> {
    let (socket, output) = (&args.show.socket, args.show.output);
    let send = |method: &Method, on: Option<&str>, edit: &PrefixEdit| {
        client::change(socket, method, &path(on), Some(&serde_json::to_value(edit)?))
    };
    let edit = |which: PrefixArgs, place: fn(&mut PrefixEdit) -> &mut Vec<IpNet>| {
        let mut edit = PrefixEdit {
            force: which.force,
            ..PrefixEdit::default()
        };
        *place(&mut edit) = which.prefixes;
        send(&Method::POST, which.on.as_deref(), &edit)
    };
    let answer = match what {
        None => return guards(args),
        Some(ShieldCommand::Deny(which)) => edit(which, |edit| &mut edit.deny)?,
        Some(ShieldCommand::Allow(which)) => edit(which, |edit| &mut edit.allow)?,
        Some(ShieldCommand::Forget(which)) => edit(which, |edit| &mut edit.forget)?,
        Some(ShieldCommand::Load { file, on, force }) => {
            let text = std::fs::read_to_string(&file)
                .map_err(|error| anyhow::anyhow!("reading {}: {error}", file.display()))?;
            let mut deny = Vec::new();
            for (number, line) in (1..).zip(text.lines()) {
                let line = line.split('#').next().unwrap_or_default().trim();
                if !line.is_empty() {
                    let prefix =
                        net(line).map_err(|why| anyhow::anyhow!("{}:{number}: {line:?} is {why}", file.display()))?;
                    deny.push(prefix);
                }
            }
            let edit = PrefixEdit {
                deny,
                force,
                ..PrefixEdit::default()
            };
            send(&Method::PUT, on.as_deref(), &edit)?
        }
        Some(ShieldCommand::List) => {
            let answer = client::get(socket, "/api/v1/shield/prefixes")?;
            if output == OutputFormat::Table {
                let named = client::decode::<PrefixesAnswer>(answer)?.prefixes;
                show::print_text(&prefixes_text(
                    named.iter().map(|(name, of)| (format!(" on {name}"), of)),
                ))?;
            } else {
                show::emit(&answer, output)?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        Some(ShieldCommand::Explain { client }) => return explain(client, socket, output),
    };
    if output == OutputFormat::Table {
        let of = client::decode::<GuardPrefixesAnswer>(answer)?.prefixes;
        show::print_text(&prefixes_text([(String::new(), &of)]))?;
    } else {
        show::emit(&answer, output)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats prefixes, each with the text after it.
fn prefixes_text<'a>(all: impl IntoIterator<Item = (String, &'a Prefixes)>) -> String {
    let mut lines = Vec::new();
    for (name, of) in all {
        for (key, prefixes) in [("deny", &of.deny), ("allow", &of.allow)] {
            lines.extend(prefixes.iter().map(|prefix| format!("{key} {prefix}{name}")));
        }
    }
    if lines.is_empty() {
        "nothing is denied or allowed here".to_owned()
    } else {
        lines.join("\n")
    }
}

fn guards(args: &TableArgs) -> anyhow::Result<ExitCode> {
    show::print("/api/v1/shield", args, |answer: &ShieldAnswer, form| {
        let problems = answer.troubles.iter().map(|problem| format!("! {problem}"));
        form.with_notes(show::rows(&answer.guards, form), problems)
    })
}

fn explain(client: std::net::IpAddr, socket: &Path, output: OutputFormat) -> anyhow::Result<ExitCode> {
    let answer = client::get(
        socket,
        &format!("/api/v1/shield/explain?client={}", percent_encoded(&client.to_string())),
    )?;
    if output != OutputFormat::Table {
        show::emit(&answer, output)?;
        return Ok(ExitCode::SUCCESS);
    }
    for guard in client::decode::<ShieldExplanation>(answer)?.guards {
        let (kind, name, shield) = (guard.kind.as_str(), &guard.name, &guard.shield);
        show::print_text(&format!("{kind} {name}: {}: {}", shield.verdict, shield.reason))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints samples of dropped packets: the latest ones, or new ones as they arrive.
pub(super) fn drops(follow: bool, limit: usize, socket: &Path, output: OutputFormat) -> anyhow::Result<ExitCode> {
    if follow {
        client::events(socket, "/api/v1/drops/follow", |kind, data| match kind {
            "drop" if output == OutputFormat::Table => show::print_text(&dropped(&serde_json::from_str(data)?)),
            "drop" => show::print_text(data),
            "missed" => show::print_text(&format!("({data} were missed)")),
            _ => Ok(()),
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let answer = client::get(socket, &format!("/api/v1/drops?limit={limit}"))?;
    if output == OutputFormat::Table {
        for drop in &client::decode::<DropsAnswer>(answer)?.drops {
            show::print_text(&dropped(drop))?;
        }
    } else {
        show::emit(&answer, output)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn dropped(drop: &DropView) -> String {
    let guard = if drop.guard.is_empty() { "no guard" } else { &drop.guard };
    format!(
        "{}.{:03} {:<11} {} {} > {} {} {} bytes, {guard}",
        drop.time_ms / 1000,
        drop.time_ms % 1000,
        drop.reason,
        drop.protocol,
        drop.source,
        drop.destination,
        drop.flags,
        drop.bytes,
    )
}

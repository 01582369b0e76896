//! `signalbox shield` and `signalbox drops`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use hyper::Method;
use ipnet::IpNet;
use serde_json::{Value, json};
use signalbox_core::model::shield;

use super::show::TableArgs;
use super::{OutputFormat, client, show};
use crate::source::client::percent_encoded;

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
    let edit = |key: &str, which: &PrefixArgs| {
        let body = json!({ key: which.prefixes, "force": which.force });
        client::change(socket, &Method::POST, &path(which.on.as_deref()), Some(&body))
    };
    let answer = match what {
        None => return guards(args),
        Some(ShieldCommand::Deny(which)) => edit("deny", &which)?,
        Some(ShieldCommand::Allow(which)) => edit("allow", &which)?,
        Some(ShieldCommand::Forget(which)) => edit("forget", &which)?,
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
            let body = json!({ "deny": deny, "force": force });
            client::change(socket, &Method::PUT, &path(on.as_deref()), Some(&body))?
        }
        Some(ShieldCommand::List) => client::get(socket, "/api/v1/shield/prefixes")?,
        Some(ShieldCommand::Explain { client }) => return explain(client, socket, output),
    };
    if output == OutputFormat::Table {
        show::print_text(&prefixes_text(&answer["prefixes"]))?;
    } else {
        show::emit(&answer, output)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats prefixes: those of one listener or service, or all of them by name.
fn prefixes_text(prefixes: &Value) -> String {
    let mut lines = Vec::new();
    let mut add = |name: &str, of: &Value| {
        for key in ["deny", "allow"] {
            for prefix in of[key].as_array().into_iter().flatten().filter_map(Value::as_str) {
                lines.push(format!("{key} {prefix}{name}"));
            }
        }
    };
    match prefixes.as_object() {
        Some(one) if one.contains_key("deny") => add("", prefixes),
        Some(named) => named.iter().for_each(|(name, of)| add(&format!(" on {name}"), of)),
        None => {}
    }
    if lines.is_empty() {
        "nothing is denied or allowed here".to_owned()
    } else {
        lines.join("\n")
    }
}

fn guards(args: &TableArgs) -> anyhow::Result<ExitCode> {
    let ask = || client::get(&args.show.socket, "/api/v1/shield");
    show::print_table(args, ask, |answer, form| {
        let lines: Vec<Value> = answer["guards"].as_array().into_iter().flatten().map(line).collect();
        let problems = answer["troubles"].as_array().into_iter().flatten();
        let problems = problems.map(|problem| format!("! {}", problem.as_str().unwrap_or_default()));
        form.with_notes(show::table("guards", &json!({ "guards": lines }), form), problems)
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
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    for guard in answer["guards"].as_array().into_iter().flatten() {
        let (kind, name, shield) = (text(&guard["kind"]), text(&guard["name"]), &guard["shield"]);
        show::print_text(&format!(
            "{kind} {name}: {}: {}",
            text(&shield["verdict"]),
            text(&shield["reason"])
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn line(guard: &Value) -> Value {
    let mut line = guard.clone();
    if let (Some(line), Some(decisions)) = (line.as_object_mut(), guard["decisions"].as_object()) {
        line.extend(decisions.clone());
    }
    line
}

/// Prints samples of dropped packets: the latest ones, or new ones as they arrive.
pub(super) fn drops(follow: bool, limit: usize, socket: &Path, output: OutputFormat) -> anyhow::Result<ExitCode> {
    let print = |drop: &Value| match output {
        OutputFormat::Table => show::print_text(&dropped(drop)),
        _ => show::print_text(&drop.to_string()),
    };
    if follow {
        client::events(socket, "/api/v1/drops/follow", |kind, data| match kind {
            "drop" => print(&serde_json::from_str(data).unwrap_or_default()),
            "missed" => show::print_text(&format!("({data} were missed)")),
            _ => Ok(()),
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let answer = client::get(socket, &format!("/api/v1/drops?limit={limit}"))?;
    if output == OutputFormat::Table {
        for drop in answer["drops"].as_array().into_iter().flatten() {
            print(drop)?;
        }
    } else {
        show::emit(&answer, output)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn dropped(drop: &Value) -> String {
    let text = |key: &str| drop[key].as_str().unwrap_or("-");
    let seconds = drop["time_ms"].as_u64().unwrap_or(0);
    format!(
        "{}.{:03} {:<11} {} {} > {} {} {} bytes, {}",
        seconds / 1000,
        seconds % 1000,
        text("reason"),
        text("protocol"),
        text("source"),
        text("destination"),
        text("flags"),
        drop["bytes"],
        if text("guard").is_empty() {
            "no guard"
        } else {
            text("guard")
        },
    )
}

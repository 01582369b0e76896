//! `signalbox ha-config`: virtual addresses from the options of OpenShift's `ha-config` and `oc adm ipfailover`.

mod environment;
mod kubernetes;
mod options;
mod section;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use comfy_table::{Table, presets};
use serde_json::Value;
use signalbox_core::availability::ha::keepalived::{NodeContext, Tracking, render};
use signalbox_core::availability::ha::ranges;
use signalbox_core::model::HighAvailability;

use super::show::{emit, print_text};
use super::{OutputFormat, ha};
pub(super) use options::HaConfigArgs;
use options::Output;
use signalbox_config as config;

/// Unit beside that of `signalbox run`, on which it does not depend: it must outlive it to remove the addresses.
const SYSTEMD_UNIT: &str = include_str!("../../../packaging/systemd/signalbox-ha.service");

pub(super) fn run(args: HaConfigArgs) -> anyhow::Result<ExitCode> {
    let args = if args.from_env {
        let names_nodes = args.nodes.is_some();
        let mut args = environment::complete(args, |name| std::env::var(name).ok())?;
        match &args.nodes {
            // The nodes are the cluster's, and this machine is none of them.
            Some(_) if !names_nodes && args.output == "kubernetes" => args.nodes = None,
            Some(_) if !names_nodes => add_own_node(&mut args)?,
            _ => {}
        }
        args
    } else {
        args
    };
    let output = args.checked()?;
    if args.create && output == Output::Kubernetes {
        return kubernetes::create(&args);
    }
    let (section, parsed) = match (&args.virtual_ips, args.create) {
        (None, false) => section::read(&args.into)?,
        _ => section::build(&args)?,
    };
    if args.create {
        return create(&args, &section);
    }
    show(&args, output, &section, &parsed)?;
    Ok(ExitCode::SUCCESS)
}

/// Adds this node to the peers in OpenShift's variable, which has only the others. All are named by their addresses and
/// sorted, so that all nodes have the same list.
fn add_own_node(args: &mut HaConfigArgs) -> anyhow::Result<()> {
    let interface = args.interface.clone().map_or_else(signalbox_ha::of_default_route, Ok)?;
    let vips = ranges::parse(args.virtual_ips.as_deref().unwrap_or_default()).unwrap_or_default();
    let Some(own) = signalbox_ha::own_address(&interface, |address| vips.contains(address)) else {
        bail!("OPENSHIFT_HA_UNICAST_PEERS: {interface} has no address to add this node with: give --nodes and --node");
    };
    let mut nodes: Vec<_> = args.named_nodes()?.into_iter().map(|(_, address)| address).collect();
    nodes.push(own);
    nodes.sort_unstable();
    nodes.dedup();
    let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
    args.nodes = Some(nodes.join(","));
    args.node = Some(own.to_string().replace(':', "-"));
    Ok(())
}

fn show(args: &HaConfigArgs, output: Output, section: &Value, ha: &HighAvailability) -> anyhow::Result<()> {
    match output {
        Output::Table => print_text(&table(args, ha)),
        Output::Json => emit(&serde_json::json!({ "ha": section }), OutputFormat::Json),
        Output::Yaml => print_text(&section::yaml(section)?),
        Output::Keepalived => print_text(&keepalived(args, ha)?),
        Output::Systemd => print_text(SYSTEMD_UNIT),
        Output::Kubernetes => print_text(&kubernetes::show(args, section)?),
    }
}

/// A line for each group.
fn table(args: &HaConfigArgs, ha: &HighAvailability) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if !args.no_headers {
        table.set_header(["NAME", "GROUP", "VIRTUAL IPS", "INTERFACE", "WATCH", "SELECTOR"]);
    }
    for group in &ha.groups {
        let vips: Vec<_> = group.vips.iter().map(ToString::to_string).collect();
        let watch = match (&ha.watch.script, ha.watch.port) {
            (Some(script), _) => script.display().to_string(),
            (None, 0) => "-".to_owned(),
            (None, port) => port.to_string(),
        };
        let interface = ha.interface.clone().unwrap_or_else(|| "default".to_owned());
        table.add_row([
            ha.name.clone(),
            group.name.clone(),
            vips.join(","),
            interface,
            watch,
            args.node_selector(),
        ]);
    }
    table.to_string()
}

/// keepalived's configuration of this node, for use without a supervisor.
fn keepalived(args: &HaConfigArgs, ha: &HighAvailability) -> anyhow::Result<String> {
    let settings = ha::settings(ha.clone())?;
    let interval = ha.watch.interval;
    let script = ha.watch.script.as_ref().map(|script| script.display().to_string());
    let check = || format!("/usr/bin/signalbox ha check --config {}", args.into.display());
    let node = NodeContext {
        name: &settings.node,
        interface: &settings.interface,
        password: settings.password.as_deref(),
        tracking: Tracking::Script {
            command: &script.unwrap_or_else(check),
            interval: interval.max(Duration::from_secs(1)),
        },
    };
    render(&settings.ha, &node).map_err(anyhow::Error::msg)
}

/// Puts the configuration where it takes effect: into signalbox's file.
fn create(args: &HaConfigArgs, section: &Value) -> anyhow::Result<ExitCode> {
    let file = &args.into;
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let before = config::parse(&text).map_err(|errors| anyhow::Error::msg(errors.with_file(file).to_string()))?;
    if before.model.ha.is_some() {
        bail!(
            "{} has a section `ha` already: edit it, or remove it first",
            file.display()
        );
    }
    let text = format!("{}\n\n{}", text.trim_end(), section::yaml(section)?);
    config::parse(&text).map_err(|errors| anyhow::Error::msg(errors.with_file(file).to_string()))?;
    replace(file, &text).with_context(|| format!("writing {}", file.display()))?;
    println!(
        "{}: section `ha` added; `signalbox ha run --config {0}` gives this node its addresses",
        file.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Replaces a file atomically, and keeps its permissions.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let new = file.with_extension("new");
    std::fs::write(&new, text)?;
    std::fs::set_permissions(&new, std::fs::metadata(file)?.permissions())?;
    std::fs::rename(&new, file)
}

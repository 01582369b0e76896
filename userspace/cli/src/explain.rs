//! `signalbox explain` and `signalbox diff`, as text.

use std::fmt::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use hyper::Method;
use signalbox_api::explain::{
    AddressExplanation, DatapathExplanation, Explanation, ListenerExplanation, NameExplanation, PathReason,
    RouteOrigin, RouteOrigins, ShareExplanation, TlsExplanation,
};
use signalbox_api::shield::ShieldVerdict;
use signalbox_api::weights::ChangesAnswer;
use signalbox_core::routing::diff::{FieldChange, ModelChange};

use super::{OutputFormat, client, show};
use signalbox_sources::client::percent_encoded;

pub(super) fn explain(
    host: &str,
    details: &[(&str, Option<String>)],
    socket: &Path,
    output: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let mut path = format!("/api/v1/explain?host={}", percent_encoded(host));
    for (key, value) in details {
        if let Some(value) = value {
            let _ = write!(path, "&{key}={}", percent_encoded(value));
        }
    }
    let answer = client::change(socket, &Method::GET, &path, None)?;
    match output {
        OutputFormat::Table => print!("{}", explanation_text(&client::decode(answer)?)),
        _ => show::emit(&answer, output)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats an answer.
pub(super) fn explanation_text(answer: &Explanation) -> String {
    let mut out = String::new();
    let _ = match answer {
        Explanation::Address(answer) => write_address(&mut out, answer),
        Explanation::Name(answer) => write_name(&mut out, answer),
    };
    out
}

/// Writes the service, listener and hosts of an address.
fn write_address(out: &mut String, answer: &AddressExplanation) -> fmt::Result {
    let at = answer.address;
    match (&answer.service, &answer.listener) {
        (Some(service), _) => writeln!(out, "{at}: service {service}, {}", answer.protocols.join(" and "))?,
        (None, Some(listener)) => writeln!(out, "{at}: listener {listener}; explain a name to learn its hosts")?,
        (None, None) => writeln!(out, "{at}: no listener and no layer-4 service has this address")?,
    }
    if let Some(clash) = &answer.clash {
        writeln!(out, "  {clash}")?;
    }
    write_shield(out, answer.shield.as_ref())?;
    for host in answer.hosts.iter().flatten() {
        write!(out, "  {} ({})", host.name, host.address)?;
        match host.takes_connections {
            true => writeln!(out, " takes connections")?,
            false => writeln!(out, " takes none: {}", host.reason)?,
        }
    }
    for (host, why) in answer.left_out.iter().flatten() {
        writeln!(out, "  {host} is left out: {why}")?;
    }
    Ok(())
}

fn write_shield(out: &mut String, shield: Option<&ShieldVerdict>) -> fmt::Result {
    match shield {
        Some(shield) => writeln!(out, "  shield: {}: {}", shield.verdict, shield.reason),
        None => Ok(()),
    }
}

fn write_name(out: &mut String, answer: &NameExplanation) -> fmt::Result {
    match (&answer.route, &answer.did_you_mean) {
        (Some(route), _) => write_route(out, &answer.host, route)?,
        (None, Some(other)) => writeln!(out, "{}: no route has this name; did you mean {other}?", answer.host)?,
        (None, None) => writeln!(out, "{}: no route has this name", answer.host)?,
    }
    for lost in &answer.lost {
        let origin = lost.rejected.as_ref().map(|rejected| &rejected.origin);
        let what = origin.or_else(|| lost.route.as_ref().map(|route| &route.host));
        writeln!(out, "  not {}: {}", what.map_or("-", String::as_str), lost.reason)?;
    }
    answer
        .listeners
        .iter()
        .try_for_each(|listener| write_listener(out, listener))
}

fn write_route(out: &mut String, name: &str, route: &RouteOrigins) -> fmt::Result {
    write!(out, "{name}: route {}", route.host)?;
    match &route.labels {
        Some(labels) => writeln!(out, " (its star matches {labels})")?,
        None => writeln!(out)?,
    }
    for RouteOrigin { source, claim } in &route.origins {
        let Some(claim) = claim else {
            writeln!(out, "  from {source}")?;
            continue;
        };
        let weight = claim
            .weight
            .map_or_else(|| "not set".to_owned(), |weight| weight.to_string());
        let (origin, cluster) = (&claim.origin, &claim.cluster);
        writeln!(out, "  from {source}: {origin}, cluster {cluster}, weight {weight}")?;
        for note in claim.settings.iter().chain(&claim.notes) {
            writeln!(out, "    {note}")?;
        }
    }
    if route.weights_set_by_api {
        writeln!(out, "  weights set by API")?;
    }
    Ok(())
}

fn write_listener(out: &mut String, of: &ListenerExplanation) -> fmt::Result {
    writeln!(out, "listener {} ({}): {}", of.listener, of.protocol, of.verdict)?;
    if let Some(seen) = &of.client_gets {
        writeln!(out, "  the client gets {seen}")?;
    }
    if of.verdict.starts_with("refused") {
        return Ok(());
    }
    if let Some(TlsExplanation {
        termination,
        certificate,
    }) = &of.tls
    {
        match (&**termination, certificate) {
            ("passthrough", _) => writeln!(out, "  TLS passes through to the host")?,
            (_, Some(certificate)) => writeln!(out, "  TLS ends here ({termination}), certificate {certificate}")?,
            (_, None) => writeln!(out, "  TLS ends here ({termination}), but no certificate has this name")?,
        }
    }
    write_shield(out, of.shield.as_ref())?;
    for said in &of.requests {
        writeln!(out, "  {said}")?;
    }
    of.clusters.iter().try_for_each(|cluster| write_share(out, cluster))?;
    if let Some(cluster) = &of.preferred_cluster {
        writeln!(out, "  this client prefers cluster {cluster} (`prefer` of the route)")?;
    }
    if let Some(next) = &of.next_host {
        writeln!(out, "  next: {next}")?;
    }
    if of.client_gets.is_some() {
        return writeln!(out, "  next: none, because no host takes connections");
    }
    write_datapath(out, &of.datapath)
}

fn write_share(out: &mut String, of: &ShareExplanation) -> fmt::Result {
    let backup = |is_backup: bool| if is_backup { "backup, " } else { "" };
    let (name, weight, share, balance) = (&of.name, of.weight, of.share_percent, &of.balance);
    let role = backup(of.backup);
    writeln!(
        out,
        "  cluster {name}: {role}weight {weight}, {share:?} % now, {balance}"
    )?;
    if let Some(how) = &of.http {
        writeln!(out, "    hosts are spoken to {how}")?;
    }
    if let Some(why) = &of.waits_for {
        writeln!(out, "    no hosts: {why}")?;
    }
    for host in &of.hosts {
        let state = match host.takes_connections {
            true => "takes connections",
            false => &host.reason,
        };
        let (name, role, active) = (&host.name, backup(host.backup), host.active_connections);
        writeln!(out, "    {name}: {role}{active} active, {state}")?;
    }
    Ok(())
}

fn write_datapath(out: &mut String, of: &DatapathExplanation) -> fmt::Result {
    write!(out, "  tier {}: {}", of.tier, of.verdict)?;
    if let Some(label) = &of.not_cut {
        write!(out, " ({label})")?;
    }
    writeln!(out, ": {}", of.reason)?;
    let peek = &of.kernel_peek;
    if peek.routed && peek.depends_on_client {
        return writeln!(
            out,
            "  kernel peek: routed in the kernel, without a socket; `prefer` or `allow` leaves some clients to userspace \
             (see --client)"
        );
    }
    if peek.routed {
        return writeln!(out, "  kernel peek: routed in the kernel, without a socket");
    }
    writeln!(out, "  kernel peek: not routed in the kernel")?;
    for PathReason {
        label,
        of,
        reason,
        remedy,
    } in &peek.left_to_userspace
    {
        write!(out, "    {of} ({label}): {reason}")?;
        match remedy {
            Some(remedy) => writeln!(out, "; {remedy}")?,
            None => writeln!(out)?,
        }
    }
    Ok(())
}

/// Prints a new or removed object on one line, and a changed one with each field on a line.
fn print_change(change: &ModelChange) {
    let (what, name) = (&change.kind, &change.name);
    match (&change.before, &change.after) {
        (Some(before), None) => println!("- {what} {name}: {before}"),
        (None, after) => println!("+ {what} {name}: {}", after.as_deref().unwrap_or("-")),
        (Some(_), Some(_)) => {
            for FieldChange { field, before, after } in &change.fields {
                let side = |side: &Option<String>| side.clone().unwrap_or_else(|| "none".to_owned());
                let gap = if field.is_empty() { "" } else { " " };
                println!("~ {what} {name}{gap}{field}: {} -> {}", side(before), side(after));
            }
        }
    }
}

/// Prints the differences. Exits with 0 if there are none, 1 if there are some, 2 if the file is wrong.
pub(super) fn diff(file: &Path, socket: &Path, output: OutputFormat) -> anyhow::Result<ExitCode> {
    let body = std::fs::read_to_string(file).map_err(|error| anyhow::anyhow!("reading {}: {error}", file.display()))?;
    match signalbox_config::parse(&body) {
        Ok(parsed) => parsed
            .warnings
            .iter()
            .for_each(|warning| eprintln!("warning: {warning}")),
        Err(errors) => {
            eprintln!("{}", errors.with_file(file));
            return Ok(ExitCode::from(2));
        }
    }
    let answer = client::post_text(socket, "/api/v1/diff", body)?;
    let changes = client::decode::<ChangesAnswer>(answer.clone())?.changes;
    if output == OutputFormat::Table {
        changes.iter().for_each(print_change);
        if changes.is_empty() {
            println!("nothing would change");
        }
    } else {
        show::emit(&answer, output)?;
    }
    Ok(ExitCode::from(u8::from(!changes.is_empty())))
}

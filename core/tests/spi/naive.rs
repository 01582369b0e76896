//! What applications are after a series of events, written as a question to the whole series, not as steps. Also: the
//! events as Ruby would write them. Shared with the test that uses a broker.
#![allow(dead_code, reason = "each of its two users takes a part")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use signalbox_core::discovered::spi::{AppChange, AppKey, Application, Applications, Endpoint, RoutingEvent};

/// The applications that a series of events leaves.
pub(crate) fn naive(events: &[RoutingEvent]) -> BTreeMap<AppKey, Application> {
    let keys: BTreeSet<&AppKey> = events.iter().map(|event| &event.app).collect();
    let found = keys.into_iter().filter_map(|key| {
        let all: Vec<&AppChange> = events
            .iter()
            .filter(|event| event.app == *key)
            .map(|event| &event.change)
            .collect();
        let deleted = all.iter().rposition(|change| **change == AppChange::Delete);
        let life = &all[deleted.map_or(0, |at| at + 1)..];
        one(key, life).map(|application| (key.clone(), application))
    });
    found.collect()
}

/// Rotation is no part of an application, and nothing stops in the series that this model is for.
fn one(key: &AppKey, life: &[&AppChange]) -> Option<Application> {
    let mut application = Application::new(key.clone());
    for change in life {
        if let AppChange::Create { scalable, ha } = change {
            application.announced = true;
            (application.scalable, application.ha) = (*scalable, *ha);
        }
    }
    for (at, change) in life.iter().enumerate() {
        let lasts = !life[at + 1..].iter().any(|later| undoes(later, change));
        match change {
            AppChange::AddEndpoint { addr: at, endpoint } if lasts => {
                application.endpoints.insert(*at, endpoint.clone());
            }
            AppChange::AddAlias(alias) if lasts => {
                application.aliases.insert(alias.clone());
            }
            AppChange::AddCertificate { alias, certificate } if lasts => {
                application.certificates.insert(alias.clone(), (**certificate).clone());
            }
            _ => {}
        }
    }
    let known = application.announced
        || !application.endpoints.is_empty()
        || !application.aliases.is_empty()
        || !application.certificates.is_empty();
    known.then_some(application)
}

/// Whether nothing is left of what was added once `later` has come.
fn undoes(later: &AppChange, added: &AppChange) -> bool {
    match (added, later) {
        (AppChange::AddEndpoint { addr: at, .. }, AppChange::AddEndpoint { addr: new, .. }) if at == new => true,
        (
            AppChange::AddEndpoint {
                addr: at,
                endpoint: old,
            },
            AppChange::AddEndpoint {
                addr: there,
                endpoint: new,
            },
        ) => {
            let port = |endpoint: &Endpoint| endpoint.gear.clone().zip(endpoint.name.clone());
            // A gear that is on another node now.
            at.ip() != there.ip() && port(old).is_some() && port(old) == port(new)
        }
        (AppChange::AddEndpoint { addr: at, endpoint }, AppChange::RemoveEndpoint { addr: gone, gear }) => {
            at == gone && (gear.is_none() || endpoint.gear.is_none() || *gear == endpoint.gear)
        }
        (AppChange::AddAlias(alias), AppChange::RemoveAlias(gone)) => alias == gone,
        (
            AppChange::AddCertificate { alias, .. },
            AppChange::RemoveAlias(gone)
            | AppChange::RemoveCertificate(gone)
            | AppChange::AddCertificate { alias: gone, .. },
        ) => alias == gone,
        _ => false,
    }
}

/// Without the gear that came first, which the naive model does not know: an application that is gone for a moment in
/// the middle of the series begins anew.
pub(crate) fn headless(mut application: Application) -> Application {
    application.head = None;
    application
}

/// The fold's answer, in the naive model's shape.
pub(crate) fn folded(applications: &Applications) -> BTreeMap<AppKey, Application> {
    applications
        .iter()
        .map(|application| (application.key.clone(), headless(application.clone())))
        .collect()
}

/// An event as the plugin's `to_yaml` writes it.
pub(crate) fn ruby(event: &RoutingEvent) -> String {
    let mut keys: Vec<(&str, String)> = Vec::new();
    let action = match &event.change {
        AppChange::Create { scalable, ha } => {
            keys.extend(scalable.map(|value| ("scalable", value.to_string())));
            keys.extend(ha.map(|value| ("ha", value.to_string())));
            "create_application"
        }
        AppChange::Delete => "delete_application",
        AppChange::AddEndpoint { addr: at, endpoint } => {
            keys.extend(endpoint.gear.clone().map(|gear| ("gear_id", gear)));
            keys.extend(endpoint.name.clone().map(|name| ("public_port_name", name)));
            keys.push(("public_address", at.ip().to_string()));
            keys.push(("public_port", at.port().to_string()));
            keys.push(("protocols", list(endpoint.protocols.iter())));
            keys.push(("types", list(endpoint.types.iter())));
            let mappings = endpoint.mappings.iter();
            let mappings =
                mappings.map(|one| format!("\n- frontend: '{}'\n  backend: '{}'", one.frontend, one.backend));
            keys.push(("mappings", mappings.collect()));
            "add_public_endpoint"
        }
        AppChange::RemoveEndpoint { addr: at, gear } => {
            keys.extend(gear.clone().map(|gear| ("gear_id", gear)));
            keys.push(("public_address", at.ip().to_string()));
            keys.push(("public_port", at.port().to_string()));
            "remove_public_endpoint"
        }
        AppChange::AddAlias(alias) => {
            keys.push(("alias", alias.clone()));
            "add_alias"
        }
        AppChange::RemoveAlias(alias) => {
            keys.push(("alias", alias.clone()));
            "remove_alias"
        }
        AppChange::AddCertificate { alias, certificate } => {
            let reveal = |secret: &signalbox_core::discovered::spi::Secret| block(secret.reveal());
            keys.push(("alias", alias.clone()));
            keys.push(("ssl", block(&certificate.chain)));
            keys.push((
                "private_key",
                certificate.private_key.as_ref().map(reveal).unwrap_or_default(),
            ));
            keys.push((
                "pass_phrase",
                certificate.pass_phrase.as_ref().map(reveal).unwrap_or_default(),
            ));
            "add_ssl"
        }
        AppChange::RemoveCertificate(alias) => {
            keys.push(("alias", alias.clone()));
            "remove_ssl"
        }
        AppChange::Stop(gear) => status(&mut keys, "stop", gear.as_ref()),
        AppChange::Start(gear) => status(&mut keys, "start", gear.as_ref()),
        AppChange::RotateIn(gear) => status(&mut keys, "rotate_in", gear.as_ref()),
        AppChange::RotateOut { gear, timeout, reason } => {
            keys.extend(timeout.map(|timeout| ("timeout", timeout.as_secs().to_string())));
            keys.push(("reason", reason.clone()));
            status(&mut keys, "rotate_out", gear.as_ref())
        }
        AppChange::AddGeography { geography, gear } | AppChange::RemoveGeography { geography, gear } => {
            keys.extend(gear.clone().map(|gear| ("gear_id", gear)));
            keys.push(("geography", geography.clone()));
            match event.change {
                AppChange::AddGeography { .. } => "add_geography",
                _ => "remove_geography",
            }
        }
        AppChange::Duplicate => {
            keys.push(("deprecated", "use add_public_endpoint".to_owned()));
            "add_gear"
        }
    };
    let AppKey { app, namespace } = &event.app;
    let mut text = format!("---\n:action: :{action}\n:app_name: {app}\n:namespace: {namespace}\n");
    for (key, value) in keys {
        let space = if value.is_empty() || value.starts_with('\n') {
            ""
        } else {
            " "
        };
        writeln!(text, ":{key}:{space}{value}").unwrap();
    }
    text
}

fn status(keys: &mut Vec<(&str, String)>, verb: &str, gear: Option<&String>) -> &'static str {
    keys.extend(gear.cloned().map(|gear| ("gear_id", gear)));
    match (verb, gear.is_some()) {
        ("stop", true) => "stop_gear",
        ("stop", false) => "stop_application",
        ("start", true) => "start_gear",
        ("start", false) => "start_application",
        ("rotate_in", true) => "rotate_in_gear",
        ("rotate_in", false) => "rotate_in_application",
        (_, true) => "rotate_out_gear",
        (_, false) => "rotate_out_application",
    }
}

fn list<'a>(words: impl Iterator<Item = &'a String>) -> String {
    words.map(|word| format!("\n- {word}")).collect()
}

fn block(text: &str) -> String {
    let lines: String = text.lines().map(|line| format!("\n  {line}")).collect();
    format!("|-{lines}")
}

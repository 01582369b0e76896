//! Decodes text to events, or to an error about the first document that is no event.

use super::application::{AppKey, Certificate, Endpoint, Mapping};
use super::error::ParseError;
use super::event::{AppChange, RoutingEvent};
use super::fields::Fields;
use super::secret::Secret;
use crate::wire::yaml::{self, Dialect};

/// Longest text that is decoded, in bytes: thousands of events, or one with an uncommonly long certificate chain.
pub const MAX_BYTES: usize = 4 << 20;

const ACTIONS: &str = "create_application, delete_application, add_public_endpoint, remove_public_endpoint, add_alias, \
                       remove_alias, add_ssl, remove_ssl, add_geography, remove_geography, or start, stop, rotate_in or \
                       rotate_out with _gear or _application";

/// Longest time that an event may give flows to end, in seconds: a day.
const MAX_TIMEOUT_SECS: u64 = 86_400;

/// Most characters of a reason that are kept.
const MAX_REASON_CHARS: usize = 200;

/// Reads the events of a text, at least one, each a YAML document. Keys and values may be Ruby symbols; unknown keys
/// are ignored.
///
/// # Errors
/// The first document that is no event, and the reason; no event of the text counts then.
pub fn parse(text: &str) -> Result<Vec<RoutingEvent>, ParseError> {
    if text.len() > MAX_BYTES {
        return Err(ParseError::new(1, 1, format!("expected at most {MAX_BYTES} bytes")));
    }
    let documents = yaml::read(text, Dialect::Ruby)?;
    if documents.is_empty() {
        return Err(ParseError::new(1, 1, "expected an event, found nothing"));
    }
    let events = documents.iter().enumerate();
    events.map(|(at, node)| event(&Fields::open(at + 1, node)?)).collect()
}

fn event(fields: &Fields<'_>) -> Result<RoutingEvent, ParseError> {
    let action = fields.text("action")?;
    let app = AppKey {
        app: fields.name("app_name")?,
        namespace: fields.name("namespace")?,
    };
    let change = match action {
        "create_application" => AppChange::Create {
            scalable: fields.boolean("scalable")?,
            ha: fields.boolean("ha")?,
        },
        "delete_application" => AppChange::Delete,
        "add_gear" | "delete_gear" | "remove_gear" if fields.get("deprecated").is_some() => AppChange::Duplicate,
        "add_public_endpoint" | "add_gear" => AppChange::AddEndpoint {
            addr: fields.address()?,
            endpoint: endpoint(fields)?,
        },
        "remove_public_endpoint" | "delete_gear" | "remove_gear" => AppChange::RemoveEndpoint {
            addr: fields.address()?,
            gear: fields.optional_text("gear_id")?,
        },
        "add_alias" => AppChange::AddAlias(fields.alias()?),
        "remove_alias" => AppChange::RemoveAlias(fields.alias()?),
        "add_ssl" => AppChange::AddCertificate {
            alias: fields.alias()?,
            certificate: Box::new(Certificate {
                chain: fields.text("ssl")?.to_owned(),
                private_key: fields.optional_text("private_key")?.as_deref().map(Secret::new),
                pass_phrase: fields.optional_text("pass_phrase")?.as_deref().map(Secret::new),
            }),
        },
        "remove_ssl" => AppChange::RemoveCertificate(fields.alias()?),
        "add_geography" => AppChange::AddGeography {
            geography: fields.text("geography")?.to_owned(),
            gear: fields.optional_text("gear_id")?,
        },
        "remove_geography" => AppChange::RemoveGeography {
            geography: fields.text("geography")?.to_owned(),
            gear: fields.optional_text("gear_id")?,
        },
        other => match status(fields, other)? {
            Some(change) => change,
            None => return Err(fields.error_at("action", format!("expected {ACTIONS}"))),
        },
    };
    Ok(RoutingEvent { app, change })
}

/// Change of an action `VERB_gear` or `VERB_application`; `None`: the action is something else.
fn status(fields: &Fields<'_>, action: &str) -> Result<Option<AppChange>, ParseError> {
    let (verb, gear) = match (action.strip_suffix("_gear"), action.strip_suffix("_application")) {
        (Some(verb @ ("start" | "stop" | "rotate_in" | "rotate_out")), _) => {
            (verb, Some(fields.text("gear_id")?.to_owned()))
        }
        (_, Some(verb)) => (verb, None),
        _ => return Ok(None),
    };
    Ok(match verb {
        "start" => Some(AppChange::Start(gear)),
        "stop" => Some(AppChange::Stop(gear)),
        "rotate_in" => Some(AppChange::RotateIn(gear)),
        "rotate_out" => Some(AppChange::RotateOut {
            gear,
            timeout: fields.seconds("timeout", MAX_TIMEOUT_SECS)?,
            reason: one_line(&fields.optional_text("reason")?.unwrap_or_default()),
        }),
        _ => None,
    })
}

/// Beginning of a text, as one line: a rotation must not fail because of its comment.
fn one_line(text: &str) -> String {
    let visible = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    visible.take(MAX_REASON_CHARS).collect()
}

fn endpoint(fields: &Fields<'_>) -> Result<Endpoint, ParseError> {
    let mappings = fields.list("mappings")?.iter().map(|node| {
        let mapping = Fields::open(fields.document, node)?;
        Ok(Mapping {
            frontend: mapping.optional_text("frontend")?.unwrap_or_default(),
            backend: mapping.optional_text("backend")?.unwrap_or_default(),
        })
    });
    Ok(Endpoint {
        gear: fields.optional_text("gear_id")?,
        name: fields.optional_text("public_port_name")?,
        protocols: fields.text_set("protocols")?,
        types: fields.text_set("types")?,
        mappings: mappings.collect::<Result<_, ParseError>>()?,
    })
}

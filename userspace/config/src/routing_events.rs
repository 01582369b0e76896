//! Broker that reports OpenShift's applications.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use signalbox_core::model::RoutingEvents;
use signalbox_core::model::shield::ShieldPolicy;
use signalbox_core::model::{EndpointFilter, Naming};
use signalbox_core::wire::hostname::Hostname;

use super::map::MapDecoder;
use super::node::{NodeRef, Position};
use super::report::{Report, quote};
use super::scalar::{optional_value, or_default};
use super::{applications, brokers, expose};

const MAX_TYPES: usize = 64;

/// Defaults of the broker's plugin and of OpenShift's own routing daemon.
const DEFAULT_DESTINATION: &str = "/topic/routinginfo";
const DEFAULT_ENDPOINT_TYPE: &str = "load_balancer";
const DEFAULT_HA_PREFIX: &str = "ha-";

/// Longest text such as a client id or destination, in bytes: brokers document no limit.
const MAX_TEXT_BYTES: usize = 255;

/// Decodes `routing_events`, and returns the places of the addresses of each rule of `expose`. `None`: there is a
/// mistake. `services`: the number of configured services.
pub(super) fn decode(
    place: &NodeRef<'_>,
    default_shield: Option<&ShieldPolicy>,
    services: usize,
    report: &mut Report,
) -> Option<(RoutingEvents, Vec<Position>)> {
    let mut map = MapDecoder::open(place, report)?;
    let brokers_at = map.take("brokers");
    let tls_at = map.take("tls");
    let user = map.take("user");
    let password_file = map.take("password_file");
    let destination_at = map.take("destination");
    let client_id_at = map.take("client_id");
    let subscription_at = map.take("subscription");
    let endpoint_types = map.take("endpoint_types");
    let ha_prefix = map.take("ha_prefix");
    let domain = map.take("domain");
    let certificates = map.take("certificates");
    let applications = map.take("applications");
    let expose = map.take("expose");
    map.finish(report);

    if brokers_at.is_none() {
        let of_brokers = [
            &tls_at,
            &user,
            &password_file,
            &destination_at,
            &client_id_at,
            &subscription_at,
        ];
        for at in of_brokers.into_iter().flatten() {
            at.error(
                report,
                "without `brokers` this has no effect, as events arrive only by the admin API: give `brokers`, or leave this out",
            );
        }
    }
    let brokers = optional_value(brokers_at.as_ref(), |place| brokers::decode_all(place, report));
    let tls = optional_value(tls_at.as_ref(), |place| brokers::tls(place, report));
    let login = brokers::login(user.as_ref(), password_file.as_ref(), report);
    let destination = or_default(destination_at.as_ref(), DEFAULT_DESTINATION.to_owned(), |place| {
        destination(place, report)
    });
    let client_id = optional_value(client_id_at.as_ref(), |place| line(place, report));
    let subscription = optional_value(subscription_at.as_ref(), |place| line(place, report));
    if let Some(at) = &subscription_at {
        if client_id_at.is_none() {
            at.error(
                report,
                "a broker identifies a durable subscription also by its client: give `client_id`",
            );
        }
        if !destination.starts_with("/topic/") {
            at.error(
                report,
                "only topics have subscriptions: a queue keeps its messages anyway, leave it out",
            );
        }
    }
    let types = or_default(
        endpoint_types.as_ref(),
        [DEFAULT_ENDPOINT_TYPE.to_owned()].into(),
        |place| word_set(place, report),
    );
    let prefix = or_default(ha_prefix.as_ref(), DEFAULT_HA_PREFIX.to_owned(), |place| {
        prefix(place, report)
    });
    let domain = optional_value(domain.as_ref(), |place| hostname(place, report));
    let certificates = optional_value(certificates.as_ref(), |place| path(place, report));
    let applications = optional_value(applications.as_ref(), |place| applications::decode_all(place, report));
    let expose = optional_value(expose.as_ref(), |place| {
        expose::decode_all(place, default_shield, services, report)
    });
    let (spots, expose) = expose?.unwrap_or_default().into_iter().unzip();
    let events = RoutingEvents {
        brokers: brokers?.unwrap_or_default(),
        tls: tls?,
        login: login?,
        destination,
        client_id: client_id?,
        subscription: subscription?,
        filter: EndpointFilter { types },
        naming: Naming {
            prefix,
            domain: domain?,
        },
        certificates: certificates?,
        applications: applications?.unwrap_or_default(),
        expose,
    };
    Some((events, spots))
}

fn destination(place: &NodeRef<'_>, report: &mut Report) -> Option<String> {
    let text = line(place, report)?;
    let name = text.strip_prefix("/topic/").or_else(|| text.strip_prefix("/queue/"));
    if name.is_some_and(|name| !name.is_empty()) {
        return Some(text);
    }
    let shown = quote(&text);
    place.error(
        report,
        format!("{shown} is not a destination: write /topic/NAME or /queue/NAME"),
    );
    None
}

/// Decodes text that goes into a header of STOMP.
pub(super) fn line(place: &NodeRef<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    if text.len() <= MAX_TEXT_BYTES && !text.contains(char::is_control) {
        return Some(text.to_owned());
    }
    let shown = quote(text);
    place.error(
        report,
        format!("{shown} is not one line of at most {MAX_TEXT_BYTES} bytes"),
    );
    None
}

/// Decodes the path of a file or directory.
pub(super) fn path(place: &NodeRef<'_>, report: &mut Report) -> Option<PathBuf> {
    place.text(report).map(PathBuf::from)
}

fn word_set(place: &NodeRef<'_>, report: &mut Report) -> Option<BTreeSet<String>> {
    let mut words = Some(BTreeSet::new());
    let mut any = false;
    for item in place.items("types of endpoints", MAX_TYPES, report)? {
        any = true;
        match (line(&item, report), &mut words) {
            (Some(word), Some(words)) => {
                words.insert(word);
            }
            _ => words = None,
        }
    }
    if !any {
        place.error(
            report,
            "without a type no endpoint gets connections: leave it out, or write [load_balancer]",
        );
        return None;
    }
    words
}

/// Decodes the beginning of a label, which an application's name follows.
fn prefix(place: &NodeRef<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    if Hostname::parse(format!("{text}a").as_bytes()).is_ok() {
        return Some(text.to_owned());
    }
    let shown = quote(text);
    place.error(
        report,
        format!("{shown} cannot begin a host name: letters, digits, `-` and `_`"),
    );
    None
}

fn hostname(place: &NodeRef<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    let problem = match Hostname::parse(text.as_bytes()) {
        Ok(_) if text.parse::<IpAddr>().is_ok() => "an address has no names below it".to_owned(),
        Ok(name) => return Some(name.as_str().to_owned()),
        Err(error) => error.to_string(),
    };
    place.error(report, format!("{} is not a domain: {problem}", quote(text)));
    None
}

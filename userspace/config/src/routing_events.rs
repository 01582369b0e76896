//! Broker that tells of OpenShift's applications.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use signalbox_core::model::RoutingEvents;
use signalbox_core::model::shield::Policy;
use signalbox_core::name::HostName;
use signalbox_core::spi::{Filter, Naming};

use super::map::Map;
use super::node::{Place, Spot};
use super::report::{Report, quote};
use super::scalar::{maybe, optional};
use super::{applications, brokers, expose};

const MOST_TYPES: usize = 64;

/// Defaults of the broker's plugin and of OpenShift's own routing daemon.
const DESTINATION: &str = "/topic/routinginfo";
const ENDPOINT_TYPE: &str = "load_balancer";
const HA_PREFIX: &str = "ha-";

/// Longest client id, destination and the like, in bytes: brokers document no limit.
const LONGEST: usize = 255;

/// Decodes `routing_events`, and returns the places of the addresses of each rule of `expose`. `None`: there is a
/// mistake. `services`: the number of configured services.
pub(super) fn read(
    place: &Place<'_>,
    guarded: Option<&Policy>,
    services: usize,
    report: &mut Report,
) -> Option<(RoutingEvents, Vec<Spot>)> {
    let mut map = Map::open(place, report)?;
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
            at.fault(
                report,
                "without `brokers` this has no effect, as events come by the admin API alone: give `brokers`, or leave this out",
            );
        }
    }
    let brokers = maybe(brokers_at.as_ref(), |place| brokers::all(place, report));
    let tls = maybe(tls_at.as_ref(), |place| brokers::tls(place, report));
    let login = brokers::login(user.as_ref(), password_file.as_ref(), report);
    let destination = optional(destination_at.as_ref(), DESTINATION.to_owned(), |place| {
        destination(place, report)
    });
    let client_id = maybe(client_id_at.as_ref(), |place| line(place, report));
    let subscription = maybe(subscription_at.as_ref(), |place| line(place, report));
    if let Some(at) = &subscription_at {
        if client_id_at.is_none() {
            at.fault(
                report,
                "a broker identifies a durable subscription by its client too: give `client_id`",
            );
        }
        if !destination.starts_with("/topic/") {
            at.fault(
                report,
                "only topics have subscriptions: a queue keeps its messages anyway, leave it out",
            );
        }
    }
    let types = optional(endpoint_types.as_ref(), [ENDPOINT_TYPE.to_owned()].into(), |place| {
        words(place, report)
    });
    let prefix = optional(ha_prefix.as_ref(), HA_PREFIX.to_owned(), |place| prefix(place, report));
    let domain = maybe(domain.as_ref(), |place| host_name(place, report));
    let certificates = maybe(certificates.as_ref(), |place| path(place, report));
    let applications = maybe(applications.as_ref(), |place| applications::all(place, report));
    let expose = maybe(expose.as_ref(), |place| expose::all(place, guarded, services, report));
    let (spots, expose) = expose?.unwrap_or_default().into_iter().unzip();
    let events = RoutingEvents {
        brokers: brokers?.unwrap_or_default(),
        tls: tls?,
        login: login?,
        destination,
        client_id: client_id?,
        subscription: subscription?,
        filter: Filter { types },
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

fn destination(place: &Place<'_>, report: &mut Report) -> Option<String> {
    let text = line(place, report)?;
    let name = text.strip_prefix("/topic/").or_else(|| text.strip_prefix("/queue/"));
    if name.is_some_and(|name| !name.is_empty()) {
        return Some(text);
    }
    let shown = quote(&text);
    place.fault(
        report,
        format!("{shown} is not a destination: write /topic/NAME or /queue/NAME"),
    );
    None
}

/// Decodes text that goes into a header of STOMP.
pub(super) fn line(place: &Place<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    if text.len() <= LONGEST && !text.contains(char::is_control) {
        return Some(text.to_owned());
    }
    let shown = quote(text);
    place.fault(report, format!("{shown} is not one line of at most {LONGEST} bytes"));
    None
}

/// Decodes the path of a file or directory.
pub(super) fn path(place: &Place<'_>, report: &mut Report) -> Option<PathBuf> {
    place.text(report).map(PathBuf::from)
}

fn words(place: &Place<'_>, report: &mut Report) -> Option<BTreeSet<String>> {
    let mut words = Some(BTreeSet::new());
    let mut any = false;
    for item in place.items("types of endpoints", MOST_TYPES, report)? {
        any = true;
        match (line(&item, report), &mut words) {
            (Some(word), Some(words)) => {
                words.insert(word);
            }
            _ => words = None,
        }
    }
    if !any {
        place.fault(
            report,
            "without a type no endpoint gets connections: leave it out, or write [load_balancer]",
        );
        return None;
    }
    words
}

/// Decodes the beginning of a label, which an application's name follows.
fn prefix(place: &Place<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    if HostName::parse(format!("{text}a").as_bytes()).is_ok() {
        return Some(text.to_owned());
    }
    let shown = quote(text);
    place.fault(
        report,
        format!("{shown} cannot begin a host name: letters, digits, `-` and `_`"),
    );
    None
}

fn host_name(place: &Place<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    let problem = match HostName::parse(text.as_bytes()) {
        Ok(_) if text.parse::<IpAddr>().is_ok() => "an address has no names below it".to_owned(),
        Ok(name) => return Some(name.as_str().to_owned()),
        Err(error) => error.to_string(),
    };
    place.fault(report, format!("{} is not a domain: {problem}", quote(text)));
    None
}

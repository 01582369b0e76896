//! The configuration file: text in, [`Model`] out, or every mistake at once.
//!
//! Owns: the file's schema, its defaults and the words of every error. Never: the state of the running balancer, or any
//! I/O beyond reading the file ([`load()`]). The text becomes a tree with positions ([`signalbox_core::wire::yaml`]), the
//! tree is walked by small decoders (`map`, `scalar`, `address`) that note mistakes and continue, and a [`Model`]
//! exists only if none of them noted anything. Operators read docs/configuration.md.

mod address;
pub mod agent;
mod applications;
mod balancers;
mod brokers;
mod clusters;
mod error;
mod excerpt;
mod expose;
pub mod ha;
mod health;
mod hosts;
mod http;
mod kubernetes;
mod listeners;
mod load;
mod map;
mod node;
mod observe;
mod pages;
mod places;
mod proxy;
mod read;
mod report;
mod requests;
mod routes;
mod routing_events;
mod scalar;
mod selector;
mod services;
mod settings;
pub mod shield;
mod subset;
pub mod suggest;
mod tls;
mod udp_health;
mod unique;
mod warnings;

#[cfg(test)]
mod tests;

use signalbox_core::model::Model;

pub use error::{ConfigError, ConfigErrors};
pub use load::{LoadError, MAX_BYTES, load, load_input};
pub use places::{ConfigPlace, paths};

use address::BindOwners;
use map::MapDecoder;
use node::{NodeRef, YamlNode};
use read::read;
use report::Report;
use scalar::optional_value;

/// Configuration without mistakes, with its oddities.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// Meaning of the configuration.
    pub model: Model,
    /// Warnings about settings that are allowed but probably mistakes, in the order of the file.
    pub warnings: Vec<ConfigError>,
    /// Text of the configuration.
    pub text: String,
}

/// Parses a configuration; on failure, with all of its mistakes.
pub fn parse(text: &str) -> Result<Parsed, ConfigErrors> {
    let mut report = Report::default();
    let required = "`version`, `listeners` and `clusters`";
    let parsed = read(text, required, &mut report).and_then(|root| decode(&root, &mut report));
    match parsed {
        Some((model, warnings)) if report.is_clean() => Ok(Parsed {
            model,
            warnings,
            text: text.to_owned(),
        }),
        _ => Err(report.into_errors(text)),
    }
}

fn decode(root: &YamlNode, report: &mut Report) -> Option<(Model, Vec<ConfigError>)> {
    let root = NodeRef::root(root);
    let mut map = MapDecoder::open(&root, report)?;
    let version = map.require("version");
    let admin = map.take("admin");
    let services = map.take("services");
    let layer4 = map.take("layer4");
    let shield = map.take("shield");
    // A configuration with services needs no listener.
    let listeners = if services.is_some() {
        map.take("listeners")
    } else {
        map.require("listeners")
    };
    let clusters = map.require("clusters");
    let routes = map.take("routes");
    let unmatched = map.take("unmatched");
    let timeouts = map.take("timeouts");
    let limits = map.take("limits");
    let datapath = map.take("datapath");
    let store = map.take("store");
    let balancers_at = map.take("balancers");
    let subset = map.take("subset");
    let routing_events = map.take("routing_events");
    let metrics = map.take("metrics");
    let log = map.take("log");
    let tls = map.take("tls");
    let certificates = map.take("certificates");
    let pages = map.take("pages");
    let ha = map.take("ha");
    map.finish(report);

    if let Some(version) = version {
        check_version(&version, report);
    }
    let mut taken = BindOwners::default();
    let (admin_spot, shield_spot) = (admin.as_ref(), shield.as_ref());
    let (admin_spot, shield_spot) = (admin_spot.map(NodeRef::position), shield_spot.map(NodeRef::position));
    let admin = settings::admin(admin.as_ref(), &mut taken, report);
    let timeouts = settings::timeouts(timeouts.as_ref(), report);
    let limits = settings::limits(limits.as_ref(), report);
    let datapath = settings::datapath(datapath.as_ref(), report);
    let (store, etcd) = settings::store(store.as_ref(), report);
    let balancers = balancers::decode_all(balancers_at.as_ref(), report);
    let subset = subset::common(subset.as_ref(), balancers.as_deref().unwrap_or_default(), report);
    let metrics = observe::metrics(metrics.as_ref(), report);
    let access_log = observe::log(log.as_ref(), report);
    let tls = tls::settings(tls.as_ref(), certificates.as_ref(), report);
    let pages = optional_value(pages.as_ref(), |place| pages::decode(place, report));
    let (mut names, clusters) = clusters::decode_all(clusters.as_ref(), report);
    names.has_applications = routing_events.is_some();
    let (shield, guarded) = shield::common(shield.as_ref(), report);
    let listeners = match (&listeners, &services) {
        (None, Some(_)) => Some(Vec::new()),
        _ => listeners::decode_all(
            listeners.as_ref(),
            (datapath, guarded.as_ref()),
            &names,
            &mut taken,
            report,
        ),
    };
    let services = services::decode_all(services.as_ref(), guarded.as_ref(), &names, &mut taken, report);
    let ha = optional_value(ha.as_ref(), |place| ha::decode(place, &mut taken, report));
    let layer4_spot = layer4.as_ref().map(NodeRef::position);
    let layer4 = services::common(layer4.as_ref(), report);
    let routes = routes::decode_all(routes.as_ref(), &names, report);
    let unmatched = routes::unmatched(unmatched.as_ref(), &names, report);
    let balancers_spot = balancers_at.as_ref().map(NodeRef::position);
    let events_spot = routing_events.as_ref().map(NodeRef::position);
    let routing_events = optional_value(routing_events.as_ref(), |place| {
        let count = services.as_ref().map_or(0, Vec::len);
        routing_events::decode(place, guarded.as_ref(), count, report)
    });

    let (listener_spots, listeners): (Vec<_>, Vec<_>) = listeners?.into_iter().unzip();
    let (cluster_spots, mut clusters): (Vec<_>, Vec<_>) = clusters?.into_iter().unzip();
    let (routing_events, expose_spots) = routing_events?.unzip();
    clusters.extend(names.into_applications(routing_events.as_ref()));
    let model = Model {
        admin,
        listeners,
        clusters,
        routes: routes?,
        unmatched: unmatched?,
        timeouts,
        limits,
        datapath,
        store,
        etcd,
        balancers: balancers?,
        subset,
        routing_events,
        services: services?.into_iter().map(|(_, service)| service).collect(),
        layer4,
        shield,
        metrics,
        access_log: access_log?,
        tls: tls?,
        pages: pages?.unwrap_or_default(),
        ha: ha?,
    };
    let expose_spots = expose_spots.unwrap_or_default();
    let spots = warnings::Positions {
        listeners: &listener_spots,
        clusters: &cluster_spots,
        events: events_spot,
        expose: &expose_spots,
        balancers: balancers_spot,
        layer4: layer4_spot,
        shield: shield_spot,
        admin: admin_spot,
    };
    let warnings = warnings::find(&model, &spots, report);
    Some((model, warnings))
}

fn check_version(version: &NodeRef<'_>, report: &mut Report) {
    if let Some(text) = version.text(report)
        && text != "1"
    {
        let found = report::quote(text);
        version.error(
            report,
            format!("{found} is not a version this signalbox knows: it must be 1"),
        );
    }
}

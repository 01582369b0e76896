//! Routed names and their listeners' addresses, from a configuration file or a running signalbox.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use signalbox_api::ha::HaAnswer;
use signalbox_api::routing::{ListenersAnswer, RoutesAnswer};
use signalbox_core::discovered::dns::NamedBind;
use signalbox_core::model::{Bind, Cluster, Model, Protocol};
use signalbox_core::wire::hostname::HostnamePattern;

use crate::client;

/// Routed names, and the addresses where listeners accept connections for them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RoutedNames {
    /// Names and wildcards.
    pub(super) names: Vec<HostnamePattern>,
    /// Addresses of the listeners that route by name.
    pub(super) binds: Vec<NamedBind>,
    /// Virtual addresses that float among balancers.
    pub(super) vips: Vec<IpAddr>,
    /// Hints for a person.
    pub(super) notes: Vec<String>,
}

impl RoutedNames {
    /// Keeps only the named listeners. The error lists a name without a listener.
    pub(super) fn keep_listeners(&mut self, wanted: &[String]) -> anyhow::Result<()> {
        if wanted.is_empty() {
            return Ok(());
        }
        let is_known = |name: &&String| self.binds.iter().any(|bind| bind.listener == **name);
        if let Some(unknown) = wanted.iter().find(|name| !is_known(name)) {
            let mut known: Vec<_> = self.binds.iter().map(|bind| bind.listener.as_str()).collect();
            known.dedup();
            bail!(
                "no listener {unknown} routes by name; those that do: {}",
                known.join(", ")
            );
        }
        self.binds.retain(|bind| wanted.contains(&bind.listener));
        Ok(())
    }
}

/// Finds the names that a configuration file routes.
pub(super) fn in_file(model: &Model) -> RoutedNames {
    let listeners = model
        .listeners
        .iter()
        .filter(|listener| listener.protocol != Protocol::Tcp);
    let binds = listeners.flat_map(|listener| {
        listener.listen.iter().map(|&bind| NamedBind {
            listener: listener.name.clone(),
            bind,
        })
    });
    let groups = model.ha.iter().flat_map(|ha| &ha.groups);
    let routes = model.routes.iter().filter(|route| !route.is_discovered());
    let learns = model.clusters.iter().any(Cluster::accepts_discovery) || model.routing_events.is_some();
    let note = "names discovered from clusters are not in the file; without -f, the running signalbox adds them";
    RoutedNames {
        names: routes.map(|route| route.hostname.clone()).collect(),
        binds: binds.collect(),
        vips: groups.flat_map(|group| group.vips.iter().copied()).collect(),
        notes: learns.then(|| note.to_owned()).into_iter().collect(),
    }
}

/// Asks a running signalbox for the names that it routes.
pub(super) fn in_force(socket: &Path) -> anyhow::Result<RoutedNames> {
    let routes: RoutesAnswer = client::read(socket, "/api/v1/routes")?;
    let listeners: ListenersAnswer = client::read(socket, "/api/v1/listeners")?;
    let ha: HaAnswer = client::read(socket, "/api/v1/ha")?;
    names_in(&routes, &listeners, &ha).context(
        "the running signalbox gives an answer that this version does not \
                                              understand: are both of the same version?",
    )
}

fn names_in(routes: &RoutesAnswer, listeners: &ListenersAnswer, ha: &HaAnswer) -> Option<RoutedNames> {
    let names = routes.routes.iter();
    let names = names.map(|route| HostnamePattern::parse(&route.host).ok());
    let mut binds = Vec::new();
    for listener in &listeners.listeners {
        if listener.protocol == Protocol::Tcp.as_str() {
            continue;
        }
        for bind in &listener.listen {
            binds.push(NamedBind {
                listener: listener.name.clone(),
                bind: parse_bind(bind)?,
            });
        }
    }
    let vips = ha.groups.iter().flat_map(|group| &group.vips);
    Some(RoutedNames {
        names: names.collect::<Option<_>>()?,
        binds,
        vips: vips.map(|vip| vip.parse().ok()).collect::<Option<_>>()?,
        notes: Vec::new(),
    })
}

/// Parses an address or prefix and a port, in the format of [`Bind`].
fn parse_bind(text: &str) -> Option<Bind> {
    let (place, port) = text.rsplit_once(':')?;
    let place = place.trim_start_matches('[').trim_end_matches(']');
    let single = || place.parse().ok().map(<IpNet as From<IpAddr>>::from);
    Some(Bind {
        prefix: place.parse().ok().or_else(single)?,
        port: port.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn binds_are_read_as_they_are_written() {
        for text in [
            "192.0.2.1:80",
            "[2001:db8::1]:443",
            "0.0.0.0/0:80",
            "[::/0]:80",
            "[fd00:9::/64]:80",
        ] {
            assert_eq!(parse_bind(text).map(|bind| bind.to_string()).as_deref(), Some(text));
        }
        for text in ["192.0.2.1", "host:80", "192.0.2.1:http", ""] {
            assert_eq!(parse_bind(text), None, "{text:?}");
        }
    }

    #[test]
    fn an_answer_of_a_running_signalbox_has_names_and_places() {
        let routes = json!({ "routes": [{ "host": "app.test" }, { "host": "*.apps.test" }] });
        let listeners = json!({ "listeners": [
            { "name": "http", "protocol": "http", "listen": ["192.0.2.1:80", "[2001:db8::1]:80"] },
            { "name": "web", "protocol": "https", "listen": ["192.0.2.1:443"] },
            { "name": "mysql", "protocol": "tcp", "listen": ["192.0.2.9:3306"] },
        ] });
        let ha = json!({ "groups": [{ "vips": ["192.0.2.101", "2001:db8::101"] }, { "vips": [] }] });
        let routes = serde_json::from_value(routes).unwrap();
        let listeners = serde_json::from_value(listeners).unwrap();
        let ha = serde_json::from_value(ha).unwrap();
        let mut routed = names_in(&routes, &listeners, &ha).unwrap();
        assert_eq!(routed.vips.len(), 2);
        assert_eq!((routed.names.len(), routed.binds.len()), (2, 3));
        routed.keep_listeners(&["web".to_owned()]).unwrap();
        assert_eq!(routed.binds.len(), 1);
        let error = routed.keep_listeners(&["mysql".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("no listener mysql") && error.contains("web"), "{error}");
        assert!(serde_json::from_value::<RoutesAnswer>(json!({})).is_err());
    }
}

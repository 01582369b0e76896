//! Predicts the tier of a client's next connection, and why it would not be cut, with the labels of
//! `signalbox_not_cut_total`.
//!
//! Properties that only the handshakes show (timestamps, selective acknowledgements, segment sizes) are not predicted.

use std::net::IpAddr;

use signalbox_api::explain::DatapathExplanation;
use signalbox_common::cut::flow::ineligible;
use signalbox_core::model::http::RequestPolicy;
use signalbox_core::model::tls::Termination;
use signalbox_core::model::{Listener, Route, Routing};
use signalbox_core::routing::last_request::{LastRequestObstacle, lasting_obstacle};

use crate::control::Control;
use crate::datapath::cut::eligibility::CutFacts;
use crate::kernel::interfaces;
use crate::kernel::netlink::Netlink;
use crate::state::Snapshot;
use crate::state::outcome::Ineligible;

/// Interface for packets to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PacketPath {
    /// An interface with the programs of tier `cut`.
    Hooked,
    /// None: the address belongs to this machine, and no such interface sees its packets.
    Local,
    /// An interface without the programs of tier `cut`.
    Unhooked(String),
    NoRoute,
    /// Unknown: the kernel did not answer.
    Unknown,
}

/// Known addresses of the connection's ends.
struct ConnectionEnds {
    client: Option<(IpAddr, PacketPath)>,
    host: Option<(IpAddr, PacketPath)>,
}

/// Returns the tier of a connection of this client to this host, with the reason.
pub(super) fn view(
    control: &Control,
    snapshot: &Snapshot,
    (listener, route, termination, policy): (&Listener, Option<&Route>, Termination, &RequestPolicy),
    client: Option<IpAddr>,
    host: Option<IpAddr>,
) -> DatapathExplanation {
    if termination != Termination::Passthrough {
        let why = format!(
            "TLS ends here ({}): the balancer decrypts every byte",
            termination.as_str()
        );
        return not_cut("copy", Ineligible::Terminated, why);
    }
    if listener.routes_requests(route) {
        let why = if listener.routing == Routing::Request {
            "`routing: request`"
        } else {
            "a route with `path` or keys for requests, with an `insecure` other than `allow`, or with annotations that ask \
             for it,"
        };
        let last = last_request(control, listener, route, policy);
        let but = match &last {
            None => "; a request that is its connection's first and last would be cut".to_owned(),
            Some((Ineligible::Disabled, _)) => String::new(),
            Some((label, why)) => {
                let label = label.label();
                format!("; a request that is its connection's last is not cut either, because {why} ({label})")
            }
        };
        let long = if cuts_long_answers(control, listener, route, policy) {
            "; the rest of an answer of 8 MiB and more would be cut, where both handshakes agree"
        } else {
            ""
        };
        let why = format!("{why} chooses a host for each request, and clients share connections to hosts{but}{long}");
        return DatapathExplanation {
            last_request: last.map(|(why, _)| why.label().into()),
            ..not_cut("copy", Ineligible::PerRequest, why)
        };
    }
    let why_not_available = control.kernel.cut.is_none().then(|| {
        let all = &control.facts.degraded;
        let why = all.iter().find(|(what, _)| *what == "cut" || *what == "ebpf");
        why.map_or_else(|| "tier cut is not available".to_owned(), |(_, why)| why.to_string())
    });
    let netlink = Netlink::open().ok();
    let leg = |address: IpAddr| {
        let address = address.to_canonical();
        (address, packet_path(netlink.as_ref(), address))
    };
    let ends = ConnectionEnds {
        client: client.map(leg),
        host: host.map(leg),
    };
    let is_counted = snapshot.model.limits.per_source.concurrent != 0
        || route.is_some_and(|route| route.connection_limits().concurrent != 0);
    let tier = listener.datapath.tier.map_or("splice or copy", |tier| tier.as_str());
    let (verdict, reason) = match ineligible(listener, is_counted, why_not_available, &ends) {
        Some((ineligible, why)) => return not_cut(tier, ineligible, why),
        None if client.is_none() || host.is_none() => (
            "depends on the client",
            "nothing known so far speaks against it; --client ADDRESS says more",
        ),
        None => (
            "would be cut",
            "if the handshakes of client and host agree; `signalbox flows` shows each connection",
        ),
    };
    DatapathExplanation {
        tier: "cut".into(),
        verdict: verdict.into(),
        reason: reason.to_owned(),
        ..DatapathExplanation::default()
    }
}

fn not_cut(tier: &'static str, why: Ineligible, reason: String) -> DatapathExplanation {
    DatapathExplanation {
        tier: tier.into(),
        verdict: "would not be cut".into(),
        not_cut: Some(why.label().into()),
        reason,
        ..DatapathExplanation::default()
    }
}

/// Whether a route limits its requests in flight.
fn limits_concurrent(route: Option<&Route>, policy: &RequestPolicy) -> bool {
    policy.limits.is_some_and(|limits| limits.concurrent != 0)
        || route.is_some_and(|route| route.connection_limits().concurrent != 0)
}

/// Whether the rest of a long answer would be cut, as far as this does not depend on client and host.
fn cuts_long_answers(control: &Control, listener: &Listener, route: Option<&Route>, policy: &RequestPolicy) -> bool {
    let datapath = listener.datapath;
    let is_on = datapath.cuts_long_answers && datapath.cut && datapath.tier.is_none();
    is_on && control.kernel.cut.is_some() && !limits_concurrent(route, policy)
}

/// Why a connection's last request would not be cut, as far as this does not depend on the request.
fn last_request(
    control: &Control,
    listener: &Listener,
    route: Option<&Route>,
    policy: &RequestPolicy,
) -> Option<(Ineligible, &'static str)> {
    let limits_concurrent = limits_concurrent(route, policy);
    let datapath = listener.datapath;
    let why = if !datapath.cut || datapath.tier.is_some() || !datapath.cuts_last_requests {
        Ineligible::Disabled
    } else if let Some(obstacle) = lasting_obstacle(policy, control.shared.log.is_on()) {
        Ineligible::LastRequest(obstacle)
    } else if limits_concurrent {
        Ineligible::CountedRequest
    } else if control.kernel.cut.is_none() {
        Ineligible::NotAvailable
    } else {
        return None;
    };
    let text = match why {
        Ineligible::LastRequest(LastRequestObstacle::Logged) => "requests are logged with the status of their answers",
        Ineligible::LastRequest(LastRequestObstacle::AnswerEdited) => "the route changes answers",
        Ineligible::LastRequest(_) => "the route has a time limit for answers",
        Ineligible::CountedRequest => "the route counts requests in flight",
        Ineligible::Disabled => "`datapath` says so",
        _ => "tier cut is not available",
    };
    Some((why, text))
}

/// Returns why a connection would not be cut: the first reason that the datapath would find.
fn ineligible(
    listener: &Listener,
    is_counted: bool,
    not_available: Option<String>,
    ends: &ConnectionEnds,
) -> Option<(Ineligible, String)> {
    let by_proxy = |(client, _): &(IpAddr, PacketPath)| listener.trusted_proxies.iter().any(|net| net.contains(client));
    let (client, host) = (ends.client.as_ref(), ends.host.as_ref());
    let facts = CutFacts {
        datapath: listener.datapath,
        is_counted,
        is_named_by_proxy: client.is_some_and(by_proxy),
        is_available: not_available.is_none(),
        ends: client.zip(host).map(|((client, _), (host, _))| (*client, *host)),
    };
    let Some(why) = facts.obstacle() else {
        return host_ineligible(ends).or_else(|| client_ineligible(ends));
    };
    let text = match (why, listener.datapath.tier, facts.ends) {
        (Ineligible::Disabled, Some(tier), _) => format!("the configuration demands tier {}", tier.as_str()),
        (Ineligible::Disabled, None, _) => "datapath.cut is off".to_owned(),
        (Ineligible::NamedSource, ..) => {
            "a limit of `concurrent` counts by the address that this proxy's PROXY header names".to_owned()
        }
        (Ineligible::FamilyMismatch, _, Some((client, host))) => {
            format!("the client {client} and the host {host} have different address families")
        }
        _ => not_available.unwrap_or_default(),
    };
    Some((why, text))
}

fn host_ineligible(ends: &ConnectionEnds) -> Option<(Ineligible, String)> {
    let (host, leg) = ends.host.as_ref()?;
    match leg {
        PacketPath::Hooked | PacketPath::Unknown => None,
        PacketPath::NoRoute => Some((
            Ineligible::NoSourceAddress,
            format!("no route leads to the host {host}"),
        )),
        PacketPath::Local => Some((Ineligible::NoHook, format!("the host {host} is on this machine"))),
        PacketPath::Unhooked(name) => Some((
            Ineligible::NoHook,
            format!("the host {host} is reached by {name}, an interface without the programs"),
        )),
    }
}

fn client_ineligible(ends: &ConnectionEnds) -> Option<(Ineligible, String)> {
    let (client, leg) = ends.client.as_ref()?;
    let why = match leg {
        PacketPath::Hooked | PacketPath::Unknown => return None,
        PacketPath::NoRoute => format!("no route leads to the client {client}"),
        PacketPath::Local => format!("the client {client} is on this machine"),
        PacketPath::Unhooked(name) => {
            format!("the client {client} is reached by {name}, an interface without the programs")
        }
    };
    Some((Ineligible::FoundByProgram(ineligible::NO_HANDSHAKE), why))
}

fn packet_path(netlink: Option<&Netlink>, address: IpAddr) -> PacketPath {
    let way = match netlink.map(|netlink| netlink.route_get(address)) {
        Some(Ok(Some(way))) => way,
        Some(Ok(None)) => return PacketPath::NoRoute,
        Some(Err(_)) | None => return PacketPath::Unknown,
    };
    if way.is_local || address.is_loopback() {
        return PacketPath::Local;
    }
    // `routed` lists the interfaces that the programs are attached to at each refresh.
    if interfaces::routed()
        .unwrap_or_default()
        .iter()
        .any(|known| known.index == way.ifindex)
    {
        return PacketPath::Hooked;
    }
    let all = nix::net::if_::if_nameindex();
    let named = all.iter().flatten().find(|known| known.index() == way.ifindex);
    PacketPath::Unhooked(named.map_or_else(
        || format!("interface {}", way.ifindex),
        |known| known.name().to_string_lossy().into_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use signalbox_core::model::{Datapath, Tier};

    use super::*;

    fn listener(cut: bool, tier: Option<Tier>) -> Listener {
        let text = "version: 1\nlisteners: [{ name: web, protocol: http, listen: [\":80\"], cluster: c,\
                    proxy_protocol: { trusted: [10.0.0.0/8] } }]\n\
                    clusters: [{ name: c, hosts: [{ name: h, address: 10.2.0.2, http: 80 }] }]\n";
        let mut listener = crate::config::parse(text).unwrap().model.listeners.remove(0);
        listener.datapath = Datapath {
            tier,
            cut,
            ..listener.datapath
        };
        listener
    }

    fn label(
        listener: &Listener,
        is_limited: bool,
        client: (&str, PacketPath),
        host: (&str, PacketPath),
    ) -> Option<&'static str> {
        let end = |(address, leg): (&str, PacketPath)| Some((address.parse().unwrap(), leg));
        let ends = ConnectionEnds {
            client: end(client),
            host: end(host),
        };
        ineligible(listener, is_limited, None, &ends).map(|(ineligible, _)| ineligible.label())
    }

    #[test]
    fn each_reason_has_the_label_that_the_datapath_counts_it_by() {
        let free = listener(true, None);
        let (client, host) = (("192.0.2.1", PacketPath::Hooked), ("10.2.0.2", PacketPath::Hooked));
        let said = |listener: &Listener| label(listener, true, client.clone(), host.clone());
        assert_eq!(said(&free), None, "it would be cut");
        assert_eq!(said(&listener(false, None)), Some("off"));
        assert_eq!(said(&listener(true, Some(Tier::Splice))), Some("off"));
        let proxy = ("10.9.9.9", PacketPath::Hooked);
        assert_eq!(
            label(&free, true, proxy.clone(), host.clone()),
            Some("source_named_by_proxy")
        );
        assert_eq!(label(&free, false, proxy, host.clone()), None, "nothing is limited");
        let six = ("2001:db8::1", PacketPath::Hooked);
        assert_eq!(label(&free, true, six, host.clone()), Some("address_families_differ"));
        for (leg, of_client, of_host) in [
            (
                PacketPath::Local,
                "client_handshake_not_seen",
                "host_handshake_not_seen",
            ),
            (
                PacketPath::Unhooked("tun0".into()),
                "client_handshake_not_seen",
                "host_handshake_not_seen",
            ),
            (PacketPath::NoRoute, "client_handshake_not_seen", "no_source_address"),
        ] {
            let odd = ("192.0.2.1", leg.clone());
            assert_eq!(label(&free, true, odd, host.clone()), Some(of_client), "{leg:?}");
            let odd = ("10.2.0.2", leg.clone());
            assert_eq!(label(&free, true, client.clone(), odd), Some(of_host), "{leg:?}");
        }
        let ends = ConnectionEnds {
            client: None,
            host: None,
        };
        let (ineligible, why) = ineligible(&free, true, Some("no rights".into()), &ends).unwrap();
        assert_eq!((ineligible.label(), &*why), ("not_available", "no rights"));
    }

    #[test]
    fn this_machine_s_own_addresses_are_here() {
        let netlink = Netlink::open().unwrap();
        assert_eq!(packet_path(Some(&netlink), [127, 0, 0, 1].into()), PacketPath::Local);
        assert_eq!(packet_path(None, [127, 0, 0, 1].into()), PacketPath::Unknown);
    }
}
